"""A worker in your own process: `Worker(dsn, registry).run()` until `stop()`."""

import gc
import logging
import os
import random
import socket
import threading
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from queue import Empty, SimpleQueue

import psycopg

from cmdbus.board.board import Node
from cmdbus.board.health import HealthReport
from cmdbus.checks import check_name, check_seconds, check_whole, shown
from cmdbus.clock import time
from cmdbus.database import dsn as dsns
from cmdbus.database import schema as schemas
from cmdbus.database import statements
from cmdbus.database.pool import SessionPool
from cmdbus.database.session_names import node_number
from cmdbus.errors import AppError, DatabaseUnavailableError
from cmdbus.registry import HandlerRegistry
from cmdbus.selection import ALL_PRIORITIES, check_priorities, check_tags
from cmdbus.settings import CLAIM_BYTES
from cmdbus.timeouts import Timeouts
from cmdbus.worker.claims.claim import ClaimScope
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.connections import PooledConnections
from cmdbus.worker.claims.pools import Pool, complete, open_pool, parts_of
from cmdbus.worker.claims.rejections import lacks_a_right, reason
from cmdbus.worker.claims.settlement import make_partitions
from cmdbus.worker.claims.turns import beginning_anywhere
from cmdbus.worker.concurrency import Concurrency, Threads
from cmdbus.worker.declaring import app_of_worker, declare_and_warn
from cmdbus.worker.drain import RELEASE_SECONDS, Drain
from cmdbus.worker.housekeeping import Housekeeping
from cmdbus.worker.monkey_patches import patched
from cmdbus.worker.pipeline.setup import Setup
from cmdbus.worker.pipeline.telemetry import FailedExecution, Telemetry
from cmdbus.worker.standalone import node_of_one, telemetry_of_one
from cmdbus.worker.steward.breaker_watch import BreakerWatch
from cmdbus.worker.steward.exits import Exits
from cmdbus.worker.steward.publish_round import PublishRound
from cmdbus.worker.steward.steward import Steward, connect
from cmdbus.worker.thread_pool import ThreadPool
from cmdbus.worker.waiting.node_waiter import NodeWaiter, check_poll_interval
from cmdbus.worker.watch import Watch, beat

logger = logging.getLogger(__name__)

#: Errors of a database that is away, is read-only, or has not granted its rights yet.
_AWAY = (
    DatabaseUnavailableError,
    psycopg.OperationalError,
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.InsufficientPrivilege,
)

#: Seconds for the stop of a quarantine process that has nothing more to run.
_ABANDON_SECONDS = 5.0
#: Seconds between two attempts to reach a database that is away.
_AWAY_SECONDS = 1.0


class Worker:
    """Runs the commands that the registry has handlers for, with threads.

    Uses a session for each thread, one to listen, one for timers and leases, and up to two for
    housekeeping and the stop. Without a supervisor it is a node of one process: the steward's
    rounds run here.
    """

    def __init__(
        self,
        pool_or_dsn: Pool | str,
        registry: HandlerRegistry,
        *,
        domains: Sequence[str] | None = None,
        tags: Collection[str] = (),
        priorities: tuple[int, int] = ALL_PRIORITIES,
        age_share: int = 0,
        concurrency: Threads = 4,
        poll_interval: float = 60.0,
        timeouts: Timeouts | None = None,
        schema: str = schemas.DEFAULT,
        name: str | None = None,
        node: Node | None = None,
        wake_jitter_ms: int = 0,
        claim_bytes: int = CLAIM_BYTES,
    ) -> None:
        """`tags`: types that need others are not run. `priorities`: the first and the last one that
        is claimed. `age_share`: percent of the claims that take the oldest command instead of the
        most urgent one. `concurrency`: the number of threads, or the least and the most of which
        the worker finds the best. `claim_bytes`: payload to claim ahead of threads; a larger
        command is claimed alone."""
        self._pool_or_dsn = pool_or_dsn
        self._registry = registry
        self._tags = sorted(check_tags("tags", tags))
        self._domains = _check_domains(domains, registry, self._tags)
        self._priorities = check_priorities(priorities)
        self._age_share = check_whole("age_share", age_share, 0, 100)
        self._poll_interval = check_poll_interval(poll_interval)
        self._timeouts = timeouts or Timeouts()
        self._claim_bytes = check_whole("claim_bytes", claim_bytes, 1)
        self._statements = _claim_statements(schema, self._timeouts.lease, node, name)
        self._app = app_of_worker(name, registry)
        #: None for a standalone worker, which is a node of one process while it runs.
        self._node = node
        self._wake_jitter_ms = wake_jitter_ms
        self._telemetry = Telemetry(node.board, node.seat) if node else telemetry_of_one()
        self._concurrency = Concurrency(concurrency, self._telemetry, self._timeouts)
        #: Stop deadlines. No Event: the thread that a signal handler interrupts may have its lock.
        self._orders: SimpleQueue[float] = SimpleQueue()
        self._ended = threading.Event()
        #: Commands released while they ran, and sessions that may have left claims: see Drain.
        self.abandoned = 0
        #: The process and the thread of `run`, while it runs.
        self._runner: tuple[int, int] | None = None
        self._polling: list[NodeWaiter | Steward] = []

    def run(self) -> None:
        """Runs commands until `stop` is called, then returns once they have ended. It may be called
        again then."""
        if self._runner is not None:
            raise RuntimeError("this Worker runs: stop it first, or make another one")
        self._runner = os.getpid(), threading.get_ident()
        self._ended.clear()
        try:
            with ExitStack() as opened:
                opened.enter_context(self._registry.hooks.around())
                if self._node is not None:
                    # The application's objects stay: no garbage collection reads them again
                    # (600,000 took 90 ms, in which no thread runs).
                    gc.freeze()
                if sentence := patched():
                    raise AppError(sentence)
                statements.load()
                node = self._node or node_of_one(self._telemetry, opened)
                if self._node is not None:
                    self._concurrency.succeed(node.board, node.seat)
                pool = self._open(node)
                if isinstance(pool, SessionPool):
                    opened.callback(pool.close)
                self._run(node, pool, opened)
        finally:
            self._end()

    def _end(self) -> None:
        self._concurrency.end()
        with suppress(Empty):
            while True:
                self._orders.get_nowait()
        self._runner = None
        self._ended.set()

    def stop(self, timeout: float = 30.0) -> None:
        """Stops claiming, lets running commands end within `timeout` seconds, and releases the
        others. Waits until the worker has stopped, but not in the thread that runs `run`, nor in a
        handler's. Does nothing in a process that was forked from the worker's."""
        by = time.monotonic() + check_seconds("timeout", timeout)
        runner, threads = self._runner, self._concurrency.threads
        if runner is not None and runner[0] != os.getpid():
            return
        self.request_stop(by)
        in_own = threads is not None and threads.is_current
        if runner is not None and runner[1] != threading.get_ident() and not in_own:
            self._ended.wait()

    def request_stop(self, by: float) -> None:
        """Asks the worker to stop by this monotonic time, and returns; safe in signal handlers."""
        self._orders.put(by)

    def set_concurrency(self, threads: Threads) -> None:
        """Changes the number of threads, or its range; surplus threads end after their current
        command."""
        self._concurrency.set(threads)

    def set_poll_interval(self, seconds: float) -> None:
        """Applies from the next time the worker waits for commands."""
        self._poll_interval = check_poll_interval(seconds)
        for each in self._polling:
            each.set_poll_interval(self._poll_interval)

    @property
    def health(self) -> HealthReport:
        """The levels of the last minutes, with `.health` and `.reasons`."""
        return self._telemetry.health.levels(time.monotonic())

    @property
    def last_exceptions(self) -> list[FailedExecution]:
        """The latest 100 failed executions, oldest first."""
        return list(self._telemetry.latest)

    def metrics(self) -> dict[str, object]:
        return self._telemetry.metrics()

    def _open(self, node: Node) -> Pool | SessionPool:
        """In a fleet waits for a database that is away and for missing rights, until a stop."""
        warned = False
        while True:
            try:
                return self._register()
            except _AWAY as error:
                if node.parent is None:
                    raise
                self._telemetry.health.database_away(time.monotonic())
                beat(node, self._telemetry, self._timeouts)
                why = reason(error)
                if not warned:
                    what = "granted" if lacks_a_right(error) else "there"
                    logger.warning("%s; waiting until it is %s", why, what)
                warned = True
                with suppress(Empty):
                    self.request_stop(self._orders.get(timeout=_AWAY_SECONDS))
                    raise DatabaseUnavailableError(why) from None

    def _register(self) -> Pool | SessionPool:
        """Registers this incarnation of the worker, and opens the pool."""
        given = self._pool_or_dsn
        parts = dsns.parse(given) if isinstance(given, str) else parts_of(given)
        self._parts = complete(parts, self._statements.application_name, self._timeouts)
        with dsns.connect(self._parts) as connection:
            schemas.check(connection, self._statements.schema)
            make_partitions(self._statements, connection)
            self._statements.register(connection)
            self._telemetry.seat.register(self._statements.incarnation)
            if self._node is None:  # A fleet's are declared by its preflight.
                declare_and_warn(connection, self._statements, self._app, self._registry)
        if isinstance(given, str):
            return open_pool(self._parts, self._concurrency.number, self._timeouts)
        self._concurrency.check(given)
        return given

    def _run(self, node: Node, pool: Pool | SessionPool, opened: ExitStack) -> None:
        leave = self._leave if node.quarantine else None
        waiter = NodeWaiter(node, self._poll_interval, self._wake_jitter_ms, leave)
        opened.callback(waiter.stop)
        setup = self._setup(pool, waiter)
        threads = ThreadPool(setup)
        housekeeping = Housekeeping(threads, setup)
        # Only a standalone worker has a steward of its own.
        steward = self._start_steward(node, opened) if node.parent is None else None
        self._polling = [waiter, steward] if steward else [waiter]
        self._concurrency.begin(threads, pool)
        threads.wait_until_prepared()
        housekeeping.start()
        self._telemetry.database_back(threads.unsettled.report)
        beat(node, self._telemetry, self._timeouts)
        domains, count = ", ".join(self._domains), self._concurrency
        # Before its predecessor is ordered to stop, and logs that.
        logger.info("worker %s runs %s with %s", self._statements.worker, domains, count)
        self._telemetry.seat.ready(time.monotonic_ns())
        threads.begin()
        watch = Watch(node, setup, threads, housekeeping, steward, self._concurrency.adapt)
        try:
            deadline = watch.run(self._orders)
        except BaseException:
            # A standalone worker's threads would go on; a process of a fleet ends.
            if node.parent is None:
                Drain(watch, time.monotonic() + RELEASE_SECONDS).run()
            raise
        self.abandoned = Drain(watch, deadline).run()

    def _leave(self) -> None:
        self.request_stop(time.monotonic() + _ABANDON_SECONDS)

    def _setup(self, pool: Pool | SessionPool, waiter: NodeWaiter) -> Setup:
        handlers = self._registry.selected(self._domains, self._tags)
        self._statements.types = [handler.name for handler in handlers]
        self._statements.tags = self._tags
        self._statements.priorities = self._priorities
        exhausted = self._telemetry.health.pool_exhausted
        return Setup(
            statements=self._statements,
            registry=self._registry,
            domains=beginning_anywhere(self._domains, random.random()),
            timeouts=self._timeouts,
            claim_bytes=self._claim_bytes,
            age_share=self._age_share,
            telemetry=self._telemetry,
            source=PooledConnections(pool, self._parts, lambda: exhausted(time.monotonic())),
            waiter=waiter,
        )

    def _start_steward(self, node: Node, opened: ExitStack) -> Steward:
        """The steward's threads have slots in this worker's seat."""
        slots = self._telemetry.acquire_slot(), self._telemetry.acquire_slot()
        for slot in slots:
            opened.callback(self._telemetry.release_slot, slot)
        steward = Steward(
            node,
            self._statements,
            lambda: connect(self._parts, self._statements, self._timeouts),
            domains=self._domains,
            poll_interval=self._poll_interval,
            slots=slots,
        )
        opened.callback(steward.stop, RELEASE_SECONDS)
        names = [each.name for each in self._registry.breakers()]
        publish = PublishRound(
            node,
            self._statements,
            Exits(),
            steward.listening.watched,
            self._statements.worker,
            lambda: steward.rollups.due,
        )
        watch = BreakerWatch(node.board, self._statements, names)
        steward.start([watch.run, publish.run], [publish.leave])
        return steward


def _claim_statements(
    schema: str, lease: float, node: Node | None, name: str | None
) -> ClaimStatements:
    """Those of a worker with this name, which claims what its role in the node allows."""
    scope = ClaimScope.ANY
    if node is not None:
        scope = ClaimScope.SUSPECT if node.quarantine else ClaimScope.ORDINARY
    made = ClaimStatements(schema, lease, scope)
    made.worker = name or f"{socket.gethostname()}:{os.getpid()}"
    made.node = node_number(None if node is None else node.parent)
    return made


def _check_domains(
    domains: Sequence[str] | None, registry: HandlerRegistry, tags: Sequence[str]
) -> list[str]:
    """Those of which it runs a type."""
    if not isinstance(registry, HandlerRegistry):
        raise ValueError(f"registry must be a HandlerRegistry, not {shown(registry)}")
    if not len(registry):
        raise ValueError("the registry has no handlers: there is nothing to run")
    registry.declarations()  # A ValueError says what is wrong with them.
    if domains is None:
        domains = registry.domains
    if isinstance(domains, str):
        raise ValueError(f"domains must be a list of names, not {domains!r}")
    for domain in domains:
        if check_name("domain", domain) not in registry.domains:
            raise ValueError(f"the registry has no handler for domain {domain!r}")
    if not domains:
        raise ValueError("domains must name at least one domain, or be None for all")
    run = {handler.domain for handler in registry.selected(domains, tags)}
    return [domain for domain in dict.fromkeys(domains) if domain in run]
