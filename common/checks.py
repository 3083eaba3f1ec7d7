"""What callers may give: names, ids, numbers, times. Each check returns its value, or
raises a ValueError that begins with `what`. Pure."""

import math
import re
from datetime import datetime
from functools import lru_cache
from uuid import UUID

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,99}\Z")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}\Z")


def check_name(what: str, name: str) -> str:
    """A domain's or type's name, unchanged; the ValueError begins with `what`."""
    if not isinstance(name, str) or not _is_name(name):
        raise ValueError(
            f"{what} must be a letter and up to 99 more of A-Z a-z 0-9 _ . : - (ASCII), "
            f"not {_shown(name)}"
        )
    return name


@lru_cache(maxsize=1024)
def _is_name(name: str) -> bool:
    return _NAME.match(name) is not None


def check_schema(name: str) -> str:
    """A schema's name: shorter than PostgreSQL's limit, because channels are named after it."""
    if not isinstance(name, str) or not _SCHEMA.match(name):
        raise ValueError(f"schema must be a-z or _ and up to 47 of a-z 0-9 _, not {_shown(name)}")
    if name.startswith("pg_"):
        raise ValueError(f"schema must not start with pg_, as {name!r} does: PostgreSQL's own do")
    return name


def check_id(what: str, value: UUID | str) -> UUID:
    """A UUID, also given as text."""
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f"{what} must be a UUID, not {_shown(value)}") from None


def check_seconds(what: str, value: float) -> float:
    """A positive, finite number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{what} must be a number of seconds, not {_shown(value)}")
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{what} must be more than 0 seconds and finite, not {value!r}")
    return float(value)


def check_whole(what: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
        raise ValueError(f"{what} must be a whole number of at least {least}, not {_shown(value)}")
    return value


def check_aware(what: str, time: datetime | None) -> datetime | None:
    """A datetime with a time zone, or None."""
    if time is not None and (not isinstance(time, datetime) or time.utcoffset() is None):
        raise ValueError(
            f"{what} must be an aware datetime, for example datetime.now(UTC), not {_shown(time)}"
        )
    return time


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
