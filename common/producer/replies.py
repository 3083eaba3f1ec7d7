"""Replies that a program reads itself, without a handler."""

import logging
import os
from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Self, TypeVar
from weakref import WeakSet

import psycopg

from cmdbus.checks import check_flag, check_name, check_seconds
from cmdbus.clock import time
from cmdbus.database.executor import Executor
from cmdbus.errors import DatabaseUnavailableError, InvalidOperationError
from cmdbus.printable import joined
from cmdbus.producer.connections import Connections
from cmdbus.producer.records import ReceivedReply
from cmdbus.producer.reply_leases import ReplyLeases
from cmdbus.producer.reply_waiter import ReplyWaiter

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Readers:
    """The readers of one bus."""

    def __init__(self, connections: Connections, executor: Executor) -> None:
        self._connections, self._executor = connections, executor
        #: Those that are in use.
        self._open = WeakSet[Replies]()

    def open(self, domain: str, timeout: float | None, lease: float, shared: bool) -> "Replies":
        check_name("domain", domain)
        leases = ReplyLeases(self._connections, self._executor, check_seconds("lease", lease))
        replies = Replies(
            leases,
            ReplyWaiter(
                leases.open_session,
                leases.connections,
                self._executor,
                leases.incarnation,
                domain,
            ),
            domain,
            None if timeout is None else check_seconds("timeout", timeout),
            check_flag("shared", shared),
        )
        self._open.add(replies)
        return replies

    def close(self) -> None:
        for replies in list(self._open):
            replies.close()


class Replies:
    """Iterates over replies. One is held at a time: asking for the next one acknowledges it; a loop
    that is left in any other way releases it, and so does `close`."""

    def __init__(
        self,
        leases: ReplyLeases,
        waiter: ReplyWaiter,
        domain: str,
        timeout: float | None,
        shared: bool,
    ) -> None:
        self._leases, self._waiter = leases, waiter
        self._domain, self._timeout, self._shared = domain, timeout, shared
        self._pid = os.getpid()
        self._closing = Event()
        #: Whether the database is away, after it has answered once; None before that.
        self._is_away: bool | None = None

    def __iter__(self) -> Self:
        """Releases what a loop held that was left before its end."""
        self._check_process()
        self._leases.release()
        return self

    def __next__(self) -> ReceivedReply:
        self._check_process()
        claim = partial(self._leases.claim, self._domain, shared=self._shared)
        reply = None
        try:
            self._repeat(self._leases.acknowledge)
            reply = self._repeat(claim)
            self._waiter.end()
        finally:
            if reply is None:
                self._leases.stop_renewals()
        if reply is None or self._closing.is_set():
            raise StopIteration
        return reply

    def _repeat(self, work: Callable[[], T | None]) -> T | None:
        """Until it returns something; None after the timeout, or if the reader is closed."""
        until = float("inf") if self._timeout is None else time.monotonic() + self._timeout
        done, left = None, 1.0
        while done is None and left > 0 and not self._closing.is_set():
            left = until - time.monotonic()
            done = self._attempt(work, is_last=left <= 0)
            if done is None:
                self._waiter.wait(left)
        return done

    def _attempt(self, work: Callable[[], T | None], *, is_last: bool) -> T | None:
        """Also None while the database is away, if it has answered before."""
        try:
            done = work()
        except (psycopg.OperationalError, DatabaseUnavailableError) as error:
            if self._closing.is_set():
                return None
            if self._is_away is None or is_last:
                raise
            if not self._is_away:
                why = joined(str(error))
                logger.warning("replies cannot be read or acknowledged; trying again: %s", why)
            self._is_away = True
            return None
        self._is_away = False
        return done

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise InvalidOperationError(
                f"these replies are read by process {self._pid}, and this is process "
                f"{os.getpid()}: call bus.replies after the fork"
            )

    def interrupt(self) -> None:
        """Ends the iteration, and does not wait for it; `close` then releases what it holds."""
        self._closing.set()
        if os.getpid() == self._pid:
            self._waiter.interrupt()

    def close(self) -> None:
        """Releases what was not acknowledged; the iteration ends. Safe to repeat."""
        self._closing.set()
        if os.getpid() == self._pid:  # In a forked child, it is the parent's.
            self._waiter.close()
            self._leases.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_closing"):
            self.close()
