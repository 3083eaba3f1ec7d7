"""A thread that asks the database, with a session of its own, while clients of probes ask it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import psycopg

from cmdbus.clock import time
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.sessions import abort_io, abort_io_at

#: Seconds without a question after which the session is closed.
IDLE_SECONDS = 60.0


class SessionThread:
    def __init__(self, name: str, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._asked = threading.Event()
        self._answered = threading.Event()
        self._stopping = threading.Event()
        self._connection: Connection | None = None
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self, seconds: float) -> None:
        self._stopping.set()
        self._asked.set()
        self.thread.join(seconds)

    def ask(self, seconds: float) -> None:
        """Waits at most this long for an answer."""
        self._answered.clear()
        self._asked.set()
        self._answered.wait(seconds)

    def answer(self) -> None:
        """Called by the thread after a question."""
        raise NotImplementedError

    @contextmanager
    def session(self, within: float) -> Iterator[Connection]:
        """Opened if there is none; aborted after this many seconds, as its server may be silent."""
        self._connection = connection = self._connection or self._connect()
        with abort_io_at(time.monotonic() + within, partial(abort_io, connection)):
            yield connection

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if not self._asked.wait(None if self._connection is None else IDLE_SECONDS):
                self.close()
            elif not self._stopping.is_set():
                self._asked.clear()
                self.answer()
                self._answered.set()
        self.close()
