"""Publishes what the node's board shows, for operators of all nodes: each minute, and every two
seconds while an operator watches the fleet, of which a notification tells the first time.

It is no part of running commands: where it fails, all other rounds go on.
"""

import logging
import os
import platform
import socket
import threading
from collections.abc import Callable, Collection
from importlib import metadata

import psycopg

from cmdbus.board.board import Node
from cmdbus.board.records import SupervisorState
from cmdbus.clock import time
from cmdbus.database import statements as texts
from cmdbus.proc import rss_bytes
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.rejections import reason
from cmdbus.worker.steward.exits import Exits
from cmdbus.worker.steward.publication import (
    NodeFacts,
    counters_text,
    stacks_text,
    state_text,
)

logger = logging.getLogger(__name__)

#: Seconds from one publication to the next, ordinarily, while an operator watches, and after one
#: that has failed.
EVERY_SECONDS, WATCHED_SECONDS, RETRY_SECONDS = 60.0, 2.0, 60.0
#: Seconds after a publication by a fleet that starts: else it would seem to start for a minute.
STARTING_SECONDS = 5.0
#: Characters of a name.
_MAX_NAME = 200
_STOPPING = (SupervisorState.STOPPING, SupervisorState.STOPPED, SupervisorState.GIVING_UP)


class PublishRound:
    def __init__(
        self,
        node: Node,
        statements: ClaimStatements,
        exits: Exits,
        watched: threading.Event,
        name: str,
        beside: Callable[[], float] = lambda: float("inf"),
        dead: Collection[int] = (),
    ) -> None:
        """`watched` is set by a notification that an operator watches the fleet. `beside` is the
        monotonic time at which another round wakes the steward: publications come then, too.
        `dead`: pids of supervisors of this name that have died here."""
        self._node, self._statements, self._exits = node, statements, exits
        self._watched, self._name, self._beside, self._dead = watched, name, beside, dead
        self._facts: NodeFacts | None = None
        #: Monotonic time of the next publication.
        self._due = 0.0
        self._published_at = float("-inf")
        #: What a predecessor has published is taken over.
        self._succeeded = False
        self._starting = False
        #: The number of the latest exit whose stack is published.
        self._stacks_of = -1
        self._warned = False

    def run(self, connection: Connection) -> float:
        now = time.monotonic()
        if self._watched.is_set():
            self._watched.clear()
            self._due = min(self._due, self._published_at + WATCHED_SECONDS)
        if now < self._due:
            return self._due - now
        # Before it is known to succeed, as what may fail need not be tried in each pass.
        self._due, self._published_at = now + RETRY_SECONDS, now
        try:
            watched = self._publish(connection, stopped=False)
        except psycopg.Error as error:
            self._stacks_of = -1
            if connection.closed:
                self._due = now  # By the next session.
                raise
            self._warn(error)
            return RETRY_SECONDS
        pause = STARTING_SECONDS if self._starting else pause_beside(self._beside() - now)
        if watched > 0:
            pause = WATCHED_SECONDS
        self._due = now + pause
        return pause

    def leave(self, connection: Connection) -> None:
        """Says that the node stops; but not if only its steward does, which has a successor."""
        state = self._node.board.snapshot(claims=False).state
        if self._node.parent is None or state in _STOPPING:
            try:
                self._publish(connection, stopped=True)
            except psycopg.Error as error:
                if connection.closed:
                    raise
                self._warn(error)

    def _publish(self, connection: Connection, *, stopped: bool) -> float:
        """Returns the seconds for which operators watch."""
        facts = self._facts = self._facts or self._read_facts()
        key = {"node": self._statements.node, "name": facts.name, "host": facts.host}
        if not self._succeeded:
            dead = list(self._dead)
            row = self._statements.row(connection, "succeed_node", **key, dead=dead)
            if row is not None:
                state, stacks, age = row
                self._exits.succeed(state, stacks, time.monotonic() - age)
            self._succeeded = True
        number, now = self._exits.number, time.monotonic_ns()
        stacks = None if number == self._stacks_of else stacks_text(self._exits.stacks())
        view = self._node.board.snapshot(claims=False)
        self._starting = view.state is SupervisorState.STARTING
        state = state_text(
            facts,
            view,
            now,
            server=connection.info.server_version,
            memory=rss_bytes(facts.pid),
            exits=self._exits.to_list(now / 1e9),
        )
        counters = counters_text(self._node.board.counters())
        values = {"stopped": stopped, "state": state, "counters": counters, "stacks": stacks}
        watched = float(self._statements.value(connection, "publish_node", **key, **values))
        self._stacks_of = number
        return watched

    def _read_facts(self) -> NodeFacts:
        try:
            version = metadata.version("cmdbus")
        except metadata.PackageNotFoundError:
            version = "unknown"
        return NodeFacts(
            name=_ascii(self._name),
            host=_ascii(socket.gethostname()),
            pid=self._node.parent or os.getpid(),
            version=version,
            python=platform.python_version(),
            schema=len(texts.versions()),
        )

    def _warn(self, error: psycopg.Error) -> None:
        """Once."""
        if not self._warned:
            logger.warning("cannot publish the state of this node: %s", reason(error))
        self._warned = True


def pause_beside(other: float) -> float:
    """Seconds to the next publication, which is to come with a round that is due in `other` seconds
    and each EVERY_SECONDS from then on."""
    if other == float("inf"):
        return EVERY_SECONDS
    pause = other % EVERY_SECONDS
    return pause if pause >= EVERY_SECONDS / 2 else pause + EVERY_SECONDS


def _ascii(name: str) -> str:
    """In bounds, and text in any encoding of a database."""
    return name.encode("ascii", "backslashreplace").decode()[:_MAX_NAME]
