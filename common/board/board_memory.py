"""The memory of a board, as cells and as bytes, and the records in it that are sealed."""

import mmap
import os
import sys
from struct import Struct
from typing import Any
from zlib import crc32

from cmdbus.board.layout import CELL, NAME

#: A reader looks so often for a record that is not being written, the later times after
#: letting others run: the writer may have lost its processor in the middle.
_TRIES = 24
_SPINS = 4


class BoardMemory:
    """What a process sees of the board. Every writer and reader has the same two views."""

    __slots__ = ("_memory", "bytes", "cells")

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self.bytes = memoryview(memory)
        self.cells = self.bytes.cast("q")

    def close(self) -> None:
        """Whoever uses it afterwards gets a ValueError."""
        self.cells.release()
        self.bytes.release()
        self._memory.close()

    def write(self, at: int, body: bytes) -> None:
        """A sealed record, whose seal is the cell `at`."""
        start = (at + 1) * CELL
        self.bytes[start : start + len(body)] = body
        self.cells[at] = crc32(body)

    def read(self, at: int, record: Struct) -> tuple[Any, ...] | None:
        """None if nothing was written, or if it cannot be known what."""
        body = self.read_bytes(at, record.size)
        return None if body is None else record.unpack(body)

    def read_bytes(self, at: int, size: int) -> bytes | None:
        for attempt in range(_TRIES):
            raw = bytes(self.bytes[at * CELL : (at + 1) * CELL + size])
            seal, body = cell(raw), raw[CELL:]
            if crc32(body) == seal:
                return body
            if not seal:
                return None  # nothing was written since it was cleared
            pause(attempt)
        return None

    def zero(self, at: int, count: int) -> None:
        self.bytes[at * CELL : (at + count) * CELL] = bytes(count * CELL)


def cell(raw: bytes) -> int:
    return int.from_bytes(raw[:CELL], sys.byteorder)


def tries() -> range:
    return range(_TRIES)


def pause(attempt: int) -> None:
    if attempt >= _SPINS:
        os.sched_yield()


def encode_name(*names: str) -> bytes:
    """Each padded with NUL, which no name contains."""
    encoded = [name.encode("ascii") for name in names]
    assert all(0 < len(name) < NAME for name in encoded), f"no names: {names}"
    return b"".join(name.ljust(NAME, b"\0") for name in encoded)


def decode_name(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode("ascii", "replace")
