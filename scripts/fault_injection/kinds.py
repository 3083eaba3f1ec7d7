"""Faults and their kinds. Each kind is declared once, by the decorator `Kind` at what causes it.

What a new kind needs besides: in schedule.py the import of a new module, and a place in GROUPS; in
handlers.py a handler, if a command causes it. It changes the plans of known seeds.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fault_injection.rig import Rig


class Hurts(Enum):
    """The instances that have to work again after the fault."""

    ITS_INSTANCE = 1
    BEHIND_PROXY = 2
    ALL = 3


class Needs(Enum):
    """What not every run has, and why the fault is skipped there."""

    NOTHING = ""
    OWN_SERVER = "not without a server of its own"
    HOSTS = "not without --hosts"
    CONTROL_GROUPS = "not without control groups that this user may make"


class PromiseError(Exception):
    """Something was not as it is promised for while a fault lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of a plan."""

    number: int
    #: Seconds from the beginning of the run.
    at: float
    kind: str
    #: Index of the instance that it is for, if it is for one.
    instance: int
    #: Seconds.
    lasts: float
    #: From 0 to 1: chooses among what is there when its time comes.
    rand: float


#: Causes a fault and undoes it; may return a condition for the end of the recovery.
Cause = Callable[["Rig", Fault], object]


#: All kinds by name, in the order in which they are declared, and the function that causes each.
KINDS: dict[str, "Kind"] = {}
CAUSES: dict[str, Cause] = {}


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault. As a decorator it declares the function that causes it."""

    name: str
    about: str
    _: KW_ONLY
    #: Relative to the others', once each kind has had its turn.
    weight: float = 1
    #: Seconds for which it lasts: from, to.
    lasts: tuple[float, float] = (0.0, 0.0)
    #: Seconds by which the recovery may be later than after other faults.
    slow_by: float = 0.0
    hurts: Hurts = Hurts.ITS_INSTANCE
    needs: Needs = Needs.NOTHING
    #: Drawn only where a run asks for it, with no other fault near: it takes long, or would hide
    #: all others.
    apart: bool = False
    #: Drawn by weight only: a run does not give it a turn unless it asks for it.
    at_failpoint: bool = False

    def __call__(self, cause: Cause) -> Cause:
        assert self.name not in KINDS, self.name
        KINDS[self.name], CAUSES[self.name] = self, cause
        return cause
