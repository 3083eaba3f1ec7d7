"""The latest exits of a node's worker processes that need an operator's attention, for what it
publishes. Pure: time is passed in.

Those of a steward go on with those of its predecessor, from what that has published.
"""

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from signal import Signals

from cmdbus.board.exit_reasons import exit_reason
from cmdbus.board.records import ExitRecord, Verdict
from cmdbus.board.views import SeatView
from cmdbus.worker.claims.claim import Fence

#: Exits that are kept, and characters of the stack of each.
MAX_EXITS, MAX_STACK = 20, 16_000
#: Commands of one exit that are shown.
_MAX_COMMANDS = 10


@dataclass(frozen=True, slots=True)
class _Exit:
    number: int
    #: Monotonic time.
    at: float
    values: Mapping[str, object]
    stack: str


@dataclass(slots=True)
class Exits:
    _kept: list[_Exit] = field(default_factory=list)
    #: That of the latest exit; rises with each.
    number: int = 0

    def add(
        self,
        seat: SeatView,
        exit_record: ExitRecord,
        stack: str,
        charged: Collection[Fence],
        now: float,
    ) -> None:
        """Does nothing for an ordinary exit."""
        if not _needs_attention(exit_record):
            return
        self.number += 1
        values = _values(seat, exit_record, charged)
        self._kept.append(_Exit(self.number, now, values, stack[-MAX_STACK:]))
        del self._kept[:-MAX_EXITS]

    def succeed(self, state: str, stacks: str, published: float) -> None:
        """Takes over what was published at this monotonic time, by whatever version."""
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            texts = json.loads(stacks)
            earlier = [
                _Exit(
                    int(each["number"]),
                    published - float(each["ago"]),
                    {key: value for key, value in each.items() if key not in ("number", "ago")},
                    str(texts.get(str(each["number"]), "")),
                )
                for each in reversed(json.loads(state)["exits"])
            ]
            first = max((each.number for each in earlier), default=0)
            later = [replace(each, number=first + each.number) for each in self._kept]
            self._kept = [*earlier, *later][-MAX_EXITS:]
            self.number += first

    def to_list(self, now: float) -> list[dict[str, object]]:
        """The latest first; `ago` in seconds."""
        return [
            {"number": each.number, "ago": round(now - each.at, 3), **each.values}
            for each in reversed(self._kept)
        ]

    def stacks(self) -> dict[int, str]:
        """By the numbers of the exits that left any."""
        return {each.number: each.stack for each in self._kept if each.stack}


def _needs_attention(exit_record: ExitRecord) -> bool:
    was_killed = exit_record.verdict is not Verdict.NONE or exit_record.signal
    return bool(was_killed or exit_record.code or exit_record.orphaned)


def _values(
    seat: SeatView, exit_record: ExitRecord, charged: Collection[Fence]
) -> dict[str, object]:
    return {
        "role": "quarantine" if exit_record.quarantined else "worker",
        "seat": seat.number,
        "pid": exit_record.pid,
        "generation": exit_record.generation,
        "verdict": exit_record.verdict.name.lower(),
        "signal": _signal(exit_record.signal),
        "code": None if exit_record.signal else exit_record.code,
        "reason": exit_reason(exit_record),
        "commands": _commands(seat, exit_record, charged)[:_MAX_COMMANDS],
    }


def _signal(number: int) -> str | None:
    if not number:
        return None
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def _commands(
    seat: SeatView, exit_record: ExitRecord, charged: Collection[Fence]
) -> list[dict[str, object]]:
    """What its threads ran; what the exit is attributed to comes first."""
    shown: list[dict[str, object]] = []
    for slot in seat.slots:
        if (command := slot.command) is not None:
            fence = command.id, command.token, command.command_id.int
            shown.append(
                {
                    "domain": command.domain,
                    "type": command.type,
                    "command_id": str(command.command_id),
                    "attempt": command.attempt,
                    "charged": fence in charged,
                }
            )
    return sorted(shown, key=lambda each: not each["charged"])
