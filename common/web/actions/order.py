"""What a request asks of an action: a target, values and a reason, each checked where it is read.
Pure."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from cmdbus.checks import check_flag, check_id, check_text, did_you_mean, shown
from cmdbus.errors import InvalidOperationError

#: The parts of a body; `state` is what the preview has shown, and `operator` is read before.
_PARTS = ("target", "values", "reason", "operator", "state")
_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,6})?) ?(s|min|m|h|d)?", re.ASCII)
_WHOLE = re.compile(r"\d{1,15}", re.ASCII)


class Order:
    """`target` and `values` name what the action knows: anything else is refused."""

    def __init__(
        self, body: Mapping[str, Any], target: Iterable[str], values: Iterable[str] = ()
    ) -> None:
        _check_known("the body", body, _PARTS)
        self.target = _object(body, "target")
        self.values = _object(body, "values")
        _check_known("target", self.target, target)
        _check_known("values", self.values, values)
        self._state = body.get("state")
        text = check_text("reason", body.get("reason"))
        self.reason = None if text is None else text.strip() or None

    def name(self, what: str) -> str:
        """The part `what` of the target, a text; whether there is such a thing is not checked."""
        found = self.target.get(what)
        if not isinstance(found, str) or not found or len(found) > 300:
            raise ValueError(f"target.{what} must be a name, not {shown(found)}")
        return found

    def optional_name(self, what: str) -> str | None:
        return None if self.target.get(what) is None else self.name(what)

    def id(self, what: str) -> UUID:
        return check_id(f"target.{what}", self.target.get(what))  # type: ignore[arg-type]

    def has(self, name: str) -> bool:
        return name in self.values

    def text(self, name: str) -> str | None:
        """None if it is empty."""
        found = self.values.get(name)
        if found is not None and not isinstance(found, str):
            raise ValueError(f"{name} must be a text, not {shown(found)}")
        return (found or "").strip() or None

    def whole(self, name: str, least: int = 1) -> int | None:
        """A number, also as the text of a form's field; None if it is empty."""
        found = self.values.get(name)
        if isinstance(found, str):
            found = found.strip()
            found = int(found) if _WHOLE.fullmatch(found) else (found or None)
        if isinstance(found, float) and found.is_integer():
            found = int(found)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int) or found < least:
            raise ValueError(f"{name} must be a whole number from {least} on, not {shown(found)}")
        return found

    def seconds(self, name: str) -> float | None:
        """A duration: a number of seconds, or a text like 90s, 15m, 2h or 7d; None if empty."""
        found = self.values.get(name)
        if found is None or found == "":
            return None
        if isinstance(found, str) and (parts := _DURATION.fullmatch(found.strip())):
            return float(parts[1]) * _UNITS[parts[2] or "s"]
        try:
            if isinstance(found, bool) or not isinstance(found, int | float):
                raise ValueError
            return float(found)
        except (ValueError, OverflowError):
            raise ValueError(
                f"{name} must be a duration like 90s, 15m, 2h or 7d, not {shown(found)}"
            ) from None

    def flag(self, name: str) -> bool:
        """True or False, also as yes or no."""
        found = self.values.get(name)
        if isinstance(found, str):
            found = {"yes": True, "no": False}.get(found, found)
        return check_flag(name, found)

    def choice(self, name: str, *choices: str) -> str | None:
        """None if it is empty."""
        found = self.text(name)
        if found is not None and found not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, not {shown(found)}")
        return found

    def json(self, name: str) -> Any:
        """The value of a JSON text; None if it is empty."""
        found = self.text(name)
        try:
            return None if found is None else json.loads(found)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name} is not JSON: {error}") from None

    def state(self, name: str) -> object:
        """What the preview has shown of `name` in its state; None without it."""
        return self._state.get(name) if isinstance(self._state, Mapping) else None

    def check_state(self, what: str, present: Mapping[str, Any]) -> None:
        """Raises InvalidOperationError if what the operator was shown no longer holds."""
        shown_before = self._state
        if shown_before is None:
            return
        if not isinstance(shown_before, Mapping):
            raise ValueError(f"state must be a JSON object, not {shown(shown_before)}")
        for name, value in present.items():
            if name in shown_before and shown_before[name] != value:
                raise InvalidOperationError(
                    f"{what} has changed since this was asked: its {name.replace('_', ' ')} was "
                    f"{_text_of(shown_before[name])} and is {_text_of(value)} now; look at it again"
                )


def _text_of(value: object) -> str:
    match value:
        case None:
            return "not set"
        case bool():
            return "yes" if value else "no"
        case str():
            return value[:80]
    return shown(value)


def _object(body: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    found = body.get(part)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise ValueError(f"{part} must be a JSON object, not {shown(found)}")
    return found


def _check_known(what: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    known = [*known]
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) or f"there are {', '.join(known) or 'none'}"
            raise ValueError(f"{what} has no {name!r:.80}: {hint}")
