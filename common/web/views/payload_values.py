"""Payloads of commands as JSON text of bounded length, in one line: the page lays it out. Pure."""

import json
from typing import Any

from cmdbus.data import CEILING_BYTES, Undecodable

#: Bytes of a payload that a view shows, unless it chooses.
_MAX_BYTES = 64 * 1024
#: For a download, or an editor: more than any payload has.
WHOLE = 2 * CEILING_BYTES
_TOO_DEEP = "it is nested too deep to be shown here; the view cmdbus.command has it"


def payload_of(value: object, limit: int = _MAX_BYTES) -> dict[str, Any]:
    """Of a value that the bus has decoded, which may be null. `problem` says why it is not shown as
    others are."""
    if isinstance(value, Undecodable):
        return {**bounded(value.text, limit), "problem": f"it cannot be decoded: {value.reason}"}
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        return {"text": "", "bytes": 0, "cut": True, "problem": _TOO_DEEP}
    return {**bounded(text, limit), "problem": None}


def bounded(text: str, limit: int) -> dict[str, Any]:
    """At most `limit` bytes of the text, all of its bytes counted, and whether it was cut."""
    whole = text.encode("utf-8", "surrogatepass")
    is_cut = len(whole) > limit
    shown = whole[:limit].decode("utf-8", "ignore") if is_cut else text
    return {"text": shown, "bytes": len(whole), "cut": is_cut}
