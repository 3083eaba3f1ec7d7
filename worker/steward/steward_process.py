"""The main thread of a node's steward process: beats, ends a round that is late, and exits when
one of the process's threads has ended."""

import logging
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from cmdbus.board.board import Node
from cmdbus.board.health import HealthReport
from cmdbus.clock import time
from cmdbus.database import dsn as dsns
from cmdbus.database import schema as schemas
from cmdbus.database import statements
from cmdbus.database.session_names import node_number
from cmdbus.errors import SchemaError
from cmdbus.exits import Exit, cannot_start_thread
from cmdbus.handlers import Handler
from cmdbus.registry import HandlerRegistry
from cmdbus.settings import Settings
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.steward.breaker_watch import BreakerWatch
from cmdbus.worker.steward.exits import Exits
from cmdbus.worker.steward.maintenance import Maintenance
from cmdbus.worker.steward.publish_round import PublishRound
from cmdbus.worker.steward.rescue import RescueRound
from cmdbus.worker.steward.stale_boards import StaleBoards
from cmdbus.worker.steward.steward import (
    ROUND_SECONDS,
    STATEMENT_SECONDS,
    Round,
    Steward,
    connect,
)

logger = logging.getLogger(__name__)

#: Seconds for a statement of maintenance.
_MAINTENANCE_SECONDS = 60.0
#: Seconds, before the process exits, to write what is left of the rescues' log.
_LOG_SECONDS = 1.0
#: Seconds without a heartbeat that make a hang, if leases are renewed more often than that, and
#: the watchdog timeout is not shorter: a busy machine may stop a process for some seconds.
_HUNG_SECONDS = 5.0


class StewardProcess:
    def __init__(
        self,
        settings: Settings,
        node: Node,
        registry: HandlerRegistry,
        stacks: Path,
        others: Sequence[threading.Thread] = (),
    ) -> None:
        """`stacks`: where the node's processes write their stacks. `others`: further threads
        without which this process is replaced."""
        self._settings = settings
        self._node = node
        handlers = registry.selected(settings.domains, settings.tags)
        domains = sorted({handler.domain for handler in handlers})
        self._statements = _statements_of(settings, node, handlers)
        self._steward = Steward(
            node,
            self._statements,
            self._connect,
            domains=domains,
            poll_interval=settings.poll_interval,
            slots=(node.seat.slot(0), node.seat.slot(1)),
            listen=settings.listen,
            register=self._register,
        )
        hurry, exits = self._steward.batches.hurry, Exits()
        self._rescue = RescueRound(node, self._statements, registry, stacks, hurry, exits)
        self._stale_boards = StaleBoards(stacks.parent, settings.name, self._rescue.release)
        self._publish = PublishRound(
            node,
            self._statements,
            exits,
            self._steward.listening.watched,
            settings.name,
            lambda: self._steward.rollups.due,
            self._stale_boards.supervisors,
        )
        names = [each.name for each in registry.breakers()]
        self._breaker_watch = BreakerWatch(node.board, self._statements, names)
        self._maintenance = Maintenance(
            self._statements,
            lambda: self._connect(_MAINTENANCE_SECONDS),
            settings.domains or registry.domains,
        )
        self._orders: SimpleQueue[float] = SimpleQueue()
        self._threads = [*self._steward.threads, self._maintenance.thread, *others]

    def request_stop(self, by: float) -> None:
        """May be called by a signal handler."""
        self._orders.put(by)

    def run(self) -> Exit:
        statements.load()
        rescues = [self._logged(self._rescue.run), self._logged(self._stale_boards.run)]
        rounds = [*rescues, self._breaker_watch.run, self._publish.run]
        self._steward.start(rounds, [self._publish.leave])
        self._watch()
        self._maintenance.stop()
        self._steward.stop()
        self._rescue.log.write_last(_LOG_SECONDS)
        return Exit.DONE

    def _watch(self) -> None:
        """Until the order to stop. A steward that is past the due time shown here is hung."""
        timeouts = self._settings.timeouts
        beat_seconds = max(min(_HUNG_SECONDS, timeouts.watchdog), timeouts.renewal)
        steward = self._steward
        while True:
            now = time.monotonic()
            if os.getppid() != self._node.parent:
                os._exit(Exit.ERROR)
            if any(t.ident is not None and not t.is_alive() for t in self._threads):
                self._rescue.log.write_last(_LOG_SECONDS)
                os._exit(_exit_code(steward.ended_by))
            steward.abort_if_late(now)
            if now <= steward.late_at + ROUND_SECONDS:
                is_away = steward.away_since is not None
                due = int((now + beat_seconds) * 1e9)
                self._node.seat.beat(due, HealthReport(database_away=is_away))
            with suppress(Empty):
                self._orders.get(timeout=min(1.0, beat_seconds / 4))
                return

    def _logged(self, round_: Round) -> Round:
        """Written in another thread, also if the round fails."""

        def run(connection: Connection) -> float:
            try:
                return round_(connection)
            finally:
                with suppress(RuntimeError):  # No thread can start: the next round writes.
                    self._rescue.log.write_beside()

        return run

    def _register(self, connection: Connection) -> None:
        """Gets an incarnation of its own, and is ready."""
        schemas.check(connection, self._settings.schema)
        self._statements.register(connection, f"steward:{os.getpid()}")
        self._node.seat.register(self._statements.incarnation)
        self._node.seat.ready(time.monotonic_ns())
        if self._maintenance.thread.ident is None:
            self._maintenance.start()

    def _connect(self, statement_seconds: float = STATEMENT_SECONDS) -> Connection:
        parts = dsns.parse(self._settings.dsn or "")
        return connect(parts, self._statements, self._settings.timeouts, statement_seconds)


def _statements_of(settings: Settings, node: Node, handlers: Sequence[Handler]) -> ClaimStatements:
    made = ClaimStatements(settings.schema, settings.timeouts.lease)
    made.node = node_number(node.parent)
    made.types = [handler.name for handler in handlers]
    made.tags = list(settings.tags)
    made.priorities = settings.priorities
    return made


def _exit_code(error: BaseException | None) -> Exit:
    """After a thread has ended; `error` is what ended the steward's."""
    if isinstance(error, SchemaError):
        logger.error("%s", error)
        return Exit.CANNOT_START
    if cannot_start_thread(error):
        return Exit.NO_RESOURCES
    logger.error("a thread of the steward has ended: another steward takes over")
    return Exit.ERROR
