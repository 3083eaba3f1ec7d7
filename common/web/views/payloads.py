"""Payloads of commands for people, as JSON text in one line: the page lays it out. Pure."""

import json
from typing import Any

from cmdbus.data import CEILING_BYTES, Undecodable
from cmdbus.web.json_values import PAYLOAD_BYTES, payload

#: For a download, or an editor: more than any payload has.
WHOLE = 2 * CEILING_BYTES
_TOO_DEEP = "it is nested too deep to be shown here; the view cmdbus.command has it"


def shown(value: object, limit: int = PAYLOAD_BYTES) -> dict[str, Any]:
    """A value that the bus has decoded, which may be null. `problem` says why it is not shown as
    others are."""
    problem = None
    if isinstance(value, Undecodable):
        text, problem = value.text, f"it cannot be decoded: {value.reason}"
    else:
        try:
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        except RecursionError:
            text, problem = "", _TOO_DEEP
    found = payload(text, limit) or {}
    return {**found, "cut": found["cut"] or problem == _TOO_DEEP, "problem": problem}
