"""A worker in a thread of the test, handlers to watch, and effects to count."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool

from cmdbus import Command, Context, HandlerRegistry
from cmdbus.board.views import SeatView
from cmdbus.worker import Worker
from cmdbus.worker.claims.claims import Claims


@contextmanager
def running(
    dsn: str | ConnectionPool, registry: HandlerRegistry, **options: Any
) -> Iterator[Worker]:
    """Stopped at the end, and an error of its own is the test's."""
    worker = Worker(dsn, registry, **options)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="test-runner")
    thread.start()
    try:
        yield worker
    finally:
        worker.stop(timeout=5)
        thread.join(10)
    assert not errors, errors


def seat_of(worker: Worker) -> SeatView:
    """What the board shows of it."""
    return worker._telemetry.board.seat_view(0)


def connect(dsn: str, **settings: Any) -> psycopg.Connection:
    return psycopg.connect(dsn, autocommit=True, **settings)


def promote(claims: Claims, connection: psycopg.Connection, rows: int = 100) -> int:
    """Moves due commands to the queue, as a steward does; returns how many."""
    values = {"count": rows, "bytes": 10**8, "skipped": "{}"}
    return int(claims.value(connection, "promote", **values))


def effects(dsn: str) -> int:
    with connect(dsn) as connection:
        row = connection.execute("SELECT count(*) FROM effect").fetchone()
        assert row is not None
        return int(row[0])


def leave_effect(command: Command, context: Context) -> None:
    context.connection.execute(
        "INSERT INTO effect VALUES (%s, %s)", (command.command_id, context.attempt)
    )


class Gate:
    """A handler that waits until the test lets it go on."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()
        self.inside = 0
        self.most = 0
        self._lock = threading.Lock()

    def __call__(self, command: Command, context: Context) -> str:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.entered.release()
        self.open.wait(20)
        with self._lock:
            self.inside -= 1
        return "through"

    def wait_for(self, count: int) -> None:
        for _ in range(count):
            assert self.entered.acquire(timeout=10)
