"""What the registry of an app declares in the database when the app starts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cmdbus.breakers import BreakerDeclaration
from cmdbus.counting import count_of
from cmdbus.limits import Declaration
from cmdbus.schedules import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Declarations:
    limits: Sequence[Declaration] = ()
    breakers: Sequence[BreakerDeclaration] = ()
    schedules: Sequence[Schedule] = ()
    #: Those of the types that have any, by "domain type".
    tags: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        """How many of each there are."""
        counts = {
            "limit": self.limits,
            "breaker": self.breakers,
            "schedule": self.schedules,
            "tagged type": self.tags,
        }
        found = [count_of(len(each), noun) for noun, each in counts.items() if each]
        return ", ".join(found) or "nothing"
