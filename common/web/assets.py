"""The files of the page, which lie beside this module."""

import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import cache, lru_cache
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
#: A browser asks whether its copy of a document is the present one, and need not ask for what the
#: document names: that has the version in its path.
_ASK, _KEEP = "no-cache", "private, max-age=31536000, immutable"
_VERSIONED = re.compile(r"([0-9a-f]{12})/(.+)")
_LINK = b'="static/'


@dataclass(frozen=True, slots=True)
class Asset:
    type: str
    content: bytes
    compressed: bytes | None
    tag: str


def find(name: str, *, accepts: str = "", known: str = "") -> Response | None:
    """The file of this name below the folder, if there is one; the name may begin with a version.
    `accepts`: encodings that the browser reads; `known`: tags of the copies that it has."""
    versioned = _VERSIONED.fullmatch(name)
    file = _names().get(versioned[2] if versioned else name)
    if file is None:
        return None
    is_present = versioned is not None and versioned[1] == version()
    asset = _document(file, version()) if file.suffix == ".html" else _loaded(file)
    headers = [("ETag", asset.tag), ("Vary", "Accept-Encoding")]
    headers.append(("Cache-Control", _KEEP if is_present else _ASK))
    if asset.tag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
        return Response(HTTPStatus.NOT_MODIFIED, asset.type, b"", tuple(headers))
    content = asset.content
    if asset.compressed is not None and "gzip" in accepts:
        content = asset.compressed
        headers.append(("Content-Encoding", "gzip"))
    return Response(HTTPStatus.OK, asset.type, content, tuple(headers))


def document(name: str) -> bytes:
    """A page of HTML, whose links have the version."""
    return _document(FOLDER / name, version()).content


def version() -> str:
    """Of all files together: it changes when one of them does."""
    tags = "".join(f"{name}{_loaded(file).tag}" for name, file in _names().items())
    return hashlib.sha256(tags.encode()).hexdigest()[:12]


@cache
def _names() -> dict[str, Path]:
    """Files by name: no path of a request is ever opened."""
    files = (file for file in sorted(FOLDER.rglob("*")) if file.suffix in _TYPES and file.is_file())
    return {file.relative_to(FOLDER).as_posix(): file for file in files}


def _loaded(file: Path) -> Asset:
    """Again after a change, for those who work on the page."""
    return _read(file, file.stat().st_mtime_ns)


@cache
def _read(file: Path, changed: int) -> Asset:
    return _asset(file, file.read_bytes())


@lru_cache(maxsize=8)
def _document(file: Path, version: str) -> Asset:
    links = _LINK + f"{version}/".encode()
    return _asset(file, file.read_bytes().replace(_LINK, links))


def _asset(file: Path, content: bytes) -> Asset:
    compressed = gzip.compress(content, mtime=0) if len(content) >= _MIN_COMPRESSED else None
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return Asset(_TYPES[file.suffix], content, compressed, tag)
