"""Calls: sends whose caller waits for the outcome.

A called command carries the number of its bus, and what ends it notifies the channel of that
number; see call_listener.py. While no notification can be heard, each waiting thread checks for
the outcome of its command itself.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from uuid import UUID

import psycopg

from cmdbus import instrument_hooks
from cmdbus.backoff import Backoff
from cmdbus.clock import time
from cmdbus.data import decode
from cmdbus.database.adapters import own_cursor
from cmdbus.database.pool import Connection
from cmdbus.database.statements import render
from cmdbus.errors import (
    CallTimeoutError,
    CommandFailedError,
    CommandNotFoundError,
    DatabaseUnavailableError,
)
from cmdbus.integrations.callers_connection import CallersConnection
from cmdbus.producer.call_listener import CallListener
from cmdbus.producer.connections import MIN_CONNECT_SECONDS, Connections
from cmdbus.producer.records import Status

#: Seconds between two checks while no notification can be heard.
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.005, 0.2
#: Seconds between two checks while notifications are heard: the server sends none while its queue
#: of them is nearly full.
_CHECK_SECONDS = 5.0


class Call:
    """One call: what its caller does before, between and after its waits."""

    def __init__(
        self,
        calls: "Calls",
        domain: str,
        command_id: UUID,
        timeout: float,
        send: Callable[..., object],
    ) -> None:
        """`send(connection, caller, within)` sends the command with the number of its caller."""
        self.listener, self.command_id = calls.listener(), command_id
        self._calls, self._domain, self._send = calls, domain, send
        self._timeout, self._deadline = timeout, time.monotonic() + timeout
        self._backoff = Backoff(_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        self._is_last = False
        #: As it was read; None before that.
        self._state: str | None = None
        self._end: Sequence[Any] | None = None

    def observed(self) -> AbstractContextManager[object]:
        """For the instruments of the process."""
        return instrument_hooks.waiting("call", self._domain, self.command_id)

    @property
    def has_ended(self) -> bool:
        return self._end is not None

    @property
    def within(self) -> float:
        """Seconds that it may take to get a connection."""
        return max(self._deadline - time.monotonic(), MIN_CONNECT_SECONDS)

    def send(self, *, connection: CallersConnection | None = None) -> None:
        self._send(connection, self.listener.number, self.within)

    def pause(self) -> float:
        """Seconds until the next read, which is due at once when the listener hears of the end."""
        left = self._deadline - time.monotonic()
        self._is_last = left <= 0
        return min(_CHECK_SECONDS if self.listener.hears else self._backoff.pause(), left)

    def read(self, *, connection: CallersConnection | None = None) -> None:
        row = self._calls.outcome(connection, self._domain, self.command_id, self.within)
        self._state = row[0]
        if self._state is None:
            raise CommandNotFoundError(self._domain, self.command_id)
        if self._state not in (Status.PENDING, Status.IN_PROGRESS):
            self._end = row

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Around each read. One that fails is repeated: the command goes on, and so does the call.
        After the last one CallTimeoutError is raised."""
        cause: Exception | None = None
        try:
            yield
        except (psycopg.OperationalError, DatabaseUnavailableError) as error:
            if self._calls.closed:
                raise
            self._state, cause = f"in a state that cannot be read ({error})", error
        if self._is_last and not self.has_ended:
            raise CallTimeoutError(
                self._domain, self.command_id, self._state or "", self._timeout
            ) from cause

    def result(self) -> Any:
        assert self._end is not None, "only of a call that has ended"
        status, result, code, message, details = self._end
        if status == Status.COMPLETED:
            return None if result is None else decode(result)
        decoded = None if details is None else decode(details)
        raise CommandFailedError(code or "", message or "", decoded, self.command_id, status)


def complete(call: Call) -> Any:
    """Sends its command, waits in this thread, and returns the command's result."""
    with call.observed(), call.listener.expecting(call.command_id) as news:
        call.send()
        while not call.has_ended:
            pause = call.pause()
            call.listener.wait(call.command_id, news, pause, call.within)
            with call.reading():
                call.read()
        return call.result()


class Calls:
    """The calls of one bus."""

    def __init__(self, connections: Connections, schema: str) -> None:
        self._connections = connections
        self._schema = schema
        #: By process: a fork shares the sessions, which only the process that opened them uses.
        self._listeners: dict[int, CallListener] = {}
        self.closed = False
        #: What becomes of a call that has begun: an AsyncCommandBus awaits it.
        self.complete: Callable[[Call], Any] = complete

    def close(self) -> None:
        self.closed = True
        listener = self._listeners.get(os.getpid())
        if listener is not None:
            listener.close()

    def outcome(
        self,
        connection: CallersConnection | None,
        domain: str,
        command_id: UUID,
        within: float,
    ) -> Sequence[Any]:
        key = {"domain": domain, "command_id": command_id}
        [row] = self._connections.rows(connection, "outcome", "producer", within=within, **key)
        return row

    def listener(self) -> CallListener:
        pid = os.getpid()
        # Threads that come together agree on one: setdefault is atomic.
        return self._listeners.get(pid) or self._listeners.setdefault(
            pid, CallListener(self._listen, self._greet)
        )

    def _listen(self, number: int, within: float) -> Connection:
        session = self._connections.open_session(within)
        try:
            text = render("listen_for_calls", self._schema, caller=f"{number:x}")
            own_cursor(session).execute(text.encode())
        except BaseException:
            session.close()
            raise
        return session

    def _greet(self, number: int, within: float) -> None:
        channel = f"{self._schema}_c{number:x}"
        self._connections.rows(None, "greet_caller", "producer", within=within, channel=channel)
