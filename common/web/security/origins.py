"""Checks of each request and headers of each response, for every user."""

import ipaddress
import re
from urllib.parse import urlsplit

from cmdbus.web.http.request import Request

#: The page needs nothing from elsewhere, and no other page may show it or read from it.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "font-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
HEADERS = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    # With no-referrer a browser would send a form without its origin.
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
#: What proxies add.
_FORWARDING = ("Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]@/\s]+)(:\d{1,5})?", re.ASCII)
_DEFAULT_PORT = re.compile(r":(80|443)$")


def host_name(host: str) -> str | None:
    """Of the field Host, without the port; None for one that is malformed."""
    found = _HOST.fullmatch(host)
    return found[1].strip("[]").lower().rstrip(".") if found else None


def is_local_name(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def not_local(request: Request, *, host: str | None = None) -> str | None:
    """Why a request may come from another machine, or from the page of another site that has made
    its name lead here (DNS rebinding); None if it is this machine's. `host`: another name for it.
    """
    name = host_name(request.header("Host") or "")
    if name is None or not (is_local_name(name) or name == host):
        return "the page is asked for by a name that is not this machine's"
    peer = str(request.environ.get("REMOTE_ADDR", ""))
    if not is_local_name(peer.removeprefix("::ffff:")):
        return "the page is asked for from another machine"
    if found := next((each for each in _FORWARDING if request.header(each) is not None), None):
        return f"the request came through a proxy, which has added {found}"
    if request.environ.get("SERVER_PROTOCOL") == "HTTP/1.0":
        return "the request came through a proxy, or from no browser: it is one of HTTP/1.0"
    return None


def is_foreign_read(request: Request) -> bool:
    """Whether the page of another site has made a browser ask. Older browsers do not say."""
    return request.header("Sec-Fetch-Site") in ("cross-site", "same-site")


def foreign_origin(request: Request) -> str | None:
    """Why a change may be asked for by the page of another site; None if it is not."""
    site = request.header("Sec-Fetch-Site")
    if site is not None and site != "same-origin":
        return f"the request comes from another page: Sec-Fetch-Site is {site[:40]!r}"
    origin = request.header("Origin")
    if origin is None:
        return None
    try:
        asked = urlsplit(origin)
    except ValueError:
        return "the origin of the request is malformed"
    # A proxy may ask by another name, and says then by which one it was asked.
    hosts = {request.header("Host"), (request.header("X-Forwarded-Host") or "").split(",")[0]}
    known = {_DEFAULT_PORT.sub("", host.strip().lower()) for host in hosts if host}
    if asked.scheme in ("http", "https") and _DEFAULT_PORT.sub("", asked.netloc.lower()) in known:
        return None
    return "the request comes from another page: its Origin is not this one"


def is_secure(request: Request) -> bool:
    """Whether the browser speaks TLS, as far as known: its cookies are then for TLS only."""
    return request.is_secure or request.header("X-Forwarded-Proto") == "https"
