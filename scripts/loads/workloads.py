"""What a load consists of, and how each part of it is expected to end. Pure."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

DOMAIN = "load"
#: The workload of processes; see transfers.py.
TRANSFER = "transfer"


class End(NamedTuple):
    """How a command ended."""

    status: str
    code: str | None = None
    attempts: int = 1

    def __str__(self) -> str:
        code = f" {self.code}" if self.code else ""
        return f"{self.status}{code} in attempt {self.attempts}"


_DONE = End("COMPLETED")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    type: str
    #: Its part of all, relative to the others'.
    weight: float
    #: Its status at the end, unless a process is killed.
    end: End = _DONE
    #: Leaves one row in the table `effect`, if it was completed.
    has_effect: bool = False


_TROUBLE = "IN_TROUBLESHOOTING_QUEUE"
_NOOP = Part(type="Noop", weight=1)
_IO = Part(type="Io", weight=1)
_CPU = Part(type="Cpu", weight=1)
_TX = Part(type="Tx", weight=1, has_effect=True)

WORKLOADS: dict[str, tuple[Part, ...]] = {
    "noop": (_NOOP,),
    "io": (_IO,),
    "cpu": (_CPU,),
    "tx": (_TX,),
    "mixed": (
        Part(type="Noop", weight=70),
        Part(type="Io", weight=10),
        Part(type="Cpu", weight=10),
        Part(type="Tx", weight=10, has_effect=True),
        Part(type="Long", weight=0.1),
    ),
    "fail": (
        Part(type="Noop", weight=70),
        Part(type="Transient", weight=10, end=End("COMPLETED", attempts=3)),
        Part(type="Rule", weight=9.5, end=End("FAILED", "RULE")),
        Part(type="Permanent", weight=5, end=End(_TROUBLE, "PERMANENT")),
        Part(type="Exhausted", weight=5, end=End(_TROUBLE, "TRANSIENT", 3)),
        Part(type="Timeout", weight=0.5, end=End(_TROUBLE, "TIMEOUT")),
    ),
}


def types_of(parts: Sequence[Part], commands: int) -> list[str]:
    """The type of each command to send: exact shares, in an order that is the same each time."""
    types = [type_ for type_, count in counts_of(parts, commands).items() for _ in range(count)]
    random.Random(commands).shuffle(types)
    return types


def counts_of(parts: Sequence[Part], commands: int) -> dict[str, int]:
    """What is left after rounding down goes to the largest remainders."""
    whole = sum(part.weight for part in parts)
    exact = {part.type: commands * part.weight / whole for part in parts}
    counts = {type_: int(count) for type_, count in exact.items()}
    by_remainder = sorted(exact, key=lambda type_: counts[type_] - exact[type_])
    for type_ in by_remainder[: commands - sum(counts.values())]:
        counts[type_] += 1
    return counts


def expected(parts: Sequence[Part], commands: int) -> Counter[End]:
    """How many come to which end."""
    ends: Counter[End] = Counter()
    for part in parts:
        ends[part.end] += counts_of(parts, commands)[part.type]
    return ends


def compared(
    wanted: Mapping[End, int], actual: Mapping[End, int], commands: int
) -> list[tuple[str, str, str]]:
    """A table: each end with its expected and its actual share."""
    ends = sorted({*wanted, *actual}, key=lambda end: (-wanted.get(end, 0), end.status, str(end)))
    return [
        (str(end), _share(wanted.get(end, 0), commands), _share(actual.get(end, 0), commands))
        for end in ends
        if wanted.get(end) or actual.get(end)
    ]


def _share(count: int, commands: int) -> str:
    return f"{count:,} ({100 * count / commands:.2f} %)"
