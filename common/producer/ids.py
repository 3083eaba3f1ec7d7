"""Ids that the bus makes, recognisable as its own.

A time-ordered UUID: 48 bits of milliseconds, so that an index grows at its end; version 8
(custom); the bus's mark, cb5; the variant and 62 random bits. Where a caller brings an id with the
mark, the tables are searched for it: the others are in `identity`.
"""

import os
import secrets
import struct
from datetime import UTC, datetime
from uuid import UUID, SafeUUID

from cmdbus.clock import time

_MARK = (0x8CB5 << 64) | (0b10 << 62)
_MARK_BITS = (0xFFFF << 64) | (0b11 << 62)
_RANDOM = (1 << 62) - 1
#: Since 1970, in the years that Python knows.
_MAX_SECONDS = 250_000_000_000


def new_id() -> UUID:
    return new_ids(1)[0]


def new_ids(count: int) -> list[UUID]:
    """Together they take one read of the clock and one of randomness."""
    stamp = (time.time_ns() // 1_000_000 << 80) | _MARK
    drawn = struct.unpack(f"{count}Q", os.urandom(8 * count))
    return [_uuid(stamp | (rand & _RANDOM)) for rand in drawn]


def time_of(id_: UUID) -> datetime | None:
    """When the bus made it, by the clock of its sender; None for the id of a caller."""
    if id_.int & _MARK_BITS != _MARK:
        return None
    seconds, milliseconds = divmod(id_.int >> 80, 1000)
    if not seconds < _MAX_SECONDS:
        return None
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=1000 * milliseconds)


def new_call() -> int:
    """The number of a call, which is repeated once if its connection dies."""
    return secrets.randbits(63)


def _uuid(value: int) -> UUID:
    """The same as UUID(int=value), in a third of the time."""
    made = object.__new__(UUID)
    object.__setattr__(made, "int", value)
    object.__setattr__(made, "is_safe", SafeUUID.unknown)
    return made
