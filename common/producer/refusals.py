"""Why a change of a limit, breaker, schedule or bridge was refused. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from cmdbus.checks import did_you_mean
from cmdbus.errors import InvalidOperationError
from cmdbus.limits import title


@dataclass(frozen=True, slots=True)
class Refusals:
    """The sentences of one kind of thing that operators change by name."""

    #: Says, before a name, that there is nothing of that name.
    unknown: str
    #: Says where the names are, if none is like it.
    names_shown_by: str
    #: Other reasons, by what the schema's functions return; {} is the name.
    others: Mapping[str, str]

    def error(
        self, refusal: str, name: str, read_names: Callable[[], Iterable[str]]
    ) -> InvalidOperationError:
        """For what a function of the schema has returned."""
        if refusal == "unknown":
            return self.unknown_error(name, read_names())
        return InvalidOperationError(self.others[refusal].format(title(name)))

    def unknown_error(self, name: str, names: Iterable[str]) -> InvalidOperationError:
        hint = did_you_mean(name, names) or self.names_shown_by
        return InvalidOperationError(f"{self.unknown} {name!r}: {hint}")
