"""Data of commands and results: any JSON value, checked before it is written and
decoded with care when it is read. Values that JSON lacks and that have a documented form, like
times, take that. Pure.

Refused is data that JSON lacks, that PostgreSQL cannot hold, and that another
supported Python could not decode again.
"""

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cmdbus.payloads.forms import Encoder, TooDeepError, plain

MAX_BYTES = 1024 * 1024
#: The largest max_bytes. The type of the tables' data takes no more, so that a row fits into
#: the memory of each process that reads it.
CEILING_BYTES = 16 * 1024 * 1024
#: Far below the recursion limit of any supported Python, wherever the reader stands.
MAX_DEPTH = 200
#: Digits of a number; by default Python refuses to convert longer ones.
MAX_DIGITS = 4300

_TOO_DEEP = f"is nested deeper than {MAX_DEPTH} levels (or contains itself)"
_CONTAINERS = (dict, list, tuple)
_refuse = json.JSONEncoder().default
#: The encoder's own part in C, made once for all values. It does not search for circles: a value
#: that contains itself is deeper than MAX_DEPTH. The last three arguments: keys are not sorted,
#: none is left out, NaN is refused.
_to_parts = json.encoder.c_make_encoder(  # type: ignore[attr-defined]  # missing in the stubs
    None, _refuse, json.encoder.encode_basestring, None, ":", ",", False, False, False
)
_MANY_DIGITS = re.compile(rf"(?<!\d)\d{{{MAX_DIGITS + 1}}}")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Undecodable:
    """In place of data that this Python cannot decode; another program wrote it."""

    text: str
    reason: str


def encode(
    value: object,
    *,
    what: str = "data",
    max_bytes: int = MAX_BYTES,
    encoder: Encoder | None = None,
    read_again: bool = True,
) -> str:
    """`value` as JSON text; a ValueError names the defect, and its place in `what`. `encoder` gives
    the forms of values that have none in cmdbus. `read_again`: a model must be one that its own
    type reads."""
    try:
        if isinstance(value, _CONTAINERS):
            _check_keys_and_depth(value, MAX_DEPTH)
        text = "".join(_to_parts(value, 0))
    except (ValueError, TypeError, RecursionError):
        value = _plain(value, what, encoder, read_again)
        text = "".join(_to_parts(value, 0))
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        raise ValueError(f"{what} has {size} bytes as JSON: at most {max_bytes} are taken")
    if _looks_doubtful(text) and (problem := _explain(value, what)):
        raise ValueError(problem)
    return text


def check_encoder(encoder: Encoder | None) -> Encoder | None:
    if encoder is not None and not callable(encoder):
        raise ValueError(f"encoder must be callable, not {encoder!r:.80}")
    return encoder


def decode(text: str) -> object:
    """The value, or an Undecodable: a row that others wrote must not stop its neighbours."""
    try:
        value, end = _scan_once(text, 0)
        if end == len(text):
            return value
    except (ValueError, RecursionError, StopIteration):
        pass
    try:  # It has spaces around it, or an error that is worth a message.
        return _decoder.decode(text)
    except (ValueError, RecursionError) as error:
        return Undecodable(text, f"{type(error).__name__}: {error}")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"number {digits[:40]} is out of range")
    return number


_decoder = json.JSONDecoder(parse_float=_finite)
#: The decoder's own part in C, without its search for spaces.
_scan_once: Callable[[str, int], tuple[object, int]] = _decoder.scan_once  # type: ignore[attr-defined]  # missing in the stubs


def _plain(value: object, what: str, encoder: Encoder | None, read_again: bool) -> object:
    """As the encoder takes it; a ValueError names the first defect."""
    try:
        form = plain(value, encoder, room=MAX_DEPTH, read_again=read_again)
    except (TooDeepError, RecursionError):
        raise ValueError(f"{what} {_TOO_DEEP}") from None
    except ValueError as error:
        raise ValueError(f"{what} is not JSON: {error}") from None
    if problem := _explain(form, what):
        raise ValueError(problem)
    return form


def _check_keys_and_depth(value: object, room: int) -> None:
    if room == 0:
        raise ValueError("too deep")
    items: Iterable[object] = value  # type: ignore[assignment]  # a list or tuple
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ValueError("a key is no string")
        items = value.values()
    for item in items:
        if isinstance(item, _CONTAINERS):
            _check_keys_and_depth(item, room - 1)


def _looks_doubtful(text: str) -> bool:
    """Cheap, and may be wrong about good data: `_explain` decides."""
    return (
        "\\u0000" in text
        or (not text.isascii() and _SURROGATE.search(text) is not None)
        or (len(text) > MAX_DIGITS and _MANY_DIGITS.search(text) is not None)
    )


def _explain(value: object, path: str) -> str | None:
    """The first problem in `value`, in words. No recursion: depth is no danger."""
    stack = [(value, path, 0)]
    while stack:
        value, path, depth = stack.pop()
        if problem := defect(value, depth):
            return f"{_shortened(path)} {problem}"
        if isinstance(value, dict):
            children = [(item, f"{path}.{key}", depth + 1) for key, item in value.items()]
        elif isinstance(value, list | tuple):
            children = [(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
        else:
            continue
        stack.extend(reversed(children))
    return None


def defect(value: object, depth: int) -> str | None:
    """Why JSON or PostgreSQL cannot hold this value itself, at this depth; not what is in it."""
    if isinstance(value, _CONTAINERS):
        if depth >= MAX_DEPTH:
            return _TOO_DEEP
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    return f"has the key {key!r:.80}: JSON keys are strings"
                if problem := _explain_text(key):
                    return f"has a key that {problem}"
        return None
    if isinstance(value, str):
        return _explain_text(value)
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int):
        # bit_length, because converting is what Python refuses; a digit has 3.32 bits.
        too_long = value.bit_length() > MAX_DIGITS * 3.32 and abs(value) >= 10**MAX_DIGITS
        return f"has more than {MAX_DIGITS} digits" if too_long else None
    if isinstance(value, float):
        return None if math.isfinite(value) else f"is {value}: JSON has no such number"
    return f"is of type {type(value).__name__}: JSON has no such thing, send a string or a number"


def _explain_text(text: str) -> str | None:
    if "\0" in text:
        return "contains a NUL character, which PostgreSQL cannot hold"
    if _SURROGATE.search(text):
        return "contains half of a surrogate pair, which is no Unicode text"
    return None


def _shortened(path: str) -> str:
    return path if len(path) <= 200 else f"{path[:100]}...{path[-90:]}"
