"""Where a search goes on: an opaque text that a client keeps and gives back. Pure."""

import base64
import binascii
import hashlib
import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from cmdbus.checks import check_name, time_of_text

_MAX_CHARACTERS = 4000
_WRONG = "after must be the `next` of a search with the same conditions"
_MAX_NUMBER = 2**63 - 1


class Position(NamedTuple):
    """The last row that a walk has given; which of its values count depends on the walk's order."""

    created_at: datetime
    #: When it is due, came to troubleshooting or finished.
    at: datetime | None
    domain: str
    command_id: UUID
    #: Its id, or its position in a lane; else 0.
    number: int


def digest(conditions: Mapping[str, object]) -> str:
    """Tells searches with different conditions apart."""
    text = repr(sorted((name, str(value)) for name, value in conditions.items() if value))
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]


def encode(conditions: str, positions: Mapping[str, Position | None]) -> str:
    """`conditions`: their digest. `positions`: of the walks that have not ended; None: of one that
    has given nothing."""
    walks = {name: last and _plain(last) for name, last in positions.items()}
    text = json.dumps([conditions, walks], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def decode(conditions: str, cursor: str, known: Collection[str]) -> dict[str, Position | None]:
    """Positions by walk; a ValueError if a walk is not among those that are known."""
    try:
        if not isinstance(cursor, str) or len(cursor) > _MAX_CHARACTERS:
            raise ValueError
        text = base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        found, positions = json.loads(text)
        if found != conditions or not positions:
            raise ValueError
        if not positions.keys() <= {*known}:
            raise ValueError
        return {name: last and _position(*last) for name, last in positions.items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, binascii.Error):
        raise ValueError(_WRONG) from None


def _plain(position: Position) -> list[Any]:
    at = position.at and position.at.astimezone(UTC).isoformat()
    created_at = position.created_at.astimezone(UTC).isoformat()
    return [created_at, at, position.domain, position.command_id.hex, position.number]


def _position(created_at: str, at: str | None, domain: str, id_: str, number: int) -> Position:
    check_name("domain", domain)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= _MAX_NUMBER:
        raise ValueError
    due_at = None if at is None else _time(at)
    return Position(_time(created_at), due_at, domain, UUID(hex=id_), number)


def _time(text: str) -> datetime:
    time = time_of_text(text)
    if time is None:
        raise ValueError
    return time.astimezone(UTC)
