"""How a dataclass lies on the board: a cell for each field, in the order of the fields. Pure.

int            the number
int | None     the number; None if it is not above 0
float | None   seconds, as whole nanoseconds; None if they are not above 0
bool           1 is true
UUID           two cells
an IntEnum     its number; an unknown number is the member 0, or None if the field may be None
a dataclass    the cells of its fields
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from enum import IntEnum
from operator import attrgetter
from struct import Struct
from typing import Any, get_args, get_type_hints
from uuid import UUID

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class _Cell:
    format: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]

    def write(self, value: Any) -> Iterable[Any]:
        yield self.encode(value)

    def read(self, cells: Iterator[Any]) -> Any:
        return self.decode(next(cells))


_CELLS: dict[Any, _Cell] = {
    int: _Cell("q", int, int),
    int | None: _Cell("q", lambda value: value or 0, lambda cell: cell if cell > 0 else None),
    float | None: _Cell(
        "q", lambda value: int((value or 0) * _NS), lambda cell: cell / _NS if cell > 0 else None
    ),
    bool: _Cell("q", int, lambda cell: cell == 1),
    UUID: _Cell("16s", attrgetter("bytes"), lambda cell: UUID(bytes=cell)),
}


class RecordFormat:
    def __init__(self, record: type) -> None:
        hints = get_type_hints(record)
        self._record = record
        self.parts = {field.name: _part(hints[field.name]) for field in fields(record)}
        self.format: str = "".join(part.format for part in self.parts.values())
        self.struct = Struct("=" + self.format)

    def pack(self, record: object) -> bytes:
        return self.struct.pack(*self.write(record))

    def unpack(self, body: bytes) -> Any:
        return self.read(iter(self.struct.unpack(body)))

    def write(self, record: object) -> Iterable[Any]:
        for name, part in self.parts.items():
            yield from part.write(getattr(record, name))

    def read(self, cells: Iterator[Any]) -> Any:
        return self._record(**{name: part.read(cells) for name, part in self.parts.items()})


_FORMATS: dict[type, RecordFormat] = {}


def format_of(record: type) -> RecordFormat:
    if record not in _FORMATS:
        _FORMATS[record] = RecordFormat(record)
    return _FORMATS[record]


def fields_of(record: object, base: type) -> dict[str, Any]:
    """The fields that `record` has from `base`, for a view that has them, too."""
    return {name: getattr(record, name) for name in format_of(base).parts}


def _part(hint: Any) -> _Cell | RecordFormat:
    if hint in _CELLS:
        return _CELLS[hint]
    kind, *optional = get_args(hint) or (hint,)
    if not issubclass(kind, IntEnum):
        return format_of(kind)
    members = {member.value: member for member in kind}
    default = None if optional else members[0]
    return _Cell("q", int, lambda cell: members.get(cell, default))
