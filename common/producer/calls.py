"""Calls: sends whose caller waits for the outcome.

A called command carries the number of its bus, and what ends it notifies the channel of that
number; see call_listener.py. While no notification can be heard, each waiting thread checks for
the outcome of its command itself.
"""

import os
from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg

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
from cmdbus.producer.call_listener import CallListener
from cmdbus.producer.connections import MIN_CONNECT_SECONDS, Connections
from cmdbus.producer.records import Status

#: Seconds between two checks while no notification can be heard.
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.005, 0.2
#: Seconds between two checks while notifications are heard: the server sends none while its queue
#: of them is nearly full.
_CHECK_SECONDS = 5.0


class Calls:
    """The calls of one bus."""

    def __init__(self, connections: Connections, schema: str) -> None:
        self._connections = connections
        self._schema = schema
        #: By process: a fork shares the sessions, which only the process that opened them uses.
        self._listeners: dict[int, CallListener] = {}
        self._closed = False

    def call(
        self, domain: str, command_id: UUID, timeout: float, send: Callable[[int], object]
    ) -> Any:
        """`send` sends the command with this bus's number; returns the command's result."""
        deadline = time.monotonic() + timeout
        listener = self._listener()
        with listener.expecting(command_id):
            send(listener.number)
            status, result, code, message, details = self._outcome(
                listener, domain, command_id, deadline, timeout
            )
        if status == Status.COMPLETED:
            return None if result is None else decode(result)
        decoded = None if details is None else decode(details)
        raise CommandFailedError(code or "", message or "", decoded, command_id, status)

    def close(self) -> None:
        self._closed = True
        listener = self._listeners.get(os.getpid())
        if listener is not None:
            listener.close()

    def _outcome(
        self,
        listener: CallListener,
        domain: str,
        command_id: UUID,
        deadline: float,
        timeout: float,
    ) -> tuple[Any, ...]:
        backoff = Backoff(_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        while True:
            left = deadline - time.monotonic()
            pause = _CHECK_SECONDS if listener.hears else backoff.pause()
            listener.wait(command_id, min(pause, left), max(left, MIN_CONNECT_SECONDS))
            cause: Exception | None = None
            within = max(deadline - time.monotonic(), MIN_CONNECT_SECONDS)
            key = {"domain": domain, "command_id": command_id}
            try:
                [row] = self._connections.rows(None, "outcome", "producer", within=within, **key)
            except (psycopg.OperationalError, DatabaseUnavailableError) as error:
                # The command goes on, and so does the call.
                if self._closed:
                    raise
                state, cause = f"in a state that cannot be read ({error})", error
            else:
                state = row[0]
                if state is None:
                    raise CommandNotFoundError(domain, command_id)
                if state not in (Status.PENDING, Status.IN_PROGRESS):
                    return row
            if left <= 0:
                raise CallTimeoutError(domain, command_id, state, timeout) from cause

    def _listener(self) -> CallListener:
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
