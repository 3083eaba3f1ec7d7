"""Numbers with their nouns, for messages. Pure."""


def count_of(count: int, noun: str = "command", plural: str = "s") -> str:
    """The noun gets the ending `plural` unless the count is 1."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{plural}"
