"""Writes once a minute what the node's commands came to, for the charts of operators.

The board counts since the node's start, and the database knows what of that is written already:
so a steward that is replaced repeats nothing and loses nothing. It is no part of running commands:
where it fails, all other rounds go on, and the next minute has the figures of this one, too.
"""

import logging
import random

import psycopg

from cmdbus.board.board import Node
from cmdbus.clock import time
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.rejections import reason
from cmdbus.worker.steward.minute_figures import figures_by_domain

logger = logging.getLogger(__name__)

_MINUTE = 60.0
#: Seconds after the minute's end, so that all nodes write about the same time, but not at once.
_SPREAD_SECONDS = 3.0
#: The least seconds from the start to the first rollup.
_FIRST_SECONDS = 10.0
#: Seconds for counting the commands that wait.
SAMPLE_SECONDS = 2.0


class RollupRound:
    def __init__(self, node: Node, statements: ClaimStatements) -> None:
        self._node, self._statements = node, statements
        self._started_at = time.monotonic()
        self._after_minute = random.uniform(0.5, _SPREAD_SECONDS)
        #: Monotonic time of the next rollup.
        self.due = self._started_at + _FIRST_SECONDS + self._until_minute(_FIRST_SECONDS)
        if self._age() > _MINUTE:  # This steward has a predecessor, which may have owed a minute.
            self.due = self._started_at
        self._warned = False

    def run(self, connection: Connection) -> float:
        now = time.monotonic()
        if now < self.due:
            return self.due - now
        # Before it is known to succeed, as what may fail need not be tried in each pass.
        self.due = now + self._until_minute()
        try:
            if self.write(connection):
                self._sample(connection)
            self._warned = False
        except psycopg.Error as error:
            if connection.closed:
                raise
            self._warn(error)
        return self.due - time.monotonic()

    def leave(self, connection: Connection) -> None:
        """What a node has counted since its last minute."""
        try:
            self.write(connection)
        except psycopg.Error as error:
            if connection.closed:
                raise
            self._warn(error)

    def write(self, connection: Connection) -> bool:
        """Returns whether this node is to count what waits."""
        domains, figures = figures_by_domain(self._node.board.counters())
        return bool(
            self._statements.value(
                connection,
                "record_minute",
                node=self._statements.node,
                age=self._age(),
                domains=domains,
                figures=figures,
                limit=SAMPLE_SECONDS,
                now=None,
            )
        )

    def _sample(self, connection: Connection) -> None:
        """Where that takes too long, the next one is rarer: record_minute knows."""
        try:
            with connection.transaction():
                limit = f"{SAMPLE_SECONDS:g}s"
                self._statements.value(connection, "limit_statements", limit=limit)
                self._statements.value(connection, "sample_depths", now=None)
        except psycopg.errors.QueryCanceled:
            logger.debug("there is too much to count for a sample of what waits")

    def _age(self) -> float:
        """Seconds since the board began to count, about."""
        view = self._node.board.snapshot(claims=False)
        began = self._started_at if view.since is None else min(self._started_at, view.since / 1e9)
        return max(0.0, time.monotonic() - began)

    def _until_minute(self, after: float = 0.0) -> float:
        """Seconds until the next one has ended, by the clock that people see."""
        since = (time.time_ns() / 1e9 + after - self._after_minute) % _MINUTE
        return _MINUTE - since

    def _warn(self, error: psycopg.Error) -> None:
        """Once in a row."""
        if not self._warned:
            logger.warning("cannot write the history of this node: %s", reason(error))
        self._warned = True
