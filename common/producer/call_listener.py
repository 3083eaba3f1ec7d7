"""Hears which called commands have ended, on one session for all calls of a bus in a process.

It has no thread: one of the threads that wait reads the session for all of them, until its own
wait is over, and then calls another. Each notification names a command.
"""

import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from threading import RLock, get_ident
from typing import Protocol
from uuid import UUID

import psycopg

from cmdbus.clock import time
from cmdbus.database.pool import Connection
from cmdbus.errors import DatabaseUnavailableError, SendRefusedError
from cmdbus.printable import joined
from cmdbus.producer.listening_session import NUMBER_BITS, ListeningSession, close_with_owner

logger = logging.getLogger(__name__)

#: Seconds within which a greeting should arrive, and until the next attempt to listen after one
#: that failed.
_GREETING_SECONDS, _RETRY_SECONDS = 5.0, 1.0
#: Seconds of a wait that has interrupted the thread that reads.
_INTERRUPTING_SECONDS = 0.05

#: What a waiting thread gets: True if its command may have ended, False if it is to read.
News = SimpleQueue[bool]


class Notified(Protocol):
    """What gets True when a command may have ended. A `News`, or what does not wait in a thread."""

    def put(self, item: bool, /) -> object: ...


class CallListener:
    """Belongs to the process that made it. Its users share it without further locks."""

    def __init__(
        self, listen: Callable[[int, float], Connection], greet: Callable[[int, float], object]
    ) -> None:
        """`listen` opens a session that listens to the channel of this number; `greet` sends a
        notification without a command there, through another session. Both get the seconds within
        which they are to have one."""
        self.number = secrets.randbits(NUMBER_BITS)
        #: Whether notifications reach the session. Only a greeting shows that: a pooler may give
        #: each transaction to another session.
        self.hears = False
        self._listen, self._greet = listen, greet
        self._expected: dict[str, Notified] = {}
        self._waiting: dict[str, News] = {}
        # Reentrant: a signal handler may call while its thread is in here.
        self._lock = RLock()
        self._reader: int | None = None
        #: The session, if there is one.
        self._sessions: list[ListeningSession] = []
        self._greeted_at = self._retry_at = 0.0
        self._warned = self.closed = False
        #: Whether notifications may come for calls that have been given up.
        self._gave_up = False
        close_with_owner(self, self._sessions)

    @contextmanager
    def expecting(self, command_id: UUID, notified: Notified | None = None) -> Iterator[News]:
        """Begins before the command is sent, so that nothing is missed. For `wait`, unless
        something else is `notified`."""
        name, news = str(command_id), News()
        self._expected[name] = notified or news
        try:
            yield news
        except SendRefusedError:
            raise
        except BaseException:
            self._gave_up = True
            raise
        finally:
            del self._expected[name]
            if self._gave_up:
                self._close_if_unused()

    def wait(self, command_id: UUID, news: News, seconds: float, within: float) -> None:
        """Returns when the command may have ended, or after `seconds`. `within`: seconds that it
        may take to open a session."""
        if self._reader == get_ident():  # A signal handler has interrupted it.
            time.sleep(max(0.0, min(seconds, _INTERRUPTING_SECONDS)))
            return
        name, until = str(command_id), time.monotonic() + seconds
        try:
            while (left := until - time.monotonic()) > 0:
                if self._begins_to_read(name, news):
                    is_over = self._read(news, left, within)
                else:
                    is_over = _await_news(news, left)
                if is_over:
                    return
        finally:
            self._end_wait(name)

    def close(self) -> None:
        with self._lock:
            self.closed = True
            if self._reader is None:
                self._lose_session()
            else:
                # The reader closes it. Until then its descriptor must stay the session's.
                for session in self._sessions:
                    session.abort()
        self._notify_all()

    def _begins_to_read(self, name: str, news: News) -> bool:
        with self._lock:
            if self._reader is None:
                self._reader = get_ident()
                return True
            self._waiting[name] = news
            return False

    def _end_wait(self, name: str) -> None:
        with self._lock:
            self._waiting.pop(name, None)
            if self._reader == get_ident():
                self._reader = None
            if self._reader is None and self._waiting:
                self._waiting.popitem()[1].put(False)
            elif self._reader is None and self.closed:
                self._lose_session()

    def _read(self, news: News, seconds: float, within: float) -> bool:
        """Whether there is news for this thread. While nothing can be heard it only waits."""
        until = time.monotonic() + seconds
        try:
            session = self._session(within)
            if session is not None:
                return self._hear(session, news, until)
        except (psycopg.Error, DatabaseUnavailableError, OSError) as error:
            self._lost(joined(str(error)))
        return _await_news(news, until - time.monotonic())

    def _session(self, within: float) -> ListeningSession | None:
        if self._sessions or self.closed:
            return self._sessions[0] if self._sessions else None
        now = time.monotonic()
        if now < self._retry_at:
            return None
        self._retry_at = now + _RETRY_SECONDS
        session = ListeningSession(self._listen(self.number, within))
        with self._lock:
            if self.closed:
                session.close()
                return None
            self._sessions.append(session)
        # After a failure the greeting is missed, which is noticed.
        with suppress(psycopg.Error, DatabaseUnavailableError):
            self._greet(self.number, within)
        self._greeted_at = time.monotonic()
        self._notify_all()  # Earlier notifications have reached no session.
        return session

    def _hear(self, session: ListeningSession, news: News, until: float) -> bool:
        while True:
            for name in session.received():
                self.hears, self._warned = True, False
                self._notify(name)
            if _has_news(news):
                return True
            now = time.monotonic()
            if now >= until:
                return False
            if not self.hears and now > self._greeted_at + _GREETING_SECONDS:
                self._warn_once("none arrives, as behind a pooler in transaction mode")
            session.wait(until - now)

    def _notify(self, name: str) -> None:
        if name in self._expected:
            with suppress(KeyError):  # Its call has ended meanwhile.
                self._expected[name].put(True)

    def _notify_all(self) -> None:
        for news in list(self._expected.values()):
            news.put(True)

    def _lost(self, why: str) -> None:
        had_session = self._lose_session()
        if had_session and self.hears:
            self._retry_at = 0.0
        elif not self.closed:
            self._warn_once(why)
        self.hears = False
        if had_session:
            self._notify_all()

    def _warn_once(self, why: str) -> None:
        """Once until a notification arrives."""
        if not self._warned:
            self._warned = True
            message = "calls are not notified and check for their outcomes themselves: %s"
            logger.warning(message, why)

    def _lose_session(self) -> bool:
        with self._lock:
            lost = list(self._sessions)
            self._sessions.clear()
        for session in lost:
            session.close()
        return bool(lost)

    def _close_if_unused(self) -> None:
        """A session that no thread reads would fill up with the notifications of calls that have
        been given up, and with it the server's queue."""
        with self._lock:
            if self._expected or self._reader is not None:
                return
            if self._lose_session():
                self._retry_at = 0.0
            self.hears = self._gave_up = False


def _await_news(news: News, seconds: float) -> bool:
    """Until another thread reads about the command, or this one is to read."""
    with suppress(Empty):
        return news.get(timeout=max(seconds, 0.0))
    return False


def _has_news(news: News) -> bool:
    with suppress(Empty):
        while True:
            if news.get_nowait():
                return True
    return False
