"""Where a page goes on: behind the last record of the one before, which a text names that a client
keeps and gives back. Pure."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from cmdbus.checks import shown, time_of_text


def cursor_of(at: datetime, *names: object) -> str:
    """`names` tell records of one time apart."""
    return " ".join([at.isoformat(), *map(str, names)])


def position_of(cursor: str | None, *read: Callable[[str], Any]) -> tuple[Any, ...]:
    """The time and the names, each as its function of `read` has read it; all None at the start."""
    if cursor is None:
        return None, *(None for _ in read)
    try:
        at, *names = cursor.split(" ")
        if (time := time_of_text(at)) is not None:
            return time, *(each(name) for each, name in zip(read, names, strict=True))
    except (ValueError, AttributeError):
        pass
    raise ValueError(f"after must be the next of a page, not {shown(cursor)}")
