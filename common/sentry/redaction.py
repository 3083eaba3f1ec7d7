"""Keeps the data of commands out of events. It would be in the variables of each frame that has the
command: in those of cmdbus, and in those of the handler and what that calls."""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from sentry_sdk.utils import current_stacktrace, iter_event_frames

_STACKS = ("exception", "stacktrace", "threads")
#: Bounds of a command's data, if it is sent: characters of texts, entries of an object or a list,
#: and objects and lists inside of each other.
MAX_CHARACTERS = 4_000
_MAX_ENTRIES = 50
_MAX_DEPTH = 5
_CUT = "..."
#: In messages of PostgreSQL, SQLAlchemy and pydantic, also where another message quotes these.
_VALUES = (
    (re.compile(r"\n(?:DETAIL|CONTEXT|LINE \d+|\[parameters): ?.*", re.DOTALL), ""),
    (
        re.compile(r'((?:invalid input|out of range|malformed)\b[^:"\n]*: ").*', re.DOTALL),
        rf'\1{_CUT}"',
    ),
    (re.compile(r'(?<=\bvalue ").*?(?=" is out of range)', re.DOTALL), _CUT),
    (re.compile(r"(?<=\binput_value=).*?(?=, input_type=)", re.DOTALL), _CUT),
)


def redact(event: Any, options: Mapping[str, Any], *, everywhere: bool) -> None:
    """Takes the variables out of the frames of cmdbus, or out of all frames."""
    if options["attach_stacktrace"] and not any(name in event for name in _STACKS):
        # The SDK would add the stack later, with all variables.
        variables = options["include_local_variables"] and not everywhere
        stack = current_stacktrace(include_local_variables=variables)
        event["threads"] = {"values": [{"stacktrace": stack, "crashed": False, "current": True}]}
    for frame in iter_event_frames(event):
        if is_own := _is_own(frame.get("module")):
            frame["in_app"] = False
        if is_own or everywhere:
            frame.pop("vars", None)


def hide_values(event: Any) -> None:
    """Takes what libraries quote of data out of the messages of exceptions."""
    for shown in (event.get("exception") or {}).get("values") or ():
        if isinstance(message := shown.get("value"), str):
            for quoted, instead in _VALUES:
                message = quoted.sub(instead, message)
            shown["value"] = message


def _is_own(module: object) -> bool:
    return isinstance(module, str) and f"{module}.".startswith("cmdbus.")


def excerpt(data: Any, scrubber: Any = None) -> Any:
    """The beginning of a JSON value. `scrubber`: the SDK's, which hides passwords and the like."""
    return _Excerpt(scrubber).of(data, _MAX_DEPTH)


class _Excerpt:
    def __init__(self, scrubber: Any) -> None:
        self._scrubber, self._left = scrubber, MAX_CHARACTERS

    def of(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict | list) and value and not depth:
            return _CUT
        if isinstance(value, list):
            return [self.of(each, depth - 1) for each in self._some(value)]
        if isinstance(value, dict):
            some = self._some(value.items())
            made = {self._text(name): self.of(each, depth - 1) for name, each in some}
            if self._scrubber is not None:
                self._scrubber.scrub_dict(made)
            return made
        return value

    def _some(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in islice(values, _MAX_ENTRIES):
            if self._left <= 0:
                return
            yield value

    def _text(self, text: str) -> str:
        cut = text[: max(0, self._left)]
        self._left -= len(cut) + 1
        return cut if len(cut) == len(text) else cut + _CUT
