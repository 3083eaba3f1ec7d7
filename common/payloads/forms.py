"""The JSON forms of values that JSON lacks.

    datetime, date, time    ISO 8601
    timedelta               ISO 8601 duration, like P1DT3600.5S
    Decimal, UUID           text
    bytes                   base64
    Enum                    the form of its value
    dataclass               an object of the fields that its constructor takes
    pydantic model          as it dumps itself, under names by which it validates

All other values stay as they are, and are refused if they are not JSON. Pure.
"""

from base64 import b64encode
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from math import nan
from typing import Any
from uuid import UUID

from cmdbus.payloads.durations import duration_text
from cmdbus.payloads.pydantic_models import dump, is_pydantic

#: A function of the application, which returns the form of a value that has none here; a TypeError
#: if it knows none either.
Encoder = Callable[[Any], Any]

_PLAIN = (str, int, float, bool, type(None))


class TooDeepError(ValueError):
    """The value is nested too deeply: it may contain itself."""


def plain(value: Any, encoder: Encoder | None = None, *, room: int, read_again: bool = True) -> Any:
    """The value with the forms of all values in it that JSON lacks; what has none stays as it is.
    A TooDeepError if containers are nested deeper than `room` levels. `read_again`: see `dump`."""
    if type(value) in _PLAIN:
        return value

    def inside(item: Any) -> Any:
        return plain(item, encoder, room=room - 1, read_again=read_again)

    if isinstance(value, dict | list | tuple):
        if room == 0:
            raise TooDeepError
        if isinstance(value, dict):
            return {key: inside(item) for key, item in value.items()}
        return [inside(item) for item in value]
    form = form_of(value, read_again)
    if form is value and encoder is not None:
        try:
            form = encoder(value)
        except TypeError:
            return value
    return value if form is value else plain(form, encoder, room=room, read_again=read_again)


def form_of(value: Any, read_again: bool = True) -> Any:
    """The form of this value, in which values may need one, too; itself if it has none."""
    match value:
        case Enum():
            return value.value
        case Decimal():
            return str(value) if value.is_finite() else nan
        case UUID():
            return str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return duration_text(value)
        case bytes():
            return b64encode(value).decode()
    kind = type(value)
    if is_pydantic(kind):
        return dump(value, read_again)
    if is_dataclass(kind):
        return {field.name: getattr(value, field.name) for field in fields(value) if field.init}
    return value
