"""Readers of lists, tuples and dicts. Pure."""

from collections.abc import Sequence
from typing import Any

from cmdbus.payloads.mismatch import Mismatch, Reader, expected


def list_reader(of_item: Reader) -> Reader:
    def read(data: Any) -> list[Any]:
        if type(data) is not list:
            raise expected("a list", data)
        return _items(data, [of_item] * len(data))

    return read


def tuple_reader(of_item: Reader) -> Reader:
    """Reads tuples of any length."""
    read_list = list_reader(of_item)
    return lambda data: tuple(read_list(data))


def fixed_tuple_reader(of_items: Sequence[Reader]) -> Reader:
    def read(data: Any) -> tuple[Any, ...]:
        if type(data) is not list:
            raise expected(f"a list of {len(of_items)}", data)
        if len(data) != len(of_items):
            raise Mismatch(f"must be a list of {len(of_items)}, and has {len(data)}")
        return tuple(_items(data, of_items))

    return read


def open_tuple_reader(first: list[Reader], of_item: Reader, last: list[Reader]) -> Reader:
    """Reads tuples of any length that begin and end with items of other types."""
    least = len(first) + len(last)

    def read(data: Any) -> tuple[Any, ...]:
        if type(data) is not list:
            raise expected(f"a list of {least} or more", data)
        if len(data) < least:
            raise Mismatch(f"must be a list of {least} or more, and has {len(data)}")
        return tuple(_items(data, [*first, *[of_item] * (len(data) - least), *last]))

    return read


def dict_reader(of_key: Reader, of_item: Reader) -> Reader:
    def read(data: Any) -> dict[Any, Any]:
        if type(data) is not dict:
            raise expected("an object", data)
        found = {}
        for key, item in data.items():
            try:
                found[of_key(key)] = of_item(item)
            except Mismatch as mismatch:
                raise mismatch.inside(key) from None
        return found

    return read


def _items(data: list[Any], readers: Sequence[Reader]) -> list[Any]:
    found = []
    for index, (item, read) in enumerate(zip(data, readers, strict=True)):
        try:
            found.append(read(item))
        except Mismatch as mismatch:
            raise mismatch.inside(index) from None
    return found
