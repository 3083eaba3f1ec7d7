"""Which instance runs what: the second one has a tag, and the first leaves it the last priority."""

#: A type of the common domain that needs the tag.
TAGGED, TAG = "Tagged", "gpu"
#: Priority of the commands that only the second one claims.
LAST = 10
_OPTIONS = (("--priority", f"0-{LAST - 1}"), ("--tag", TAG, "--age-share", "10"))
#: The second one.
SELECTED = "b"


def options_of(number: int) -> tuple[str, ...]:
    """Of an instance, by its number."""
    return _OPTIONS[min(number, 1)]
