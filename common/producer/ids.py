"""Ids that the bus makes, recognisable as its own.

A time-ordered UUID: 48 bits of milliseconds, so that an index grows at its end;
version 8 (custom); the bus's mark, cb5; the variant and 62 random bits. Only ids with the mark,
when a caller brings one, cost a look into the tables: the others are in `identity`.
"""

import os
from uuid import UUID

from cmdbus.clock import time

_RANDOM_BYTES = 8
_MARK = (0x8CB5 << 64) | (0b10 << 62)
_RANDOM = (1 << 62) - 1


def new_id() -> UUID:
    return new_ids(1)[0]


def new_ids(count: int) -> list[UUID]:
    """Many at once share one look at the clock and one read of randomness."""
    stamp = (time.time_ns() // 1_000_000 << 80) | _MARK
    pool = os.urandom(_RANDOM_BYTES * count)
    ids = []
    for start in range(0, len(pool), _RANDOM_BYTES):
        rand = int.from_bytes(pool[start : start + _RANDOM_BYTES], "big")
        ids.append(UUID(int=stamp | (rand & _RANDOM)))
    return ids
