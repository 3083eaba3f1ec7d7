"""A worker in a thread of the test, handlers to watch, and effects to count."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
from eventually import eventually
from psycopg_pool import ConnectionPool
from queries import rows, scalar

from cmdbus import (
    Command,
    CommandBus,
    CommandRecord,
    Context,
    HandlerRegistry,
    RetryPolicy,
    SendRequest,
    Timeouts,
)
from cmdbus.board.records import ClaimState
from cmdbus.board.views import SeatView
from cmdbus.worker import Worker
from cmdbus.worker.claims.claim import Claim, ClaimRequest
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.pools import session_settings

Function = Callable[[Command, Context], object]

#: With it a thread is given up after 0.4 s.
LADDER = Timeouts(statement=0.2, pool=0.3, lease=0.3, thread=0.4, watchdog=1.0)
ONCE = RetryPolicy(max_attempts=1)
SOON = RetryPolicy(max_attempts=3, backoff=(0.01,), jitter=0.0)


def do_nothing(command: Command, context: Context) -> None:
    pass


def handling(
    function: Function = do_nothing, type: str = "Debit", **options: Any
) -> HandlerRegistry:
    """A registry of `payments` with this handler, and one of Noop, which does nothing."""
    registry = HandlerRegistry()
    registry.register("payments", type, function, **options)
    registry.register("payments", "Noop", do_nothing)
    return registry


@contextmanager
def running(
    dsn: str | ConnectionPool, registry: HandlerRegistry, **options: Any
) -> Iterator[Worker]:
    """Stopped at the end, and an error of its own is the test's. Two threads, as each has a
    session, which costs 10 ms."""
    worker = Worker(dsn, registry, **{"concurrency": 2, **options})
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


def run(
    dsn: str | ConnectionPool,
    bus: CommandBus,
    function: Callable[[Command, Context], object],
    times: int = 1,
    **options: Any,
) -> list[CommandRecord]:
    """What has become of commands with this handler, one after the other on one session."""
    with running(dsn, handling(function, **{"retry": ONCE, **options}), concurrency=1):
        return [bus.wait("payments", bus.send("payments", "Debit"), 10) for _ in range(times)]


def seat_of(worker: Worker) -> SeatView:
    """What the board shows of it."""
    return worker._telemetry.board.seat_view(0)


@contextmanager
def beside(work: Callable[..., object], *arguments: object) -> Iterator[threading.Thread]:
    """A thread that does this work, and must have ended soon after the end."""
    thread = threading.Thread(target=work, args=arguments)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(20)
    assert not thread.is_alive()


def found(bus: CommandBus, command_id: UUID, domain: str = "payments") -> CommandRecord:
    record = bus.get(domain, command_id)
    assert record is not None
    return record


def kinds(bus: CommandBus, command_id: UUID) -> list[str]:
    """Of its events."""
    return [event.kind for event in bus.audit("payments", command_id)]


def await_drained(bus: CommandBus, within: float = 10.0, domain: str = "payments") -> None:
    """Until no command of the domain waits or runs."""

    def left() -> int:
        snapshot = bus.snapshot(domain)
        return int(snapshot["depth"]) + int(snapshot["in_progress"])

    eventually(lambda: left() == 0, within)


def await_renewals(dsn: str, command_id: UUID, times: int = 3) -> None:
    """Of the lease of a command that runs."""
    leases: set[object] = set()
    with connect(dsn) as watcher:

        def renewed() -> bool:
            query = "SELECT lease_until FROM cmdbus.ready WHERE command_id = %s"
            leases.add(scalar(watcher, query, command_id))
            return len(leases) > times

        eventually(renewed)


def connect(dsn: str, **settings: Any) -> psycopg.Connection:
    return psycopg.connect(dsn, autocommit=True, **settings)


def pool_of(
    dsn: str, connection_class: type[psycopg.Connection[Any]] = psycopg.Connection, **settings: Any
) -> ConnectionPool[Any]:
    """An application's own, as a Worker takes it."""
    options = " ".join(
        f"-c {name}={value}".replace("read ", "read\\ ")
        for name, value in session_settings(Timeouts()).items()
    )
    return ConnectionPool[Any](
        dsn,
        connection_class=connection_class,
        kwargs={"autocommit": True, "options": options, **settings},
        min_size=1,
        max_size=3,
        open=True,
    )


def claim(
    statements: ClaimStatements, connection: psycopg.Connection, count: int = 1
) -> list[Claim]:
    """At most `count` commands of type Debit of `payments`."""
    request = ClaimRequest(count, 0, ["payments"], ["payments Debit"], [], {})
    return statements.settle_and_claim(connection, [], request)[1]


def promote(statements: ClaimStatements, connection: psycopg.Connection, rows: int = 100) -> int:
    """Moves due commands to the queue, as a steward does; returns how many."""
    values = {"count": rows, "bytes": 10**8, "skipped": "{}"}
    return int(statements.value(connection, "promote", **values))


def effects(dsn: str) -> int:
    return int(rows(dsn, "SELECT count(*) FROM effect")[0][0])


def leave_effect(command: Command, context: Context) -> None:
    context.connection.execute(
        "INSERT INTO effect VALUES (%s, %s)", (command.command_id, context.attempt)
    )


class Gate:
    """A handler that does something first, and waits until the test lets it go on."""

    def __init__(self, first: Function = do_nothing) -> None:
        self._first = first
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()
        self.inside = 0
        self.most = 0
        self._lock = threading.Lock()

    def __call__(self, command: Command, context: Context) -> str:
        self._first(command, context)
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


class Hanging:
    """A handler that is quick, until one command hangs and others wait behind it."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.hung: list[UUID] = []
        self.registry = handling(self)

    def __call__(self, command: Command, context: Context) -> None:
        if command.data == "may hang" and not self.hung and self._has_claimed_ahead():
            self.hung.append(command.command_id)
            self.gate(command, context)

    def _has_claimed_ahead(self) -> bool:
        """Not when it is the last one of a claim."""
        return any(c.state is ClaimState.CLAIMED for c in seat_of(self._worker).claims)

    def begin(self, bus: CommandBus, worker: Worker) -> None:
        self._worker = worker
        bus.send_many([SendRequest("payments", "Debit")] * 500)
        eventually(lambda: bus.snapshot("payments")["depth"] == 0)
        bus.send_many([SendRequest("payments", "Debit", "may hang")] * 600)
        self.gate.wait_for(1)


def await_rest(worker: Worker, seconds: float = 0.3) -> None:
    """Until it has claimed nothing, and tried no claim, for this time."""
    names = ("cmdbus_batches_processed_total", "cmdbus_empty_receives_total")
    seen: object = None
    since = 0.0

    def rests() -> bool:
        nonlocal seen, since
        now, claims = time.monotonic(), [worker.metrics()[name] for name in names]
        if claims != seen:
            seen, since = claims, now
        return now - since > seconds

    eventually(rests)


def threads_of_workers() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("worker-")]


def executing_threads() -> int:
    return sum(bool(re.match(r"worker-(payments-)?\d+$", name)) for name in threads_of_workers())
