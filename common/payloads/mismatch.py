"""Data that does not fit a type, and types that cannot be read from JSON. Pure."""

from collections.abc import Callable
from typing import Any

#: Reads a value from data that was decoded from JSON, or raises a Mismatch.
Reader = Callable[[Any], Any]
#: Errors by which a model says what becomes of its command: readers let them out.
Outcomes = tuple[type[Exception], ...]


class Mismatch(Exception):  # it is a finding about the data
    """`reason` reads on after the place: "must be text, and is null"."""

    def __init__(self, reason: str, *place: str | int) -> None:
        super().__init__(reason)
        self.reason = reason
        #: Keys and indexes from the outermost.
        self.place = [*place]

    def inside(self, key: str | int) -> "Mismatch":
        self.place.insert(0, key)
        return self

    def of(self, what: str) -> str:
        """The sentence about data that is called so."""
        steps = "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in self.place)
        shortened = steps if len(steps) <= 200 else f"{steps[:100]}...{steps[-90:]}"
        return f"{what}{shortened} {self.reason}"

    def __str__(self) -> str:
        return self.of("data")


class UnreadableTypeError(ValueError):
    """No value of this type can be read from JSON; `str` says why, and what to do."""


def expected(what: str, data: object) -> Mismatch:
    """Without the value: it may be confidential."""
    return Mismatch(f"must be {what}, and is {kind_of(data)}")


def refused(model: str, error: Exception) -> Mismatch:
    """By the constructor of a model, whatever that raises; but a process without memory has not
    looked at the data."""
    if isinstance(error, MemoryError):
        raise error
    is_plain = isinstance(error, ValueError | AssertionError)
    name = "" if is_plain else f"{type(error).__name__}: "
    return Mismatch(f"is not valid for {model}: {name}{error}")


def kind_of(data: object) -> str:
    match data:
        case None:
            return "null"
        case bool():
            return "true" if data else "false"
        case str():
            return "text"
        case int():
            return "a number"
        case float():
            return "a number with a decimal point"
        case dict():
            return "an object"
    return "a list"
