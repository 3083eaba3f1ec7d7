"""The files of the page, which lie beside this module."""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from pathlib import Path

from cmdbus.web.responses import Response

FOLDER = Path(__file__).parent / "static"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}
#: Bytes below which compression saves nothing.
_MIN_COMPRESSED = 1000
#: A browser asks each time whether its copy is the present one: a release replaces files.
_CACHE = "no-cache"


@dataclass(frozen=True, slots=True)
class Asset:
    type: str
    content: bytes
    compressed: bytes | None
    tag: str


def find(name: str, *, accepts: str = "", known: str = "") -> Response | None:
    """The file of this name below the folder, if there is one. `accepts`: encodings that the
    browser reads; `known`: tags of the copies that it has."""
    file = _names().get(name)
    if file is None:
        return None
    asset = _loaded(file, file.stat().st_mtime_ns)
    headers = [("ETag", asset.tag), ("Cache-Control", _CACHE), ("Vary", "Accept-Encoding")]
    if asset.tag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
        return Response(HTTPStatus.NOT_MODIFIED, asset.type, b"", tuple(headers))
    content = asset.content
    if asset.compressed is not None and "gzip" in accepts:
        content = asset.compressed
        headers.append(("Content-Encoding", "gzip"))
    return Response(HTTPStatus.OK, asset.type, content, tuple(headers))


def content(name: str) -> bytes:
    """Of a file that is there."""
    return (FOLDER / name).read_bytes()


@cache
def _names() -> dict[str, Path]:
    """Files by name: no path of a request is ever opened."""
    files = (file for file in FOLDER.rglob("*") if file.suffix in _TYPES and file.is_file())
    return {file.relative_to(FOLDER).as_posix(): file for file in files}


@cache
def _loaded(file: Path, changed: int) -> Asset:
    """Again after a change, for those who work on the page."""
    content = file.read_bytes()
    compressed = gzip.compress(content, mtime=0) if len(content) >= _MIN_COMPRESSED else None
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return Asset(_TYPES[file.suffix], content, compressed, tag)
