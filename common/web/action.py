"""What an operator can do: first a preview of what it will touch, then the change itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cmdbus.producer.bus import CommandBus
from cmdbus.web.http.request import BODY_BYTES

#: Bytes of a body with edited data, which is JSON in JSON.
LONG_BODY_BYTES = 4 * 1024**2

#: What the page sends: {"target": {...}, "values": {...}, "reason": "..."}.
Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Action:
    name: str
    #: Of the bus and the body: title, touches, count, fields, undo, confirm, grave. Reads only.
    preview: Callable[[CommandBus, Body], Mapping[str, Any]]
    #: Of the bus, the body and the operator's name: done, count, undo, undone.
    perform: Callable[[CommandBus, Body, str], Mapping[str, Any]]
    #: Of a request, at most.
    body_bytes: int = BODY_BYTES
