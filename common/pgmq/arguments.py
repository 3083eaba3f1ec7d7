"""Checks of a PgmqClient's arguments. Pure."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from cmdbus.checks import (
    MAX_SECONDS,
    MAX_WHOLE,
    check_aware,
    check_iterable,
    check_whole,
    seconds_of,
    shown,
)
from cmdbus.data import encode
from cmdbus.payloads.forms import Encoder

#: Bytes of the messages and headers of one call: the server takes no statement of 1 GiB.
MAX_BATCH_BYTES = 256 * 1024**2
MAX_ID = 2**63 - 1
#: As PGMQ counts messages and seconds.
MAX_INTEGER = 2**31 - 1

VisibleFrom = float | timedelta | datetime


class Visibility(NamedTuple):
    """From now in `seconds`, or at a `time`."""

    seconds: float
    time: datetime | None

    @property
    def whole(self) -> int | None:
        """The seconds, if they are such as each version of PGMQ takes."""
        is_whole = self.time is None and self.seconds == int(self.seconds)
        return int(self.seconds) if is_whole and self.seconds <= MAX_INTEGER else None


class JsonRules(NamedTuple):
    """How messages and headers become JSON."""

    max_bytes: int
    encoder: Encoder | None

    def message(self, value: object, what: str = "message") -> str:
        return encode(
            value, what=what, max_bytes=self.max_bytes, encoder=self.encoder, read_again=False
        )

    def headers(self, value: Mapping[str, object] | None, what: str = "headers") -> str | None:
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise ValueError(f"{what} must be a dict, not {shown(value)}")
        return self.message(dict(value), what)


def check_visibility(what: str, value: VisibleFrom | None) -> Visibility:
    """Seconds, a timedelta or an aware datetime; at once, if it is None."""
    if value is None:
        return Visibility(0, None)
    if isinstance(value, datetime):
        return Visibility(0, check_aware(what, value))
    seconds = seconds_of(value)
    if seconds is None or not 0 <= seconds <= MAX_SECONDS:
        raise ValueError(
            f"{what} must be 0 to {MAX_SECONDS} seconds, a timedelta or an aware datetime, "
            f"not {shown(value)}"
        )
    return Visibility(seconds, None)


def check_vt(value: float | timedelta) -> int:
    """Whole seconds, as PGMQ's functions that read take them."""
    seconds = seconds_of(value)
    if seconds is None or not 0 <= seconds <= MAX_WHOLE or seconds != int(seconds):
        raise ValueError(
            f"vt must be a whole number of seconds from 0 to {MAX_WHOLE}, or a timedelta, "
            f"not {shown(value)}"
        )
    return int(seconds)


def check_poll(max_poll_seconds: float, poll_interval_ms: float) -> tuple[float, float]:
    """Both in seconds."""
    for what, value, unit in (
        ("max_poll_seconds", max_poll_seconds, "seconds"),
        ("poll_interval_ms", poll_interval_ms, "milliseconds"),
    ):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        least = 0 if unit == "seconds" else 1
        if not is_number or not least <= value <= MAX_SECONDS:
            raise ValueError(f"{what} must be {least} to {MAX_SECONDS} {unit}, not {shown(value)}")
    return float(max_poll_seconds), poll_interval_ms / 1000


def check_msg_id(what: str, value: object) -> int:
    return check_whole(what, value, 1, MAX_ID)


def check_msg_ids(values: Iterable[int]) -> list[int]:
    """Each of them once."""
    if isinstance(values, str | bytes | Mapping):
        raise ValueError(f"msg_id must be a number or an iterable of numbers, not {shown(values)}")
    listed = list(check_iterable("msg_id", values, "numbers"))
    return sorted({check_msg_id(f"msg_id[{i}]", value) for i, value in enumerate(listed)})


def check_batch(
    rules: JsonRules,
    messages: Iterable[object],
    headers: Iterable[Mapping[str, object] | None] | None,
) -> tuple[list[str], list[str | None] | None]:
    """The JSON of the messages, and that of their headers if any has some."""
    for what, values in (("messages", messages), ("headers", headers)):
        if isinstance(values, str | bytes | Mapping):
            one_each = f"{what} must be an iterable with one for each message"
            raise ValueError(f"{one_each}, not {shown(values)}")
    texts: list[str] = []
    size = 0
    for i, value in enumerate(check_iterable("messages", messages, "messages")):
        texts.append(rules.message(value, f"messages[{i}]"))
        size = _check_size(size, texts[-1])
    if headers is None:
        return texts, None
    given = list(check_iterable("headers", headers, "dicts"))
    if len(given) != len(texts):
        raise ValueError(
            f"headers must have one for each of the {len(texts)} messages (None for none), "
            f"not {len(given)}"
        )
    heads = [rules.headers(value, f"headers[{i}]") for i, value in enumerate(given)]
    for head in heads:
        size = _check_size(size, head or "")
    return texts, heads if any(heads) else None


def _check_size(size: int, text: str) -> int:
    """With this text."""
    size += len(text) if text.isascii() else len(text.encode())
    if size > MAX_BATCH_BYTES:
        raise ValueError(
            f"the messages and headers have more than {MAX_BATCH_BYTES} bytes as JSON: send them "
            f"in several calls"
        )
    return size
