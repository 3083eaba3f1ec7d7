"""The hook of sends: it may change or refuse each request, and what it changed is on record."""

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from cmdbus.checks import shown
from cmdbus.data import CEILING_BYTES, encode
from cmdbus.errors import SendRefusedError
from cmdbus.payloads.forms import Encoder
from cmdbus.producer.requests import SendRequest

Hook = Callable[[SendRequest], SendRequest]


class SendHook:
    def __init__(self, hook: Hook, encoder: Encoder | None = None) -> None:
        if not callable(hook):
            raise ValueError(f"on_send must be callable, not {shown(hook)}")
        self._hook, self._encoder = hook, encoder

    def __call__(self, request: SendRequest) -> SendRequest:
        """The request as the hook returns it, with what was changed. The caller's own, which may be
        sent again, stays as it is."""
        if not isinstance(request, SendRequest):
            return request  # It is refused where its type is checked.
        data, own = self._encoded(request.data), copy.copy(request)
        if data is not None:
            own.data = copy.deepcopy(request.data)
        if isinstance(request.headers, Mapping):
            own.headers = dict(request.headers)
        try:
            changed = self._hook(own)
        except SendRefusedError as error:
            if error.domain is None:
                error.domain, error.type = request.domain, request.type
            raise
        if not isinstance(changed, SendRequest):
            raise ValueError(f"on_send must return a SendRequest, not {type(changed).__name__}")
        changes: dict[str, object] = {
            name: {"before": _json(before), "after": _json(after)}
            for name in _FIELDS
            if (before := getattr(request, name)) != (after := getattr(changed, name))
        }
        if request.headers != changed.headers:
            changes["headers"] = _headers_changed(request.headers, changed.headers)
        if data != self._encoded(changed.data):
            # It may be long, and what the command has is there to read.
            changes["data"] = "changed"
        changed.changes = json.dumps(changes) if changes else None
        return changed

    def _encoded(self, data: Any) -> str | None:
        try:
            return encode(data, max_bytes=CEILING_BYTES, encoder=self._encoder)
        except ValueError:
            return None  # It is refused as it is.


#: Fields of a request whose values are on record as they are.
_FIELDS = [
    field.name for field in fields(SendRequest) if field.name not in ("data", "changes", "headers")
]


def _headers_changed(*both: Any) -> dict[str, object]:
    """Before and after, without what stays. What is no mapping is refused where it is checked."""
    before, after = (dict(each) if isinstance(each, Mapping) else {} for each in both)
    return {
        "before": {_json(n): _json(v) for n, v in before.items() if after.get(n) != v},
        "after": {_json(n): _json(v) for n, v in after.items() if before.get(n) != v},
    }


def _json(value: Any) -> Any:
    match value:
        case None | bool() | int() | float():
            return value
        case UUID():
            return str(value)
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case str() if value.isprintable() and len(value) <= 200:
            return str(value)
    return shown(value)
