"""Statements and values for DB-API drivers, which have types and parameters of their own: every
value is passed as text, which the statement casts, and each column is read by its type's number.
"""

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID

from cmdbus.arrays import texts
from cmdbus.database.statements import parameter_types

Reader = Callable[[Any], Any]

_PARAMETER = re.compile(r"%\((\w+)\)s(?:::(\w+(?: precision)?(?:\[\])?))?")
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)
_CALLED = re.compile(r'FROM "\w+"\.(\w+)\(p_')
#: Types of parameters that have neither a cast nor a function's declaration.
_TYPES = {
    **dict.fromkeys(("batch_id", "command_id", "process_id"), "uuid"),
    **dict.fromkeys(("count", "limit", "offset"), "bigint"),
    **dict.fromkeys(("domains",), "text[]"),
    "unhandled_after": "double precision",
}


@cache
def rendered(text: bytes, paramstyle: str) -> tuple[str, tuple[str, ...]]:
    """A statement for psycopg in the style of another driver, and the names of its parameters, in
    the order in which they are passed."""
    plain = _COMMENT.sub("", text.decode()).strip().removesuffix(";")
    casts = {name: type_ for name, type_ in _PARAMETER.findall(plain) if type_}
    if called := _CALLED.search(plain):
        casts = {**parameter_types(called[1]), **casts}
    names: list[str] = []

    def written(match: re.Match[str]) -> str:
        name = match[1]
        if paramstyle in ("format", "qmark") or name not in names:
            names.append(name)
        type_ = casts.get(name) or _TYPES.get(name, "text")
        return f"{_placeholder(paramstyle, name, names.index(name) + 1)}::text::{type_}"

    has_parameters = _PARAMETER.search(plain) is not None
    if not has_parameters or "format" not in paramstyle:
        plain = plain.replace("%%", "%")
    return _PARAMETER.sub(written, plain), tuple(names)


def _placeholder(paramstyle: str, name: str, number: int) -> str:
    match paramstyle:
        case "pyformat":
            return f"%({name})s"
        case "format":
            return "%s"
        case "named":
            return f":{name}"
        case "numeric":
            return f":{number}"
        case "numeric_dollar":
            return f"${number}"
    return "?"


def as_text(value: Any) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case datetime():
            return value.isoformat()
        case timedelta():
            return f"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"
        case list() | tuple():
            return texts(map(as_text, value))
    return str(value)


def reader_of(oid: object) -> Reader:
    """For columns of the type with this number."""
    return _READERS.get(oid, _same)


def _same(value: Any) -> Any:
    return value


def _uuid(value: Any) -> UUID | None:
    """A driver may have a kind of UUID of its own."""
    return value if value is None or type(value) is UUID else UUID(str(value))


def _uuids(value: str | Sequence[Any] | None) -> list[UUID | None] | None:
    """psycopg2 returns arrays of types that it does not know as texts."""
    if isinstance(value, str):
        value = value[1:-1].split(",") if len(value) > 2 else []
    return None if value is None else [_uuid(each) for each in value]


#: The keys are the numbers of the types uuid and uuid[].
_READERS: dict[object, Reader] = {2950: _uuid, 2951: _uuids}
