"""Readers of what is one of several: literals, members of an Enum, arms of a union. Pure."""

from collections.abc import Mapping, Sequence
from enum import Enum, Flag
from typing import Any

from cmdbus.payloads.forms import form_of
from cmdbus.payloads.mismatch import Mismatch, Reader, UnreadableTypeError, expected

_SCALARS = (str, int, float, bool, type(None))


def literal_reader(values: Sequence[Any]) -> Reader:
    """Finds the value, or the member of an Enum, that has the form of the data."""
    known = {_key(value, f"Literal[{value!r:.80}]"): value for value in values}
    shown = ", ".join(repr(value) for _, value in known)

    def read(data: Any) -> Any:
        try:
            return known[type(data), data]
        except (KeyError, TypeError):
            what = shown if len(known) == 1 else f"one of {shown}"
            raise Mismatch(f"must be {what:.200}") from None

    return read


def enum_reader(kind: type[Enum]) -> Reader:
    if issubclass(kind, Flag):
        return _flag_reader(kind)
    return literal_reader([*kind])


def union_reader(arms: Sequence[Reader], names: str) -> Reader:
    """The first arm that fits, in the order of the declaration."""

    def read(data: Any) -> Any:
        inside = []
        for read_arm in arms:
            try:
                return read_arm(data)
            except Mismatch as mismatch:
                if mismatch.place:
                    inside.append(mismatch)
        # The one arm that `data` can be meant for knows better what does not fit.
        raise inside[0] if len(inside) == 1 else expected(names, data)

    return read


def optional_reader(read_value: Reader) -> Reader:
    return lambda data: None if data is None else read_value(data)


def object_or_other_reader(of_object: Reader, of_other: Reader) -> Reader:
    """Only `of_object` reads objects, so that a Mismatch names what is wrong with its fields."""
    return lambda data: of_object(data) if type(data) is dict else of_other(data)


def tagged_reader(tag: str, by_value: Mapping[str, Reader]) -> Reader:
    """Reads objects of several types, which differ in the value of the field `tag`."""
    read_tag = literal_reader([*by_value])

    def read(data: Any) -> Any:
        if type(data) is not dict:
            raise expected("an object", data)
        if tag not in data:
            raise Mismatch("is missing", tag)
        try:
            value = read_tag(data[tag])
        except Mismatch as mismatch:
            raise mismatch.inside(tag) from None
        return by_value[value](data)

    return read


def _key(value: Any, where: str) -> tuple[type, Any]:
    """The form of a value, with its type, because True equals 1."""
    form = form_of(value)
    form = form_of(form)  # The value of a member may have a form of its own.
    if type(form) not in _SCALARS:
        raise UnreadableTypeError(
            f"{where} is not read from JSON: values of an Enum and of a Literal are text, numbers "
            f"or other single values"
        )
    return type(form), form


def _flag_reader(kind: type[Flag]) -> Reader:
    """Members may be combined."""

    def read(data: Any) -> Flag:
        if type(data) is not int:
            raise expected("a whole number", data)
        try:
            found = kind(data)
        except ValueError:
            found = None
        if not isinstance(found, kind):
            raise Mismatch(f"must be a combination of {kind.__name__}'s members")
        return found

    return read
