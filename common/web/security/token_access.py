"""Signing in with a token, and a limit for guesses."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus

from cmdbus.clock import time
from cmdbus.web.http.request import Request
from cmdbus.web.security.access import Visitor
from cmdbus.web.security.tickets import is_same

#: Wrong tokens from one address, and the seconds after which they are forgotten.
_MAX_WRONG, _WRONG_SECONDS = 10, 60.0
#: Addresses that are remembered.
_MAX_ADDRESSES = 1000


class Guesses:
    """Wrong tokens by address. Safe to share between threads."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        #: How many, and since when.
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def too_many(self, address: str) -> float:
        """Seconds until another try is taken; 0 if one is now."""
        with self._lock:
            count, since = self._wrong.get(address, (0, 0.0))
            left = since + _WRONG_SECONDS - self._now()
            return left if count >= _MAX_WRONG and left > 0 else 0.0

    def note(self, address: str) -> None:
        with self._lock:
            now = self._now()
            count, since = self._wrong.pop(address, (0, now))
            if since + _WRONG_SECONDS <= now:
                count, since = 0, now
            self._wrong[address] = count + 1, since
            if len(self._wrong) > _MAX_ADDRESSES:
                self._wrong.popitem(last=False)


class TokenAccess:
    """Those who know a token. The page does not know their names."""

    signs_in = True

    def __init__(self, token: str) -> None:
        self._token = token
        self._guesses = Guesses()

    def admit(self, request: Request) -> Visitor:
        """Anyone, as far as the form; see Gate."""
        return Visitor()

    def check(self, request: Request, given: str) -> tuple[HTTPStatus, str] | None:
        """Why the token is not taken; None if it is."""
        address = str(request.environ.get("REMOTE_ADDR", ""))
        if seconds := self._guesses.too_many(address):
            return (
                HTTPStatus.TOO_MANY_REQUESTS,
                f"There were too many wrong tokens: try again in {seconds:.0f} seconds.",
            )
        if is_same(given, self._token):
            return None
        self._guesses.note(address)
        return HTTPStatus.FORBIDDEN, "This is not the token."
