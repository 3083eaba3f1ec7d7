"""The number of connections that a supervisor needs, and whether the server has them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from cmdbus.readiness import Check, Finding

_NAME = "connections"
#: Connections of the steward: one that listens and one that works.
_STEWARD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    procs: int
    threads: int
    #: Connections for housekeeping, in addition to the threads'.
    housekeeping: int

    @property
    def always(self) -> int:
        return self.procs * self.threads + _STEWARD + self.housekeeping

    @property
    def peak(self) -> int:
        """While a process and its replacement both run."""
        return self.always + self.threads

    def __str__(self) -> str:
        return (
            f"{self.procs} x {self.threads} threads + {_STEWARD} for the steward + "
            f"{self.housekeeping} for housekeeping + {self.threads} for a replacement = "
            f"{self.peak} connections"
        )

    def fitting(self, limit: int) -> str:
        """The options that fit below a limit."""
        free = limit - _STEWARD - self.housekeeping
        if (procs := free // self.threads - 1) >= 1:
            return f"--procs {procs}"
        if (threads := free // 2) >= 1:
            return f"--procs 1 --threads {threads}"
        return ""


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound on connections; `others`: sessions of other programs now."""

    #: The bound, for people to read.
    name: str
    size: int
    others: int
    #: How to raise it.
    fix: str

    @property
    def free(self) -> int:
        return self.size - self.others


def check_budget(need: Need, limits: Sequence[Limit], other_nodes: int) -> Check:
    """Fatal only if it would not fit into an empty server: other sessions may end."""
    smallest = min(limits, key=lambda limit: limit.size)
    if need.always > smallest.size:
        sentence = f"{need}, and {smallest.name}"
        return Check(_NAME, Finding.FATAL, sentence, _advice(need, smallest, smallest.size))
    tightest = min(limits, key=lambda limit: limit.free)
    free = tightest.free
    some = 0 < other_nodes <= tightest.others
    nodes = f", {other_nodes} of them of other supervisors" if some else ""
    sentence = f"{need}; {tightest.name}, of which others use {tightest.others}{nodes}"
    if need.peak <= free:
        return Check(_NAME, Finding.OK, sentence)
    fitting = need.always <= free
    lacking = "a replacement may have to wait" if fitting else "not all of these connections fit"
    return Check(_NAME, Finding.WARNING, f"{sentence}: {lacking}", _advice(need, tightest, free))


def _advice(need: Need, limit: Limit, free: int) -> str:
    fitting = need.fitting(free)
    return f"run with {fitting}, which fits, or {limit.fix}" if fitting else limit.fix
