"""What the operator's command takes besides text: data, moments, spans of time."""

import json
import os
import re
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cmdbus.checks import MAX_SECONDS
from cmdbus.supervisor.cli.values import decoded, duration, read_text
from cmdbus.uniqueness import MIN_PERIOD, UNTIL

#: Twice what a command may hold: data may be written with more space than it takes.
_MAX_DATA_BYTES = 32 * 1024**2


def data(text: str) -> object:
    """A JSON value: as it stands, - for standard input, or @FILE."""
    typed = text != "-" and not text.startswith("@")
    try:
        # In a locale that is not UTF-8 Python leaves bytes of arguments as halves of surrogates.
        content = decoded(os.fsencode(text)) if typed else _read(text)
    except OSError as error:
        raise ValueError(f"cannot read {text[1:]}: {error.strerror}") from None
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        is_bare = typed and text[:1].isalpha()
        hint = " (a string needs its quotes: '\"text\"')" if is_bare else ""
        raise ValueError(f"it is not JSON: {error}{hint}") from None


def span(text: str) -> timedelta:
    try:
        return timedelta(seconds=duration(text))
    except OverflowError:
        raise ValueError(f"it is too long: {text}") from None


#: Stands for a limit that is to be taken away; None is an option that was not given.
NO_LIMIT = 0


def limit(text: str) -> int:
    """A number of commands, or `none`."""
    if text.lower() == "none":
        return NO_LIMIT
    if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
        raise ValueError(f"it must be a whole number from 1 to 999999999, or none, not {text!r}")
    return int(text)


def rate(text: str) -> str | int:
    """A rate, or `none`; whether it can be read is checked where it is set."""
    return NO_LIMIT if text.lower() == "none" else text


def header(text: str) -> tuple[str, str]:
    """A name and its text; whether they are taken is checked where they are sent."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError("it must be NAME=VALUE")
    return name, value


def priority(text: str) -> str | int:
    return int(text) if text.isascii() and text.isdecimal() else text


def moment(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"it must be like 2026-12-31T08:00:00+01:00, not {text!r}") from None
    if time.utcoffset() is None:
        raise ValueError(f"its offset is missing: {time.isoformat()}Z would be UTC")
    return time


def expiry(text: str) -> datetime | timedelta:
    """A moment, or how long from now."""
    try:
        return moment(text)
    except ValueError as error:
        try:
            period = span(text)
        except ValueError:
            raise ValueError(f"{error}, or like 5m, 2h") from None
    if not period:
        raise ValueError(f"it must be more than 0 seconds, not {text}")
    return period


def unique_until(text: str) -> str | timedelta:
    """A word, or how long from now."""
    if text in UNTIL:
        return text
    try:
        period = span(text)
    except ValueError as error:
        raise ValueError(f"{error}, or {' or '.join(UNTIL)}") from None
    if not MIN_PERIOD <= period.total_seconds() <= MAX_SECONDS:
        raise ValueError(
            f"it must be {', '.join(UNTIL)}, or from {MIN_PERIOD} to {MAX_SECONDS} seconds, "
            f"not {text}"
        )
    return period


def past(text: str) -> datetime:
    """A moment, or how long ago."""
    try:
        return moment(text)
    except ValueError as error:
        if text[-1:].isalpha():
            with suppress(ValueError, OverflowError):
                return datetime.now(UTC) - span(text)
        raise ValueError(f"{error} (2h would be two hours ago)") from None


def _read(source: str) -> str:
    if source == "-":
        return read_text(sys.stdin.buffer, _MAX_DATA_BYTES)
    with Path(source[1:]).open("rb") as file:
        return read_text(file, _MAX_DATA_BYTES)
