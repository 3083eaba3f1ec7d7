"""Unique keys of commands that wait. Pure."""

from datetime import timedelta
from typing import NamedTuple

from cmdbus.checks import MAX_SECONDS, check_key, seconds_of, shown

ON_CONFLICT = REJECT, EXISTING, REPLACE = "reject", "existing", "replace"
UNTIL = FINISHED, STARTED = "finished", "started"
#: Seconds.
MIN_PERIOD = 0.001


class Unique(NamedTuple):
    """How a command is unique, as the schema's take_unique reads it."""

    unique_key: str
    on_conflict: str
    #: "finished", "started" or a number of seconds.
    unique_until: str


def check_unique(
    unique: str | None, on_conflict: str, unique_until: str | float | timedelta
) -> Unique:
    """The arguments of a send; one of them is not its default."""
    if unique is None:
        raise ValueError("on_conflict and unique_until go with unique: give a key")
    if on_conflict not in ON_CONFLICT:
        known = "'reject', 'existing' or 'replace'"
        raise ValueError(f"on_conflict must be {known}, not {shown(on_conflict)}")
    key = check_key("unique", unique)
    assert key is not None
    return Unique(key, on_conflict, _check_until(unique_until))


def _check_until(until: str | float | timedelta) -> str:
    if isinstance(until, str) and until in UNTIL:
        return until
    seconds = seconds_of(until)
    if seconds is None or not MIN_PERIOD <= seconds <= MAX_SECONDS:  # NaN neither
        raise ValueError(
            f"unique_until must be 'finished', 'started', or from {MIN_PERIOD} to {MAX_SECONDS} "
            f"seconds (or a timedelta), not {shown(until)}"
        )
    return f"{seconds:.3f}"
