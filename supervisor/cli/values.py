"""The values of options, from their texts. Each ValueError is for the user who wrote it. Pure."""

import re
from typing import BinaryIO
from uuid import UUID

from cmdbus.checks import check_id, check_name, check_seconds
from cmdbus.selection import ALL_PRIORITIES
from cmdbus.settings import ThreadRange

_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d{1,10}(?:\.\d{1,6})?)(ms|[smhd]?)", re.ASCII)
_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_SIZE = re.compile(r"(\d{1,15})([KMGT]?)(?:i?B)?", re.IGNORECASE | re.ASCII)
#: Bytes without which no process could start: 512 lacks its unit.
_MIN_BYTES = 16 * 1024**2
_MIN_PAYLOAD_BYTES, _MAX_PAYLOAD_BYTES = 1024, 1024**3
_ADDRESS = re.compile(r"(?P<host>[^\s:\[\]]*|\[[0-9A-Fa-f:.]+\]):(?P<port>\d{1,5})", re.ASCII)


def duration(text: str) -> float:
    """Seconds, or a number with ms, s, m, h or d; also 0."""
    found = _DURATION.fullmatch(text)
    if not found and _DURATION.fullmatch(text.removeprefix("-")):
        raise ValueError(f"it must not be negative, as {text!r} is")
    if not found:
        raise ValueError(f"it must be seconds, or like 500ms, 30s, 5m, 2h, 1d, not {text!r}")
    return float(found[1]) * _SECONDS[found[2]]


def seconds(text: str, *, at_least: float = 0.0) -> float:
    found = check_seconds("it", duration(text))
    if found < at_least:
        raise ValueError(f"it must be at least {at_least} seconds, not {text}")
    return found


def size(text: str) -> int:
    """Bytes, with K, M, G or T for powers of 1024."""
    bytes_ = _bytes(text)
    if bytes_ < _MIN_BYTES:
        raise ValueError(f"{bytes_} bytes are less than a process needs: write it like 512M")
    return bytes_


def payload_size(text: str) -> int:
    """Bytes of claimed commands that no thread has started yet."""
    bytes_ = _bytes(text)
    if not _MIN_PAYLOAD_BYTES <= bytes_ <= _MAX_PAYLOAD_BYTES:
        raise ValueError(f"it must be from 1K to 1G, not {text}")
    return bytes_


def _bytes(text: str) -> int:
    found = _SIZE.fullmatch(text)
    if not found:
        raise ValueError(f"it must be a size like 512M or 2G, not {text!r}")
    return int(found[1]) * _UNITS[found[2].upper()]


def uuid(text: str) -> UUID:
    return check_id("it", text)


def whole(text: str, *, at_least: int = 1, at_most: int = 2**53) -> int:
    number = int(text) if re.fullmatch(r"\d{1,16}", text, re.ASCII) else -1
    if not at_least <= number <= at_most:
        bounds = f"from {at_least} to {at_most}" if at_most < 2**53 else f"of at least {at_least}"
        raise ValueError(f"it must be a whole number {bounds}, not {text!r}")
    return number


def threads(text: str, *, at_most: int) -> int | ThreadRange:
    """A number, or the least and the most."""
    found = re.fullmatch(r"(\d{1,16})(?::(\d{1,16}))?", text, re.ASCII)
    numbers = [int(number) for number in found.groups() if number] if found else []
    if not numbers or not all(1 <= number <= at_most for number in numbers):
        raise ValueError(
            f"it must be a whole number from 1 to {at_most}, or two like 2:32, not {text!r}"
        )
    least, most = numbers[0], numbers[-1]
    if least > most:
        raise ValueError(f"it begins with the least: write {most}:{least}, not {text}")
    return ThreadRange(least, most) if least < most else least


def one_name(text: str, *, option: str) -> str:
    """Of an option that is repeated."""
    try:
        return check_name("it", text)
    except ValueError as error:
        if not re.search(r"[\s,;]", text):
            raise
        raise ValueError(
            f"{error}; several {option}s are given as --{option} A --{option} B, as "
            f"CMDBUS_{option.upper()}='A B', or as a list in the settings file"
        ) from None


def priorities(text: str) -> tuple[int, int]:
    """The first and the last one: `0-4`, or `3`."""
    found = re.fullmatch(r"(\d{1,2})(?:-(\d{1,2}))?", text, re.ASCII)
    if not found or max(int(number or 0) for number in found.groups()) > ALL_PRIORITIES[1]:
        raise ValueError(f"it must be priorities from 0 to 10, like 0-4 or 3, not {text!r}")
    first, last = int(found[1]), int(found[2] or found[1])
    if first > last:
        raise ValueError(f"it must begin with the lower number, like {last}-{first}, not {text!r}")
    return first, last


def address(text: str) -> tuple[str, int]:
    """Host and port; without a host it is this machine alone."""
    found = _ADDRESS.fullmatch(text)
    if not found or int(found["port"]) > 65535:
        raise ValueError(f"it must be HOST:PORT or :PORT, not {text!r}")
    return found["host"].strip("[]") or "127.0.0.1", int(found["port"])


def read_text(file: BinaryIO, max_bytes: int) -> str:
    """A ValueError if it has more than `max_bytes` bytes, as a device without an end has."""
    content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it has more than {max_bytes} bytes")
    return decoded(content)


def decoded(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ValueError("it is no UTF-8 text") from None
