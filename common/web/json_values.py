"""Values of views as JSON: times in UTC, durations in seconds. Pure."""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID


def encode(value: object) -> str:
    """ASCII, which no encoding on the way can break."""
    return json.dumps(_plain(value), allow_nan=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    match value:
        case Enum():
            return _plain(value.value)
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case datetime():
            return value.astimezone(UTC).isoformat()
        case timedelta():
            return value.total_seconds()
        case UUID():
            return str(value)
        case Decimal():
            return _plain(float(value))
        case Mapping():
            return {str(_plain(key)): _plain(each) for key, each in value.items()}
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
        case tuple() if hasattr(value, "_fields"):
            return {name: _plain(getattr(value, name)) for name in value._fields}
        case list() | tuple():
            return [_plain(each) for each in value]
        case set() | frozenset():
            return sorted((_plain(each) for each in value), key=str)
    raise TypeError(f"a view must not return a {type(value).__name__}")
