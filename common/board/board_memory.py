"""The memory of a board, as cells and as bytes, and the sealed records in it."""

import mmap
import os
import sys
from collections.abc import Callable
from typing import Protocol, TypeVar
from zlib import crc32

from cmdbus.board.layout import CELL, NAME
from cmdbus.board.record_format import format_of

#: Reads of a record that a writer is changing, before it counts as unknown.
_MAX_READS = 24
#: The first of these reads follow each other immediately. The others yield the processor first:
#: the writer may have lost it in the middle of a record.
_SPINS = 4

_Record = TypeVar("_Record")


class Cell:
    """A cell of a board or a seat as an attribute; `offset` counts from its owner's beginning."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def __get__(self, owner: "HasCells", owner_type: type) -> int:
        return owner.cells[owner.at + self._offset]

    def __set__(self, owner: "HasCells", value: int) -> None:
        owner.cells[owner.at + self._offset] = value


class HasCells(Protocol):
    """All cells of the board, and where those of this object begin."""

    cells: memoryview
    at: int


class BoardMemory:
    """What a process sees of the board. Every writer and reader has the same two views."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self.bytes = memoryview(memory)
        self.cells = self.bytes.cast("q")

    def close(self) -> None:
        """Any use after this raises ValueError."""
        self.cells.release()
        self.bytes.release()
        self._memory.close()

    def write(self, at: int, record: object) -> None:
        """Writes a dataclass as a sealed record, with the seal in the cell `at`."""
        self.write_bytes(at, format_of(type(record)).pack(record))

    def read(self, at: int, record: type[_Record]) -> _Record | None:
        """None if no record was written, or if it cannot be read whole."""
        record_format = format_of(record)
        body = self.read_bytes(at, record_format.struct.size)
        return None if body is None else record_format.unpack(body)

    def write_bytes(self, at: int, body: bytes) -> None:
        start = (at + 1) * CELL
        self.bytes[start : start + len(body)] = body
        self.cells[at] = crc32(body)

    def read_bytes(self, at: int, size: int) -> bytes | None:
        """None if no record was written since the memory was cleared, or if it is never whole."""
        raw = self.read_whole(at, CELL + size, lambda raw: _is_sealed(raw) or not cell(raw))
        return raw[CELL:] if raw and _is_sealed(raw) else None

    def read_whole(self, at: int, size: int, is_whole: Callable[[bytes], bool]) -> bytes | None:
        """None if the bytes are not whole at any of several reads."""
        for attempt in range(_MAX_READS):
            raw = bytes(self.bytes[at * CELL : at * CELL + size])
            if is_whole(raw):
                return raw
            if attempt >= _SPINS:
                os.sched_yield()
        return None

    def zero(self, at: int, count: int) -> None:
        self.bytes[at * CELL : (at + count) * CELL] = bytes(count * CELL)


def cell(raw: bytes) -> int:
    return int.from_bytes(raw[:CELL], sys.byteorder)


def encode_name(*names: str) -> bytes:
    """Each name is padded with NUL, which no name contains."""
    encoded = [name.encode("ascii") for name in names]
    assert all(0 < len(name) < NAME for name in encoded), f"no names: {names}"
    return b"".join(name.ljust(NAME, b"\0") for name in encoded)


def decode_name(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode("ascii", "replace")


def _is_sealed(raw: bytes) -> bool:
    return crc32(raw[CELL:]) == cell(raw)
