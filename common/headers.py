"""Headers of commands: texts that travel beside the data, like a trace's id. Pure.

The schema's type `headers` holds the same rules, for programs that write rows themselves.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final

#: Names of headers that a handler's commands and replies get of its command, unless its registry
#: names others. They are also in the schema's functions forwarded_headers and
#: legal_headers_of_message.
FORWARDED = ("traceparent", "tracestate", "tenant")
MAX_HEADERS = 32
#: Characters of one value, and bytes of all headers as JSON.
MAX_VALUE = 4000
MAX_BYTES = 8192

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}\Z")
#: Half of a surrogate pair is no Unicode text.
_NO_TEXT = re.compile(r"[\0\ud800-\udfff]")
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode


class Headers(Mapping[str, str]):
    """Headers that cannot be changed."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return repr(self._values)


#: The headers of all commands that have none.
NO_HEADERS: Final[Mapping[str, str]] = Headers({})


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The same as plain text; a ValueError names the defect, and no value."""
    if not isinstance(headers, Mapping):
        kind = type(headers).__name__
        raise ValueError(f"headers must be a mapping of names to texts, not of type {kind}")
    if len(headers) > MAX_HEADERS:
        raise ValueError(f"there are {len(headers)} headers: at most {MAX_HEADERS} are taken")
    return {check_header_name(name): _checked(name, value) for name, value in headers.items()}


def check_header_name(name: str, what: str = "the name of a header") -> str:
    if not isinstance(name, str) or not _is_name(name):
        raise ValueError(
            f"{what} must be a letter and up to 99 more of A-Z a-z 0-9 _ . - (ASCII), "
            f"not {name!r:.120}"
        )
    return name if type(name) is str else str.__str__(name)


def encode_headers(headers: Mapping[str, str] | None) -> str | None:
    """As JSON text, None if there are none; a ValueError names the defect."""
    if not headers and (headers is None or isinstance(headers, Mapping)):
        return None
    text = _encode(check_headers(headers))
    size = len(text) if text.isascii() else len(text.encode())
    if size > MAX_BYTES:
        raise ValueError(f"headers have {size} bytes as JSON: at most {MAX_BYTES} are taken")
    return text


def encode_with_defaults(
    own: Mapping[str, str] | None, defaults: Mapping[str, str] | None
) -> str | None:
    """As JSON text. Defaults give way to a sender's own headers, and to the bounds; a ValueError is
    about the sender's."""
    if not defaults:
        return encode_headers(own)
    try:
        return encode_headers(merged(defaults, own))
    except (ValueError, TypeError):
        text = encode_headers(own)
    kept = dict(own or {})
    for name, value in {**defaults}.items():  # Another thread may change them.
        if name not in kept:
            try:
                text = encode_headers({**kept, name: value})
            except ValueError:
                continue
            kept[name] = value
    return text


def decode_headers(text: str | None) -> dict[str, str]:
    """From JSON text. Left out is what could not be sent: a row that others wrote must not stop its
    readers."""
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: value for name, value in found.items() if _is_name(name) and _is_value(value)}


def merged(*layers: Mapping[str, str] | None) -> dict[str, str] | None:
    """The headers of all layers, of which a later one wins; None if there are none."""
    found: dict[str, str] = {}
    for layer in layers:
        if layer:
            found.update(layer)
    return found or None


def selected(headers: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """The headers with these names."""
    return {name: headers[name] for name in names if name in headers}


@lru_cache(maxsize=1024)
def _is_name(name: str) -> bool:
    return _NAME.match(name) is not None


def _is_value(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_VALUE and _NO_TEXT.search(value) is None


def _checked(name: str, value: object) -> str:
    if not _is_value(value):
        raise ValueError(
            f"header {name!r} must be text of at most {MAX_VALUE} characters without NUL, "
            f"{_defect(value)}"
        )
    return value if type(value) is str else str.__str__(value)


def _defect(value: object) -> str:
    """Without the value, which may be a secret."""
    if not isinstance(value, str):
        return f"not of type {type(value).__name__}"
    if len(value) > MAX_VALUE:
        return f"which has {len(value)}"
    return "and this has a NUL" if "\0" in value else "and this has half a surrogate pair"
