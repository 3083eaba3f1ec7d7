"""What actions answer: previews with the fields of their forms, and what was done. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from cmdbus.counting import seconds_text

FOR_GOOD = "This cannot be undone."


def preview(
    title: str,
    touches: Iterable[str] | str,
    confirm: str,
    *,
    count: int | None = None,
    fields: Iterable[Mapping[str, Any]] = (),
    undo: str | None = None,
    grave: bool = False,
    state: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """`touches` are sentences, `undo` says how it is undone (None: it cannot be), and `state` is
    what must still hold when it is performed."""
    sentences = [touches] if isinstance(touches, str) else [*touches]
    return {
        "title": title,
        "touches": sentences,
        "count": count,
        "fields": [*fields],
        "undo": undo,
        "confirm": confirm,
        "grave": grave,
        "state": state,
    }


def field(
    name: str,
    label: str,
    kind: str = "text",
    value: object = None,
    *,
    required: bool = False,
    choices: Iterable[str] | None = None,
    hint: str | None = None,
) -> dict[str, Any]:
    """`kind`: text, json, number, time or choice."""
    return {
        "name": name,
        "label": label,
        "kind": kind,
        "required": required,
        "value": value,
        "choices": None if choices is None else [*choices],
        "help": hint,
    }


def done(
    sentence: str,
    *,
    count: int | None = None,
    undo: Mapping[str, Any] | None = None,
    undone: str | None = FOR_GOOD,
) -> dict[str, Any]:
    """`undo` is what `undoing` returns; without it `undone` says that there is nothing to undo."""
    return {
        "done": sentence,
        "count": count,
        "undo": undo,
        "undone": None if undo is not None else undone,
    }


def undoing(
    action: str,
    label: str,
    target: Mapping[str, Any],
    values: Mapping[str, Any] | None = None,
    *,
    reason: str = "undone",
    state: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The action that takes a change back, if `state` still holds then."""
    body = {"target": {**target}, "values": {**(values or {})}, "reason": reason}
    if state is not None:
        body["state"] = {**state}
    return {"action": action, "body": body, "label": label}


def number(count: int) -> str:
    return f"{count:,}"


def commands(count: int, verb: str = "", verbs: str = "") -> str:
    """`1 command waits`, `1,204 commands wait`."""
    noun = "command" if count == 1 else "commands"
    form = verb if count == 1 else verbs
    return f"{number(count)} {noun} {form}".rstrip()


def duration(seconds: float) -> str:
    return seconds_text(seconds)


def yes_or_no(value: bool) -> str:
    return "yes" if value else "no"
