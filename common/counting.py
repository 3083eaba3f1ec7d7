"""Numbers with their nouns or units, for messages. Pure."""

#: Units of more than a minute, with their seconds.
_UNITS = {"d": 86400, "h": 3600}


def count_of(count: int, noun: str = "command", plural: str = "s") -> str:
    """The noun gets the ending `plural` unless the count is 1."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{plural}"


def seconds_text(seconds: float) -> str:
    """All of it: 0.5 s, 90 s, 2h, 400d."""
    for unit, size in _UNITS.items():
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.15g} s"
