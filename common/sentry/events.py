"""Events of failed attempts."""

import json
import re
from collections.abc import Mapping
from typing import Any

from sentry_sdk.utils import event_from_exception, walk_exception_chain

from cmdbus.command_log import fields_of
from cmdbus.instruments import EndedExecution
from cmdbus.sentry.options import Options

#: An event of the SDK: a dict whose keys depend on its kind.
Event = Any

#: Fields of a command by which events are searched.
TAGS = ("domain", "command_type", "command_id", "attempt")
#: Levels by what becomes of the command. Other ends are no failures.
_LEVELS = {"RETRY": "warning", "TROUBLESHOOTING": "error", "FAILED": "error"}
_MECHANISM = {"type": "cmdbus", "handled": False}

#: Module and class.
_QUOTING = "pydantic_core._pydantic_core", "ValidationError"

#: A frame of a stack as Python writes it, and its line of source, if that is there.
_FRAME = re.compile(r'^ *File "(.+)", line (\d+), in (.+)(?:\n {4,}(\S.*))?', re.MULTILINE)
#: Begins each traceback of a chain.
_TRACEBACK = "Traceback (most recent call last):"


def is_reported(status: str, options: Options) -> bool:
    """Whether an end with this status is an event. A business rule that refuses a command works as
    it should."""
    if status == "FAILED":
        return options.business_rule_errors
    return status in _LEVELS


def about(domain: str, type: str, status: str, code: str | None) -> Event:
    """What each event of a failed attempt has. Those of a type with the same code are one issue."""
    return {
        "level": _LEVELS[status],
        "fingerprint": ["cmdbus", domain, type, code or ""],
        "tags": {"outcome": status.lower(), "error_code": code},
    }


def of_exception(
    error: BaseException, options: Mapping[str, Any], *, variables: bool
) -> tuple[Event, dict[str, Any]]:
    """The exception with what has led to it, and the SDK's hint."""
    variables = variables and options["include_local_variables"]
    made, hint = event_from_exception(
        error,
        client_options={**options, "include_local_variables": variables},
        mechanism=_MECHANISM,
    )
    event: Event = made
    if not variables:
        _hide_inputs(event, error)
    return event, hint


def _hide_inputs(event: Event, error: BaseException) -> None:
    """The message of pydantic's ValidationError quotes the data."""
    values = event["exception"]["values"]
    chain = [each for _, each, _ in walk_exception_chain((type(error), error, None))]
    known = dict(enumerate(reversed(chain))) if len(chain) == len(values) else {}
    for number, shown in enumerate(values):
        if (shown.get("module"), shown.get("type")) == _QUOTING:
            shown["value"] = _without_inputs(known.get(number))


def _without_inputs(error: Any) -> str:
    """None for one in a group, which is not looked for."""
    if error is None:
        return "not shown, as it quotes data"
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found)


def of_ended(ended: EndedExecution) -> Event:
    """A failure without an exception of the handler: it has timed out, its process has died, its
    command cannot be executed, or what it wrote cannot be committed."""
    fields = fields_of(
        ended.command_id, ended.domain, ended.type, ended.correlation_id, ended.attempt
    )
    event = about(ended.domain, ended.type, ended.status, ended.code)
    event["tags"] |= {name: fields[name] for name in TAGS}
    event["contexts"] = {
        "command": {**fields, "max_attempts": ended.max_attempts, "priority": ended.priority}
    }
    event["transaction"] = f"{ended.domain}/{ended.type}"
    exception = {"type": ended.code, "value": ended.message, "mechanism": _MECHANISM}
    stack = _stack(ended.details)
    if frames := _frames(stack):
        exception["stacktrace"] = {"frames": frames}
    elif stack:  # as faulthandler writes it
        event["extra"] = {"stack": stack}
    event["exception"] = {"values": [exception]}
    return event


def _stack(details: str | None) -> str:
    """The stack of the exception, or of a handler that has timed out."""
    event = json.loads(details or "{}")
    inner = event.get("details")
    stack = event.get("traceback") or (isinstance(inner, dict) and inner.get("stack"))
    return stack if isinstance(stack, str) else ""


def _frames(stack: str) -> list[dict[str, object]]:
    """The frames of the last traceback of a chain, the outermost first."""
    return [
        {
            "filename": file,
            "abs_path": file,
            "lineno": int(line),
            "function": function,
            "context_line": source or None,
        }
        for file, line, function, source in _FRAME.findall(stack.rpartition(_TRACEBACK)[2])
    ]
