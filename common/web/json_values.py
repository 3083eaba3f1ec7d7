"""Values of views as JSON: times in UTC, durations in seconds, payloads as bounded text. Pure."""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

#: Bytes of a payload that a view shows, unless it chooses.
PAYLOAD_BYTES = 64 * 1024


def encode(value: object) -> str:
    """ASCII, which no encoding on the way can break."""
    return json.dumps(_plain(value), allow_nan=False, separators=(",", ":"))


def payload(text: str | None, limit: int = PAYLOAD_BYTES) -> dict[str, Any] | None:
    """JSON text of a command, unparsed: at most `limit` bytes of it, all of its bytes counted, and
    whether it was cut."""
    if text is None:
        return None
    whole = text.encode("utf-8", "surrogatepass")
    shown = text
    if len(whole) > limit:
        shown = whole[:limit].decode("utf-8", "ignore")
    return {"text": shown, "bytes": len(whole), "cut": len(whole) > limit}


def payload_of(value: object, limit: int = PAYLOAD_BYTES) -> dict[str, Any] | None:
    """The same for a value that the bus has parsed; None is one that a record does not have."""
    if value is None:
        return None
    return payload(json.dumps(value, ensure_ascii=False, indent=2, default=str), limit)


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
