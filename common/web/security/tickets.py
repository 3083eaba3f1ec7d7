"""Tickets: the cookie of a browser, which only this page can have made, and what derives from it.

Nothing is kept for those that are taken, so several processes with the same secret take each
other's; what has been signed out is known to one process alone.
"""

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64encode
from threading import Lock

from cmdbus.clock import time

#: Seconds for which a ticket is taken, and after which the page gets another one when it is loaded.
LIFETIME, RENEWED_AFTER = 12 * 3600, 3600
_NONCE_BYTES = 16
_MAX_TEXT = 200
#: Of those that were signed out, the latest.
_MAX_ENDED = 10_000


class Tickets:
    def __init__(self, secret: bytes) -> None:
        self._key = hmac.digest(secret, b"cmdbus: the page's tickets", "sha256")
        #: Tickets that are not taken any more, in the order in which they ended.
        self._ended: dict[str, None] = {}
        self._lock = Lock()

    def issue(self, scope: str) -> str:
        """For whom it is, such as the name of a user, is not in it, but is needed to check it."""
        return self._signed(secrets.token_urlsafe(_NONCE_BYTES), _seconds() + LIFETIME, scope)

    def expiry(self, ticket: str, scope: str) -> int | None:
        """The seconds for which it is still taken; None for one that is not."""
        nonce, _, rest = ticket[:_MAX_TEXT].partition(".")
        expires, _, _ = rest.partition(".")
        if not (expires.isascii() and expires.isdecimal() and len(expires) < 13):
            return None
        if not is_same(self._signed(nonce, int(expires), scope), ticket):
            return None
        left = int(expires) - _seconds()
        return left if 0 < left <= LIFETIME and ticket not in self._ended else None

    def end(self, ticket: str) -> None:
        """Its copies end with it."""
        with self._lock:
            self._ended[ticket] = None
            while len(self._ended) > _MAX_ENDED:
                del self._ended[next(iter(self._ended))]

    def csrf(self, ticket: str) -> str:
        """What actions send besides the cookie: another site's page cannot read it."""
        return _text(hmac.digest(self._key, f"csrf:{ticket}".encode(), "sha256"))

    def _signed(self, nonce: str, expires: int, scope: str) -> str:
        signed = f"ticket:{nonce}.{expires}.{scope}".encode("utf-8", "surrogatepass")
        return f"{nonce}.{expires}.{_text(hmac.digest(self._key, signed, hashlib.sha256))}"


def is_same(one: str, other: str) -> bool:
    """Takes as long wherever they differ."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


def _text(digest: bytes) -> str:
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


def _seconds() -> int:
    return time.time_ns() // 10**9
