"""How spans show errors: by type, code and stack. Messages may quote a payload, as those of
PostgreSQL and pydantic do, and unique keys: without being asked, only those of CommandErrors are
shown, which a handler writes for others to read."""

import traceback
from collections.abc import Iterator

from opentelemetry.trace import Span, Status, StatusCode

from cmdbus.errors import CommandError
from cmdbus.otel.conventions import (
    ERROR_TYPE,
    EXCEPTION_MESSAGE,
    EXCEPTION_STACKTRACE,
    EXCEPTION_TYPE,
)

_MAX_MESSAGE = 1000
_MAX_STACK = 16_000
#: Errors of a chain, and frames of each, from its end.
_MAX_ERRORS, _MAX_FRAMES = 10, 50
_CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
_DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"


def error_type(error: BaseException) -> str:
    """The code that a handler has given its error, else the class."""
    if isinstance(error, CommandError) and isinstance(error.code, str) and error.code:
        return error.code
    return _class_name(error)


def _class_name(error: BaseException) -> str:
    kind = type(error)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def show_failure(span: Span, error: BaseException | None, kind: str, *, messages: bool) -> None:
    """The status of a span that records, and an event for the exception if there was one."""
    span.set_attribute(ERROR_TYPE, kind)
    message = None if error is None else _message(error, messages)
    span.set_status(Status(StatusCode.ERROR, kind if message is None else message))
    if error is None:
        return
    event = {EXCEPTION_TYPE: _class_name(error), EXCEPTION_STACKTRACE: stack_of(error)}
    if message is not None:
        event[EXCEPTION_MESSAGE] = message
    span.add_event("exception", event)


def _message(error: BaseException, wanted: bool) -> str | None:
    if not wanted and not isinstance(error, CommandError):
        return None
    try:
        return str(error)[:_MAX_MESSAGE]
    except Exception:
        return None


def stack_of(error: BaseException) -> str:
    """As Python prints it, with the names of the errors and without their messages."""
    parts = []
    for each, joint in reversed(list(_chain(error))):
        frames = traceback.format_tb(each.__traceback__, limit=-_MAX_FRAMES)
        head = "Traceback (most recent call last):\n" if frames else ""
        parts.append(f"{head}{''.join(frames)}{_class_name(each)}\n{joint}")
    return "".join(parts)[-_MAX_STACK:]


def _chain(error: BaseException) -> Iterator[tuple[BaseException, str]]:
    """The error and what led to it, each with how it led to the one before."""
    joint = ""
    seen = set[int]()
    found: BaseException | None = error
    while found is not None and id(found) not in seen and len(seen) < _MAX_ERRORS:
        yield found, joint
        seen.add(id(found))
        if found.__cause__ is not None:
            found, joint = found.__cause__, _CAUSED
        elif found.__suppress_context__:
            return
        else:
            found, joint = found.__context__, _DURING
