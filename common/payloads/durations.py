"""ISO 8601 durations, which the standard library lacks. Pure."""

import re
from datetime import timedelta

_DURATION = re.compile(
    r"(?P<sign>[-+]?)P(?!\Z)(?:(?P<weeks>\d+)W)?(?:(?P<days>\d+)D)?"
    r"(?:T(?!\Z)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?"
    r"(?:(?P<seconds>\d+)(?:[.,](?P<fraction>\d{1,6}))?S)?)?",
    re.ASCII,
)
_UNITS = ("weeks", "days", "hours", "minutes", "seconds")


def duration_text(duration: timedelta) -> str:
    """Exact, like P1DT3600.5S. No years and months, whose lengths differ."""
    sign, size = ("-", -duration) if duration < timedelta() else ("", duration)
    fraction = f".{size.microseconds:06}".rstrip("0") if size.microseconds else ""
    time = f"T{size.seconds}{fraction}S" if size.seconds or fraction or not size.days else ""
    return f"{sign}P{f'{size.days}D' if size.days else ''}{time}"


def duration_of(text: str) -> timedelta:
    """A ValueError or an OverflowError if it is none."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError("not a duration")
    units = {unit: int(found[unit]) for unit in _UNITS if found[unit]}
    micros = int((found["fraction"] or "").ljust(6, "0"))
    size = timedelta(**units, microseconds=micros)
    return -size if found["sign"] == "-" else size
