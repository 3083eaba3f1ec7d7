"""The node's listening session, and the notifications that a round must act on."""

import logging
import threading
from collections.abc import Callable, Collection, Mapping

from cmdbus.board.board import Node
from cmdbus.board.counters import Counter
from cmdbus.board.slots import Slot
from cmdbus.clock import time
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.waiting.bridge_wakes import BridgeWakes, of_ready
from cmdbus.worker.waiting.listener import Listener

logger = logging.getLogger(__name__)

#: The part of the server's queue of notifications above which this node asks for none.
_MAX_QUEUE_USAGE = 0.5
#: Seconds from one pause of domains that counts to the next. Each releases what is claimed and not
#: started, and any role may send such a notification.
_NEXT_PAUSE_SECONDS = 0.5


class Listening(Listener):
    def __init__(
        self,
        node: Node,
        statements: ClaimStatements,
        connect: Callable[[], Connection],
        slot: Slot,
        *,
        enabled: bool,
        domains: Collection[str] = (),
    ) -> None:
        """`slot` counts notifications; not `enabled`, this never listens. `domains` are those of
        the node's workers."""
        super().__init__(connect, statements)
        self.bridges = BridgeWakes(self.subscribe, domains)
        self._node = node
        self._board = node.board
        self._slot = slot
        self._enabled = enabled
        self._session_is_open = False
        #: The server's queue of notifications is too full.
        self._full = False
        #: Set here, cleared by the timers: something is due earlier than was known, or may be.
        self.due_earlier = threading.Event()
        #: The same: some commands became ready that another node may claim.
        self.ready = threading.Event()
        #: Set here, cleared when the node publishes its state: an operator watches the fleet.
        self.watched = threading.Event()
        #: The same, for `run_round`: this session has ended, so that of the rounds may have, too.
        self._session_ended = threading.Event()
        #: For the two threads that count pauses: the listener's, and that of the rounds.
        self._counting = threading.Lock()
        #: Monotonic time from which another pause counts; and whether there was one before that,
        #: which `run_round` counts.
        self._next_pause_at = float("-inf")
        self._paused = threading.Event()

    @property
    def is_on(self) -> bool:
        return self._session_is_open and not self._full

    @property
    def session(self) -> int:
        """The number of the session that hears of new commands; 0 is none."""
        return self.sessions if self.is_on else 0

    def start(self) -> None:
        if self._enabled:
            super().start()

    def run_round(self, connection: Connection) -> float:
        """Checks the session of the rounds after that of the listener has ended."""
        if self._session_ended.is_set():
            self._session_ended.clear()
            self._statements.execute(connection, "ping")
        now = time.monotonic()
        if not self._paused.is_set():
            return float("inf")
        if now >= self._next_pause_at:
            self._paused.clear()
            self._count_pause(now)
            return float("inf")
        return self._next_pause_at - now

    def count_breaker_change(self) -> None:
        """The states of breakers have changed, or may have: processes read them again."""
        with self._counting:
            self._board.breaker_changes += 1

    def _count_pause(self, now: float) -> None:
        self._next_pause_at = now + _NEXT_PAUSE_SECONDS
        with self._counting:
            self._board.domain_pauses += 1

    def watch_queue(self, usage: float) -> None:
        """The server has one queue of notifications for all databases; a full one makes the
        commits of senders fail. Above the limit this node polls instead."""
        full = usage > _MAX_QUEUE_USAGE
        if full != self._full and self._enabled:
            self._full = full
            logger.log(
                logging.WARNING if full else logging.INFO,
                "the server's queue of notifications is %s: %s",
                "more than half full, so some session does not read it" if full else "read again",
                "polling" if full else "listening",
            )

    def began(self) -> None:
        self._slot.occupy(-1, time.monotonic_ns())
        self._session_is_open = True
        self._board.listening = self.is_on
        if self._node.generation > 1 or self.sessions > 1:
            # Notifications sent since the session before this one reached no session.
            with self._counting:
                self._board.domain_pauses += 1
            self.watched.set()
        # For the same reason; states may also have been read before the first session listened.
        self.count_breaker_change()
        self.due_earlier.set()
        self._node.steward_pipe.put()

    def heard(self, notifications: Mapping[str, Collection[str]]) -> None:
        channels = notifications.keys()
        self._slot.counters.add(Counter.NOTIFICATION_WAKEUPS)
        if any(channel.endswith("_breaker") for channel in channels):
            self.count_breaker_change()  # Before a worker is woken because of it.
            self._node.steward_pipe.put()
        domains = of_ready(notifications)
        if domains and not self.bridges.concern_bridges_alone(domains):
            self._node.worker_pipe.put()
            self.ready.set()
        if self.bridges.hear(channels | domains):
            self._node.steward_pipe.put()
        if any(channel.endswith("_due") for channel in channels):
            self.due_earlier.set()
            self._node.steward_pipe.put()
        if any(channel.endswith("_watch") for channel in channels):
            self.watched.set()
            self._node.steward_pipe.put()
        if any(channel.endswith("_pause") for channel in channels):
            now = time.monotonic()
            if now >= self._next_pause_at:
                self._count_pause(now)
            elif not self._paused.is_set():
                self._paused.set()
                self._node.steward_pipe.put()

    def subscribed(self, channels: Collection[str]) -> None:
        if self.bridges.hear(channels):
            self._node.steward_pipe.put()

    def ended(self) -> None:
        self._session_is_open = False
        self._session_ended.set()
        self._board.listening = False
        self._node.steward_pipe.put()
