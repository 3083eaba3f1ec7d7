"""Readers of single values. Pure."""

from base64 import b64decode
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from cmdbus.payloads.durations import duration_of
from cmdbus.payloads.mismatch import Mismatch, Reader, expected


def exactly(kind: type, what: str) -> Reader:
    """Reads values of a type that JSON has."""

    def read(data: Any) -> Any:
        if type(data) is kind:
            return data
        raise expected(what, data)

    return read


def _from_text(parse: Callable[[str], Any], what: str) -> Reader:
    def read(data: Any) -> Any:
        if type(data) is not str:
            raise expected(what, data)
        try:
            return parse(data)
        except (ValueError, OverflowError):
            raise Mismatch(f"must be {what}, and is another text") from None

    return read


def _moment(text: str) -> datetime:
    if len(text) <= len("2026-01-31"):
        raise ValueError("a date without a time")
    return datetime.fromisoformat(text)


def _read_float(data: Any) -> float:
    if type(data) is float:
        return data
    if type(data) is not int:
        raise expected("a number", data)
    try:
        return float(data)
    except OverflowError:
        raise Mismatch("must be a number that fits a float") from None


def _read_decimal(data: Any) -> Decimal:
    """Also from a number, by its shortest text: other languages send these."""
    if type(data) not in (str, int, float):
        raise expected("a decimal number as text", data)
    try:
        number = Decimal(data if type(data) is int else str(data))
    except ArithmeticError:
        number = Decimal("nan")
    if not number.is_finite():
        raise Mismatch("must be a decimal number as text, and is another text")
    return number


def as_is(data: Any) -> Any:
    return data


SCALARS: dict[Any, Reader] = {
    Any: as_is,
    object: as_is,
    None: exactly(type(None), "null"),
    type(None): exactly(type(None), "null"),
    bool: exactly(bool, "true or false"),
    int: exactly(int, "a whole number"),
    float: _read_float,
    str: exactly(str, "text"),
    Decimal: _read_decimal,
    UUID: _from_text(UUID, "a UUID as text"),
    datetime: _from_text(_moment, "a date with a time, in ISO 8601"),
    date: _from_text(date.fromisoformat, "a date in ISO 8601"),
    time: _from_text(time.fromisoformat, "a time of day in ISO 8601"),
    timedelta: _from_text(duration_of, "a duration in ISO 8601, like P1DT30S"),
    bytes: _from_text(lambda text: b64decode(text, validate=True), "bytes as base64"),
    list: exactly(list, "a list"),
    dict: exactly(dict, "an object"),
}
