"""The checks before a supervisor starts, and their findings. Pure."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum

#: Names of checks: what limits, breakers, schedules and tags the app has, and that a start has
#: declared them.
LIMITS, BREAKERS, SCHEDULES, TAGS = "limits", "breakers", "schedules", "tags"
DECLARED = "declaration"


class Finding(StrEnum):
    """How a check ended; later ones are worse."""

    OK = "ok"
    #: It can start, but an operator should know.
    WARNING = "warning"
    #: The database cannot be reached, or not yet: the supervisor waits for it.
    AWAY = "away"
    #: A restart would find the same.
    FATAL = "fatal"


@dataclass(frozen=True, slots=True)
class Check:
    """One check and its finding, for people to read. Holds no secret."""

    name: str
    finding: Finding
    sentence: str
    #: The advice; empty if there is nothing to do, or the sentence has it.
    fix: str = ""
    #: The number of command types that the app handles.
    types: int = 0

    def to_dict(self) -> dict[str, object]:
        """For JSON, without empty values."""
        return {name: value for name, value in asdict(self).items() if value}

    def __str__(self) -> str:
        return f"{self.name}: {self.sentence}" + (f"; {self.fix}" if self.fix else "")


def worst(checks: Iterable[Check]) -> Finding:
    order = list(Finding)
    return max((check.finding for check in checks), key=order.index, default=Finding.OK)


def sentences(checks: Iterable[Check], finding: Finding) -> str:
    """The checks with this finding; empty if there are none."""
    return "; ".join(str(check) for check in checks if check.finding is finding)
