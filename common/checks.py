"""Checks of callers' arguments. Each returns its value, or raises a ValueError that begins with
`what`. Pure."""

import difflib
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TypeVar
from uuid import UUID

T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,99}\Z")
MAX_SECONDS = 100 * 365 * 86400
#: The largest of PostgreSQL's integer that may still be added one.
MAX_WHOLE = 2**31 - 2
MAX_TEXT = 2000
MAX_OPERATOR = 200
MAX_KEY = 200
#: Characters of the name of a queue of PGMQ.
MAX_QUEUE = 47
#: Signs that PGMQ refuses in a name.
_IN_NO_QUEUE = re.compile(r"[$;'\0]|--")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}\Z")


def check_name(what: str, name: str) -> str:
    """A domain's or type's name."""
    if not isinstance(name, str) or not _is_name(name):
        raise ValueError(
            f"{what} must be a letter and up to 99 more of A-Z a-z 0-9 _ . : - (ASCII), "
            f"not {shown(name)}{_foreign(name)}"
        )
    # A subclass may print as something else than it is.
    return name if type(name) is str else str.__str__(name)


def _foreign(name: object) -> str:
    """Some letters look like those of ASCII."""
    others = re.search(r"[^\x00-\x7f]", name) if isinstance(name, str) else None
    return f", where {others[0]!r} is not ASCII" if others else ""


@lru_cache(maxsize=1024)
def _is_name(name: str) -> bool:
    return _NAME.match(name) is not None


def check_schema(name: str) -> str:
    """A schema's name: shorter than PostgreSQL's limit, because channels are named after it."""
    if not isinstance(name, str) or not _SCHEMA.match(name):
        raise ValueError(f"schema must be a-z or _ and up to 47 of a-z 0-9 _, not {shown(name)}")
    if name.startswith("pg_"):
        raise ValueError(f"schema must not start with pg_, as {name!r} does: PostgreSQL's own do")
    return name


def check_queue(name: str) -> str:
    """The name of a queue of PGMQ, as PGMQ takes it: case does not matter."""
    if (
        not isinstance(name, str)
        or not 1 <= len(name) <= MAX_QUEUE
        or _IN_NO_QUEUE.search(name)
        or not _is_encodable(name)
    ):
        raise ValueError(
            f"queue must be text of 1 to {MAX_QUEUE} characters without $ ; ' -- and NUL, "
            f"not {shown(name)}"
        )
    return name if type(name) is str else str.__str__(name)


def check_id(what: str, value: UUID | str) -> UUID:
    """A UUID, also given as text."""
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f"{what} must be a UUID, not {shown(value)}") from None


def check_seconds(what: str, value: float) -> float:
    """A positive, finite number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{what} must be a number of seconds, not {shown(value)}")
    if not 0 < value < float("inf"):
        raise ValueError(f"{what} must be more than 0 seconds and finite, not {shown(value)}")
    if value > MAX_SECONDS:
        raise ValueError(f"{what} must be at most {MAX_SECONDS} seconds, not {shown(value)}")
    return float(value)


def seconds_of(value: object) -> float | None:
    """Of a number or a timedelta; None for anything else."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value


def check_flag(what: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{what} must be True or False, not {shown(value)}")
    return value


def check_text(what: str, value: str | None) -> str | None:
    """An operator's remark, or None."""
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > MAX_TEXT or "\0" in value:
        raise ValueError(
            f"{what} must be text of at most {MAX_TEXT} characters without NUL, not {shown(value)}"
        )
    return value.encode("utf-8", "backslashreplace").decode()


def check_key(what: str, value: str | None) -> str | None:
    """A sender's text by which commands are counted or are unique, or None."""
    if value is None:
        return None
    if (
        not isinstance(value, str)
        or not 1 <= len(value) <= MAX_KEY
        or "\0" in value
        or not _is_encodable(value)
    ):
        is_long = isinstance(value, str) and len(value) > MAX_KEY
        length = f", which has {len(value)}" if is_long else ""
        raise ValueError(
            f"{what} must be text of 1 to {MAX_KEY} characters without NUL, "
            f"not {shown(value)}{length}"
        )
    return value if type(value) is str else str.__str__(value)


def _is_encodable(text: str) -> bool:
    """Not with half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_operator(operator: str) -> str:
    """The operator's name: a text that is not blank."""
    text = check_text("operator", operator)
    if text is None or not text.strip() or len(text) > MAX_OPERATOR:
        raise ValueError(
            f"operator must be 1 to {MAX_OPERATOR} characters that name the operator, "
            f"not {shown(operator)}"
        )
    return text


def check_whole(what: str, value: object, least: int, most: int = MAX_WHOLE) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(
            f"{what} must be a whole number from {least} to {most}, not {shown(value)}"
        )
    return int(value)


def check_iterable(what: str, values: Iterable[T], kind: str) -> Iterable[T]:
    try:
        iter(values)
    except TypeError:
        found = type(values).__name__
        raise ValueError(f"{what} must be an iterable of {kind}, not {found}") from None
    return values


def check_aware(what: str, time: datetime | None) -> datetime | None:
    """A datetime with a time zone, or None."""
    if time is not None and (not isinstance(time, datetime) or time.utcoffset() is None):
        raise ValueError(
            f"{what} must be an aware datetime, for example datetime.now(UTC), not {shown(time)}"
        )
    try:
        return None if time is None else time.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{what} is out of range in UTC: {shown(time)}") from None


def time_of_text(text: object) -> datetime | None:
    """The time that a text in ISO 8601 with an offset says; None for anything else."""
    try:
        time = datetime.fromisoformat(text)  # type: ignore[arg-type]  # refused below
    except (ValueError, TypeError):
        return None
    return None if time.utcoffset() is None else time


def shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= 120 else f"{text[:117]}..."


def check_options(what: str, options: Iterable[str], known: Iterable[str]) -> None:
    """Raises a TypeError, as Python does for an unknown argument."""
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known) or f"there are {', '.join(known)}"
            raise TypeError(f"{what} has no option {name!r}: {hint}")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The question that names the nearest of `names`; empty if none is near."""
    near = difflib.get_close_matches(name, sorted(names), n=1)
    return f"did you mean {near[0]!r}?" if near else ""
