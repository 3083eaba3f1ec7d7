"""What an operator can do: first a preview of what it will touch, then the change itself."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
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


class Turns:
    """Changes of the same target one after another, so that each finds what the one before has
    left: of two operators, or two clicks, one is told that it has changed."""

    def __init__(self, count: int = 64) -> None:
        self._locks = [Lock() for _ in range(count)]

    def of(self, target: object) -> Lock:
        try:
            text = json.dumps(target, sort_keys=True)
        except RecursionError:  # No action knows such a target.
            text = ""
        return self._locks[hash(text) % len(self._locks)]
