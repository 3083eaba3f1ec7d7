"""A worker in your own process: `Worker(dsn, registry).run()` until `stop()`."""

import logging
import os
import socket
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from queue import Empty, SimpleQueue

import psycopg

from cmdbus.board.board import Board, Node
from cmdbus.board.health import HealthReport
from cmdbus.board.records import Role
from cmdbus.board.wake_pipe import WakePipe
from cmdbus.checks import check_name, check_seconds, check_whole
from cmdbus.clock import time
from cmdbus.counting import count_of
from cmdbus.database import dsn as dsns
from cmdbus.database import schema as schemas
from cmdbus.database import statements
from cmdbus.database.pool import SessionPool
from cmdbus.errors import AppError, DatabaseUnavailableError
from cmdbus.exits import Exit
from cmdbus.printable import joined
from cmdbus.registry import HandlerRegistry
from cmdbus.settings import CLAIM_BYTES
from cmdbus.timeouts import Timeouts
from cmdbus.worker.claims.claim import STOPPED, Claim, ClaimScope, Connection
from cmdbus.worker.claims.claims import Claims
from cmdbus.worker.claims.connections import PooledConnections, ThreadConnection
from cmdbus.worker.claims.halving import release
from cmdbus.worker.claims.pools import HEADROOM, Pool, check_pool, complete, open_pool, parts_of
from cmdbus.worker.claims.rejections import lacks_a_right, reason
from cmdbus.worker.claims.sessions import abort_io_at, end_sessions
from cmdbus.worker.housekeeping import Housekeeping
from cmdbus.worker.monkey_patches import patched
from cmdbus.worker.pipeline.telemetry import SLOTS, FailedExecution, Telemetry
from cmdbus.worker.pipeline.worker_thread import WorkerThread
from cmdbus.worker.steward.steward import Steward, connect
from cmdbus.worker.thread_pool import ThreadPool
from cmdbus.worker.waiting.node_waiter import NodeWaiter, check_poll_interval

logger = logging.getLogger(__name__)

#: Errors of a database that is away, or that does not let this role write.
_AWAY = (
    DatabaseUnavailableError,
    psycopg.OperationalError,
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.InsufficientPrivilege,
)

#: Half of the slots are for threads that hang: they keep theirs until they return.
MAX_THREADS = SLOTS // 2
#: Seconds between two beats of the main thread at most; a verdict is late by no more than that.
_BEAT_SECONDS = 1.0
#: Seconds by which a beat may be late; by more, the process was stopped or a handler held the GIL,
#: and all due times are put off.
_STALL_SECONDS = 1.0
#: Seconds for the stop of a quarantine process that has nothing more to run.
_ABANDON_SECONDS = 5.0
#: Seconds between two attempts to reach a database that is away.
_AWAY_SECONDS = 1.0
#: Seconds after a stop's deadline for releasing what is left.
_RELEASE_SECONDS = 1.0
#: Seconds for which a stopping worker at least tries to release rows that other sessions have
#: locked, and between two attempts.
_LOCKED_SECONDS, _LOCKED_PAUSE_SECONDS = 0.5, 0.02
#: Bytes that wait in the pipe of a standalone worker: one for the current claim, one for the next.
_WAKE_BYTES = 2


class Worker:
    """Runs the commands that the registry has handlers for, with threads.

    Uses a session for each thread, one to listen, one for timers and leases, and up to one for
    housekeeping. Without a supervisor it is a node of one process: the steward's rounds run here.
    """

    def __init__(
        self,
        pool_or_dsn: Pool | str,
        registry: HandlerRegistry,
        *,
        domains: Sequence[str] | None = None,
        concurrency: int = 4,
        poll_interval: float = 60.0,
        timeouts: Timeouts | None = None,
        schema: str = schemas.DEFAULT,
        name: str | None = None,
        node: Node | None = None,
        wake_jitter_ms: int = 0,
        claim_bytes: int = CLAIM_BYTES,
    ) -> None:
        """`claim_bytes`: payload that may be claimed ahead of the threads; a larger command is
        claimed alone."""
        self._pool = None if isinstance(pool_or_dsn, str) else pool_or_dsn
        self._dsn = pool_or_dsn if isinstance(pool_or_dsn, str) else None
        self._registry = registry
        self._domains = _check_domains(domains, registry)
        self._concurrency = _check_threads(concurrency)
        self._poll_interval = check_poll_interval(poll_interval)
        self._timeouts = timeouts or Timeouts()
        self._claim_bytes = check_whole("claim_bytes", claim_bytes, 1)
        self._name = name or f"{socket.gethostname()}:{os.getpid()}"
        self._claims = Claims(schema, self._timeouts.lease, _share(node))
        #: Of the fleet; None in a standalone worker.
        self._node = node
        self._wake_jitter_ms = wake_jitter_ms
        self._telemetry = Telemetry(node.board, node.seat) if node else _telemetry_of_one()
        #: Deadlines by which to have stopped. A queue, because a signal handler may put: an
        #: Event's lock could be held by the very thread that the handler interrupts.
        self._orders: SimpleQueue[float] = SimpleQueue()
        self._ended = threading.Event()
        self._deadline = 0.0
        #: Commands that ran when it had to stop, and were given back.
        self.abandoned = 0
        self._runner: int | None = None
        self._threads: ThreadPool | None = None
        self._waiter: NodeWaiter | None = None
        #: Only of a standalone worker.
        self._steward: Steward | None = None

    def run(self) -> None:
        """Runs commands until `stop` is called, then returns once they have ended."""
        self._runner = threading.get_ident()
        try:
            if sentence := patched():
                raise AppError(sentence)
            statements.load()
            pool = self._opened = self._open_patiently() if self._node else self._open()
            try:
                self._run(pool)
            finally:
                if self._dsn is not None:
                    pool.close()
        finally:
            self._ended.set()

    def stop(self, timeout: float = 30.0) -> None:
        """Stops claiming, lets running commands end within `timeout` seconds, and releases the
        others. Waits until the worker has stopped, except in the thread that runs `run`."""
        self.request_stop(time.monotonic() + check_seconds("timeout", timeout))
        if self._runner is not None and self._runner != threading.get_ident():
            self._ended.wait()

    def request_stop(self, by: float) -> None:
        """Asks the worker to stop by this monotonic time, and returns; safe in signal handlers."""
        self._orders.put(by)

    def set_concurrency(self, threads: int) -> None:
        """Changes the number of threads; surplus threads end after their current command."""
        self._concurrency = _check_threads(threads)
        if self._threads is not None:
            if isinstance(self._opened, SessionPool):
                self._opened.resize(threads, threads + HEADROOM)
            else:
                check_pool(self._opened, threads, self._timeouts)
            self._threads.set_concurrency(threads)

    def set_poll_interval(self, seconds: float) -> None:
        """Applies from the next time the worker waits for commands."""
        self._poll_interval = check_poll_interval(seconds)
        if self._waiter is not None:
            self._waiter.poll_interval = self._poll_interval
            self._waiter.wake()
        if self._steward is not None:
            self._steward.set_poll_interval(seconds)

    @property
    def health(self) -> HealthReport:
        """Measured levels of the last minutes; `.health` and `.reasons` say what they mean."""
        return self._telemetry.health.levels(time.monotonic())

    @property
    def last_exceptions(self) -> list[FailedExecution]:
        """The latest 100 failed executions, oldest first."""
        return list(self._telemetry.latest)

    def metrics(self) -> dict[str, object]:
        return self._telemetry.metrics()

    def _open_patiently(self) -> Pool | SessionPool:
        """In a fleet a database that is away is waited for, and so is a right that is missing,
        until it is ordered to stop."""
        warned = False
        while True:
            try:
                return self._open()
            except _AWAY as error:
                self._telemetry.health.database_away(time.monotonic())
                self._beat()
                why = reason(error)
                if not warned:
                    what = "granted" if lacks_a_right(error) else "there"
                    logger.warning("%s; waiting until it is %s", why, what)
                warned = True
                with suppress(Empty):
                    self.request_stop(self._orders.get(timeout=_AWAY_SECONDS))
                    raise DatabaseUnavailableError(why) from None

    def _open(self) -> Pool | SessionPool:
        """Registers this run of the worker: its incarnation is in the names of its sessions."""
        parts = parts_of(self._pool) if self._pool else dsns.parse(self._dsn or "")
        self._parts = complete(parts, self._claims.application_name, self._timeouts)
        with dsns.connect(self._parts) as connection:
            schemas.check(connection, self._claims.schema)
            schemas.make_partitions(connection, self._claims.schema)
            self._claims.register(connection, self._name)
            self._telemetry.seat.register(self._claims.incarnation)
        if self._pool is not None:
            check_pool(self._pool, self._concurrency, self._timeouts)
            return self._pool
        return open_pool(self._parts, self._concurrency, self._timeouts)

    def _run(self, pool: Pool | SessionPool) -> None:
        with ExitStack() as opened:
            node = self._node or _node_of_one(self._telemetry, opened)
            self._run_in(node, pool, opened)

    def _run_in(self, node: Node, pool: Pool | SessionPool, opened: ExitStack) -> None:
        leave = self._leave if node.quarantine else None
        waiter = NodeWaiter(node, self._poll_interval, self._wake_jitter_ms, leave)
        opened.callback(waiter.stop)
        threads, housekeeping = self._build(node, pool, waiter)
        self._threads, self._waiter = threads, waiter
        if self._node is None:
            self._steward = self._start_steward(node, opened)
        threads.start()
        housekeeping.start()
        self._telemetry.database_back()
        self._beat()
        self._telemetry.seat.ready(time.monotonic_ns())
        logger.info(
            "worker %s runs %s with %s",
            self._name,
            ", ".join(self._domains),
            count_of(self._concurrency, "thread"),
        )
        threads.claim()
        try:
            self._watch(threads, housekeeping)
        except BaseException:
            # A process of a fleet ends, and is replaced; here the threads would go on alone.
            if self._node is None:
                self._deadline = time.monotonic() + _RELEASE_SECONDS
                self._drain(threads, housekeeping, pool)
            raise
        self._drain(threads, housekeeping, pool)

    def _leave(self) -> None:
        self.request_stop(time.monotonic() + _ABANDON_SECONDS)

    def _build(
        self, node: Node, pool: Pool | SessionPool, waiter: NodeWaiter
    ) -> tuple[ThreadPool, Housekeeping]:
        claims, telemetry = self._claims, self._telemetry
        claims.types = [f"{h.domain} {h.type}" for h in self._registry if h.domain in self._domains]
        source = PooledConnections(
            pool, self._parts, lambda: telemetry.health.pool_exhausted(time.monotonic())
        )
        threads = ThreadPool(
            claims=claims,
            registry=self._registry,
            domains=self._domains,
            types=claims.types,
            concurrency=self._concurrency,
            claim_bytes=self._claim_bytes,
            timeouts=self._timeouts,
            source=source,
            waiter=waiter,
            telemetry=telemetry,
        )
        housekeeping = Housekeeping(
            threads,
            claims,
            self._timeouts,
            telemetry,
            source,
            steward_renewed=lambda: node.board.renewed / 1e9,
        )
        return threads, housekeeping

    def _start_steward(self, node: Node, opened: ExitStack) -> Steward:
        """Its threads show themselves in slots of this worker's seat."""
        slots = [self._telemetry.acquire_slot() for _ in range(2)]
        for index, slot in slots:
            opened.callback(self._telemetry.release_slot, index, slot)
        steward = Steward(
            node,
            self._claims,
            lambda: connect(self._parts, self._claims, self._timeouts),
            domains=self._domains,
            poll_interval=self._poll_interval,
            slots=(slots[0][1], slots[1][1]),
        )
        opened.callback(steward.stop, _RELEASE_SECONDS)
        steward.start()
        return steward

    def _watch(self, threads: ThreadPool, housekeeping: Housekeeping) -> None:
        """Until `stop`: judges what is past its due, and hands the verdicts to relief."""
        beat = self._beat_seconds
        while True:
            due = threads.next_due()
            began = time.monotonic()
            pause = beat if due is None else min(beat, max(due - began, 0.0))
            with suppress(Empty):
                self._deadline = self._orders.get(timeout=pause)
                return
            late = time.monotonic() - began - pause
            if late > _STALL_SECONDS:
                threads.put_off(late)
            self._beat()
            self._check_threads_due(threads, housekeeping)
            self._check_threads(threads, housekeeping)
            if late > _STALL_SECONDS:
                logger.warning(
                    "the process stalled for %.1f s: extending all deadlines by that time", late
                )

    def _check_threads(self, threads: ThreadPool, housekeeping: Housekeeping) -> None:
        """An exception that was sent to a thread may have ended it anywhere, and a closed
        descriptor may have been reused: nothing in this process can be relied on."""
        fault = threads.fault or housekeeping.fault
        if self._steward is not None:
            self._steward.abort_if_late(time.monotonic())
            fault = fault or self._steward.fault
        if not fault:
            return
        if self._node is not None:
            logger.error("this process cannot go on, and exits to be replaced: %s", fault)
            os._exit(Exit.ERROR)
        raise RuntimeError(f"the worker cannot go on: {fault}")

    @property
    def _beat_seconds(self) -> float:
        return min(_BEAT_SECONDS, self._timeouts.thread / 4)

    def _check_threads_due(self, threads: ThreadPool, housekeeping: Housekeeping) -> None:
        for thread, work in threads.give_up_late(time.monotonic()):
            self._telemetry.seat.mark_stuck(thread.index, thread.slot.sequence)
            housekeeping.take_over(thread, work, thread.stack())
        housekeeping.cut_if_late(time.monotonic())

    def _beat(self) -> None:
        """Past the due that this shows, the process is hung."""
        if self._node is not None and os.getppid() != self._node.parent:
            logger.error("the supervisor is gone: this process exits immediately")
            os._exit(Exit.ERROR)
        self._telemetry.beat(time.monotonic() + self._timeouts.watchdog)

    def _drain(
        self,
        threads: ThreadPool,
        housekeeping: Housekeeping,
        pool: Pool | SessionPool,
    ) -> None:
        threads.pipeline.stop_claiming()
        if self._steward is not None:
            self._steward.listening.request_stop()
        logger.info("worker %s stops: what runs may end, the rest is released", self._name)
        timeout = partial(self._remaining, 1.0)
        connection = ThreadConnection(PooledConnections(pool, self._parts, timeout=timeout))
        try:
            with abort_io_at(self._deadline + _RELEASE_SECONDS, connection.abort_io):
                self._settle_all(threads, housekeeping, connection)
        except Exception as error:
            logger.warning(
                "cannot release this worker's claims (%s): others can claim them when the leases "
                "expire",
                joined(str(error)),
            )
            self.abandoned = max(self.abandoned, len(threads.in_flight.known()))
        finally:
            housekeeping.stop(self._deadline)
            threads.cut_all()
            connection.close()
            threads.unsettled.log()

    def _remaining(self, at_least: float) -> float:
        return max(at_least, self._deadline - time.monotonic())

    def _settle_all(
        self, threads: ThreadPool, housekeeping: Housekeeping, connection: ThreadConnection
    ) -> None:
        if threads.in_flight.any_released:
            threads.in_flight.release(connection.connection())
        stuck = self._await_end(threads, housekeeping)
        housekeeping.stop(self._deadline)
        index, slot = self._telemetry.acquire_slot()
        threads.pipeline.settle_all(connection, slot)
        self._telemetry.release_slot(index, slot)
        self._release_locked(threads, connection)
        if stuck:
            self._abandon(threads, stuck, connection.connection())

    def _release_locked(self, threads: ThreadPool, connection: ThreadConnection) -> None:
        """Claims whose rows other sessions had locked: a claim of another worker may lock the
        rows that this one has just claimed, until it commits."""
        until = max(self._deadline, time.monotonic() + _LOCKED_SECONDS)
        while threads.in_flight.any_released and time.monotonic() < until:
            time.sleep(_LOCKED_PAUSE_SECONDS)
            threads.in_flight.release(connection.connection())

    def _await_end(self, threads: ThreadPool, housekeeping: Housekeeping) -> list[WorkerThread]:
        """Waits for running commands until the deadline, and gives up those that hang. Returns
        the threads that have not ended."""
        while (now := time.monotonic()) < self._deadline:
            self._check_threads_due(threads, housekeeping)
            if (
                not threads.join(min(self._deadline, now + self._beat_seconds))
                and not housekeeping.has_pending_verdicts
            ):
                return []
        return threads.left()

    @property
    def _is_ordered(self) -> bool:
        """Whether the supervisor ordered the stop or, without one, a call of `stop`."""
        return self._node is None or bool(self._telemetry.seat.stop_by)

    def _abandon(
        self, threads: ThreadPool, stuck: list[WorkerThread], connection: Connection
    ) -> None:
        """Releases the commands of these threads, after their sessions have ended: until then
        they could still commit. They count no loss if the worker was ordered to stop; they do
        after a verdict, and after a signal that was no order: the command may have sent it."""
        held = threads.in_flight.unfinished()
        self.abandoned = len(held)
        sessions = [session for slot in stuck if (session := slot.connection.session)]
        for thread in stuck:
            thread.connection.abort_io()
        end_sessions(self._claims, connection, sessions)
        verdict, ordered = self._telemetry.seat.stop_verdict, self._is_ordered
        why = (
            "its worker was replaced"
            if verdict
            else "its worker was stopped"
            if ordered
            else "its process got a SIGTERM that the supervisor did not send"
        )
        loss = int(bool(verdict) or not ordered)

        def release_dead(claims: Sequence[Claim]) -> list[Claim]:
            return self._claims.release_dead(
                connection,
                claims,
                [loss] * len(claims),
                f"{why} before it had ended",
                None if loss else STOPPED,
            )

        given, locked = release(self._claims, connection, held, release_dead)
        until = time.monotonic() + _LOCKED_SECONDS
        while locked and time.monotonic() < until:
            time.sleep(_LOCKED_PAUSE_SECONDS)
            more, locked = release(self._claims, connection, locked, release_dead)
            given += more
        threads.in_flight.free(held)
        for claim in given:
            logger.error(
                "command %s (%s/%s) did not end in time: released, it runs again",
                claim.command_id,
                claim.domain,
                claim.type,
            )


def _share(node: Node | None) -> ClaimScope:
    if node is None:
        return ClaimScope.ANY
    return ClaimScope.SUSPECT if node.quarantine else ClaimScope.INNOCENT


def _telemetry_of_one() -> Telemetry:
    """Of a worker without a supervisor, on a board that no other process reads."""
    board = Board.in_memory(1, SLOTS)
    seat, now = board.seat(0), time.monotonic_ns()
    seat.assign(Role.WORKER, number=0, generation=1)
    seat.enter(pid=os.getpid(), generation=1, now=now)
    return Telemetry(board, seat)


def _node_of_one(telemetry: Telemetry, opened: ExitStack) -> Node:
    worker_pipe, steward_pipe = WakePipe(_WAKE_BYTES), WakePipe(1)
    opened.callback(worker_pipe.close)
    opened.callback(steward_pipe.close)
    return Node(
        board=telemetry.board,
        seat=telemetry.seat,
        worker_pipe=worker_pipe,
        steward_pipe=steward_pipe,
    )


def _check_threads(threads: int) -> int:
    if check_whole("concurrency", threads, 1) > MAX_THREADS:
        raise ValueError(f"concurrency must be at most {MAX_THREADS}, not {threads}")
    return threads


def _check_domains(domains: Sequence[str] | None, registry: HandlerRegistry) -> list[str]:
    if not len(registry):
        raise ValueError("the registry has no handlers: there is nothing to run")
    if domains is None:
        return registry.domains
    for domain in domains:
        if check_name("domain", domain) not in registry.domains:
            raise ValueError(f"the registry has no handler for domain {domain!r}")
    if not domains:
        raise ValueError("domains must name at least one domain, or be None for all")
    return list(dict.fromkeys(domains))
