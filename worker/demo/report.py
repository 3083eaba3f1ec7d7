"""What the demo prints on stdout: the outcomes of a first set of commands, as the database has
them, and how the fleet stopped.
"""

import os
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import psycopg

from cmdbus.board.board import Board
from cmdbus.board.views import BoardView
from cmdbus.clock import time
from cmdbus.counting import count_of
from cmdbus.database.statements import statement
from cmdbus.producer.bus import CommandBus
from cmdbus.producer.records import CommandRecord, Status
from cmdbus.producer.requests import SendRequest
from cmdbus.settings import Settings
from cmdbus.worker.demo.handlers import BACKOFF, DOMAIN

_QUICK, _TRANSFERS, _FLAKY = 500, 20, 12
_MAX_SLOW = 64
_SLOW_SECONDS, _DELAY_SECONDS = 0.5, 2.0
#: One transfer of this number fails at first.
_FAILING = 4
#: Seconds after which commands that have not ended are reported as they are.
_TIMEOUT_SECONDS = 60.0
_TROUBLE = Status.IN_TROUBLESHOOTING_QUEUE
_ENDS = {
    "completed": "completed",
    "failed": "failed by a business rule",
    "retry": "to be tried again",
    "trouble": "given to a person",
    "interrupted": "interrupted",
    "lost": "cut off before their end",
}
_STDOUT = 1

Records = Sequence[CommandRecord]


@dataclass(frozen=True, slots=True)
class DemoCase:
    """Commands of one type, and the sentence about them when all have ended."""

    type: str
    requests: Sequence[SendRequest]
    #: Expected of each; the sentence is printed only if all end so.
    end: Status
    sentence: Callable[[Records], str]


class DemoReport:
    def __init__(
        self,
        settings: Settings,
        bus: CommandBus,
        connection: psycopg.Connection,
        is_running: Callable[[], bool],
    ) -> None:
        """`is_running` waits a moment; it returns False when the supervisor stops."""
        self._settings = settings
        self._bus = bus
        self._connection = connection
        self._is_running = is_running
        self._ends: Counter[Status] = Counter()
        #: The command that the report suggests to look at.
        self._crashed = UUID(int=0)

    def print(self, log: Path | None) -> None:
        """Sends the commands; ends early if the supervisor stops."""
        settings = self._settings
        ready = f"{settings.procs} x {settings.threads} threads are ready"
        say(f"cmdbus, the demo: {ready}{f'; its log is in {log}' if log else ''}", "")
        self._connection.execute(statement("demo_table", settings.schema))
        if all(self._run(act) for act in self._acts()):
            say(f"{self._ends.total():6} in all: {_counted(self._ends)}", "")
            say(*self._what_next())

    def _acts(self) -> Iterable[list[DemoCase]]:
        """The crash comes last: commands in flight in its process would run again, quarantined."""
        slow = min(self._settings.procs * self._settings.threads, _MAX_SLOW)
        transfers = [{"amount": n, "fails": n % _FAILING == 0} for n in range(_TRANSFERS)]
        yield [
            _case("Quick", [{"n": n} for n in range(_QUICK)], Status.COMPLETED, _quick),
            _case("Slow", [{"seconds": _SLOW_SECONDS}] * slow, Status.COMPLETED, _slow),
            _case("Transfer", transfers, Status.COMPLETED, self._transfer),
            _case("Flaky", [None] * _FLAKY, Status.COMPLETED, _flaky),
            _case("Overdraw", [{"amount": 1000}], Status.FAILED, _overdraw),
            _case("Mistake", [{"account": "?"}], _TROUBLE, _mistake),
            _case("Later", [None], Status.COMPLETED, _later, delay=_DELAY_SECONDS),
            _case("Hang", [None], Status.COMPLETED, self._hang),
        ]
        yield [_case("Crash", [None], _TROUBLE, self._crash)]

    def _run(self, cases: list[DemoCase]) -> bool:
        """False if the supervisor stops meanwhile."""
        sent = self._bus.send_many([request for case in cases for request in case.requests])
        first, ids = self._bus.get(DOMAIN, sent[0]), set(sent)
        assert first is not None
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        waiting = list(cases)
        while waiting:
            late = time.monotonic() > deadline
            for case in list(waiting):
                found = self._bus.query(DOMAIN, type=case.type, since=first.created_at, limit=1000)
                records = [record for record in found if record.command_id in ids]
                if late or all(map(_has_ended, records)):
                    waiting.remove(case)
                    self._report_case(case, records)
            if not self._is_running():
                return False
        return True

    def _report_case(self, case: DemoCase, records: Records) -> None:
        ends = Counter(record.status for record in records)
        self._ends += ends
        as_expected = set(ends) == {case.end}
        sentence = case.sentence(records) if as_expected else _counted(ends)
        say(f"{len(records):6} {case.type:9} {sentence}")

    def _transfer(self, records: Records) -> str:
        ids = {"command_ids": [record.command_id for record in records]}
        row = self._connection.execute(
            statement("demo_count", self._settings.schema), ids
        ).fetchone()
        assert row is not None
        again = sum(record.attempts > 1 for record in records)
        return (
            f"wrote {row[0]} rows for {row[1]} commands, though {again} failed after writing and "
            f"ran again"
        )

    def _crash(self, records: Records) -> str:
        self._crashed = records[0].command_id
        return "killed its process; ran again alone, killed that one, too: waits for a person"

    def _hang(self, records: Records) -> str:
        seconds = self._settings.timeouts.thread
        return f"did not return: given up after {seconds:g} s, and completed by another thread"

    def _what_next(self) -> Iterable[str]:
        command, options = _command(), "".join(_options(self._settings))
        tries = {
            "what runs where": "ps",
            "what waits": "status",
            "what needs a person": "tsq list",
            "all about one": f"get {DOMAIN} {self._crashed}",
            "to see it in ps": f"send {DOMAIN} Slow '{{\"seconds\": 20}}'",
        }
        yield "It goes on until Ctrl-C. In another terminal, try:"
        for what, arguments in tries.items():
            yield f"  {what:19}  {command} {arguments}{options}"
        yield "With handlers and a database of your own (see README.md):"
        yield "  cmdbus-supervise --app MODULE:REGISTRY --dsn DSN"


def _case(
    type: str,
    data: Sequence[object],
    end: Status,
    sentence: Callable[[Records], str],
    *,
    delay: float | None = None,
) -> DemoCase:
    return DemoCase(
        type, [SendRequest(DOMAIN, type, each, delay=delay) for each in data], end, sentence
    )


def _has_ended(record: CommandRecord) -> bool:
    return record.status.terminal or record.status is _TROUBLE


def _quick(records: Records) -> str:
    return f"completed within {_span(records):.2f} s"


def _slow(records: Records) -> str:
    work = len(records) * _SLOW_SECONDS
    return f"{work:g} s of work, completed within {_span(records):.2f} s"


def _flaky(records: Records) -> str:
    return f"failed, waited {BACKOFF:g} s, and completed at the second attempt"


def _overdraw(records: Records) -> str:
    return f"failed for good, because a business rule forbids it ({records[0].error_code})"


def _mistake(records: Records) -> str:
    return f"could never work ({records[0].error_code}): waits for a person"


def _later(records: Records) -> str:
    started, due = records[0].started_at, records[0].due_at
    assert started is not None
    late_ms = (started - due).total_seconds() * 1000
    return f"ran {late_ms:.0f} ms after its delay of {_DELAY_SECONDS:g} s was over"


def _span(records: Records) -> float:
    """Seconds from the first send to the last end."""
    ends = [record.finished_at for record in records if record.finished_at is not None]
    return (max(ends) - min(record.created_at for record in records)).total_seconds()


def _counted(ends: "Counter[Status]") -> str:
    names = {_TROUBLE: "wait for a person"}
    return ", ".join(
        f"{ends[status]} {names.get(status, status.value.lower().replace('_', ' '))}"
        for status in Status
        if ends[status]
    )


def _command() -> str:
    """`cmdbus` as it can be typed in another terminal, where no environment is active."""
    program = Path(sys.executable).with_name("cmdbus")
    found = "VIRTUAL_ENV" not in os.environ and shutil.which("cmdbus") == str(program)
    return "cmdbus" if found or not program.exists() else shlex.quote(str(program))


def _options(settings: Settings) -> Iterable[str]:
    if settings.name != Settings().name:
        yield f" --name {settings.name}"
    if settings.schema != Settings().schema:
        yield f" --schema {settings.schema}"
    if settings.runtime_dir is not None:
        yield f" --runtime-dir {shlex.quote(str(settings.runtime_dir))}"


def stop_text(view: BoardView | None, seconds: float) -> str:
    """`seconds`: for running commands to end; 0 cuts them off."""
    if not seconds:
        return "Stopping at once: what runs is cut off, and runs again next time."
    seats = view.seats if view is not None else ()
    running = sum(slot.command is not None for seat in seats for slot in seat.slots)
    if not running:
        return "Stopping: no command runs; waiting for the processes to exit."
    return (
        f"Stopping: waiting for {count_of(running)}, at most {seconds:g} s (Ctrl-C again: at once)."
    )


def summary(board: Board | None) -> Iterable[str]:
    ends, replaced = Counter[str](), Counter[str]()
    if board is not None:
        for (_, _, end), count in board.counters().commands.items():
            ends[end] += count
        replaced.update(board.snapshot(claims=False).restarts)
    if ends:
        counts = (f"{ends[name]} {text}" for name, text in _ENDS.items() if ends[name])
        yield f"It ran {ends.total()} executions: {', '.join(counts)}."
    if any(replaced.values()):
        reasons = (f"{count} {reason}" for reason, count in replaced.items() if count)
        yield f"It replaced processes: {', '.join(reasons)}."
    yield "Its database stays for the next time."


def say(*lines: str) -> None:
    """A closed stdout is ignored, because the fleet runs on."""
    with suppress(OSError):
        os.write(_STDOUT, "".join(f"{line}\n" for line in lines).encode())
