"""How many connections a supervisor needs, and whether there is room for them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from cmdbus.readiness import Check, Finding

_NAME = "connections"
#: The steward's: one that listens and one that works.
_STEWARD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one supervisor wants."""

    procs: int
    threads: int
    #: For relief, beside the threads.
    housekeeping: int

    @property
    def always(self) -> int:
        return self.procs * self.threads + _STEWARD + self.housekeeping

    @property
    def most(self) -> int:
        """While a replacement and the process that it replaces are both there."""
        return self.always + self.threads

    def __str__(self) -> str:
        return (
            f"{self.procs} x {self.threads} threads + {_STEWARD} for the steward + "
            f"{self.housekeeping} for relief + {self.threads} for a replacement = "
            f"{self.most} connections"
        )

    def fitting(self, limit: int) -> str:
        """The options of what a limit has room for."""
        free = limit - _STEWARD - self.housekeeping
        if (procs := free // self.threads - 1) >= 1:
            return f"--procs {procs}"
        if (threads := free // 2) >= 1:
            return f"--procs 1 --threads {threads}"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A bound on connections; `others` is how many there are now that are not ours."""

    #: For people: what bounds.
    name: str
    size: int
    others: int
    #: What raises it.
    fix: str


def judge(need: Need, limits: Sequence[Limit], other_nodes: int) -> Check:
    """Fatal is only what would not fit into an empty server: others may leave."""
    smallest = min(limits, key=lambda limit: limit.size)
    if need.always > smallest.size:
        sentence = f"{need}, and {smallest.name}"
        return Check(_NAME, Finding.FATAL, sentence, _advice(need, smallest, smallest.size))
    tightest = min(limits, key=_free)
    free = _free(tightest)
    sentence = f"{need}; {_used(tightest, other_nodes)}"
    if need.most <= free:
        return Check(_NAME, Finding.OK, sentence)
    fitting = need.always <= free
    lacking = "a replacement may have to wait" if fitting else "not all of ours fit beside them"
    return Check(_NAME, Finding.WARNING, f"{sentence}: {lacking}", _advice(need, tightest, free))


def _free(limit: Limit) -> int:
    return limit.size - limit.others


def _advice(need: Need, limit: Limit, free: int) -> str:
    fitting = need.fitting(free)
    return f"run with {fitting}, which fits, or {limit.fix}" if fitting else limit.fix


def _used(limit: Limit, other_nodes: int) -> str:
    some = 0 < other_nodes <= limit.others
    nodes = f", {other_nodes} of them of other supervisors" if some else ""
    return f"{limit.name}, of which others use {limit.others}{nodes}"
