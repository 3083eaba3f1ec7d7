"""Reads the timers when the earliest is due: promotes due commands, which notifies, cancels those
that have expired, and wakes a worker for a lease that has ended, or because nothing has woken one
within the poll interval."""

from collections.abc import Collection
from dataclasses import dataclass

from cmdbus.board.board import Node
from cmdbus.clock import time
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.steward.listening import Listening
from cmdbus.worker.waiting.arming import Arming
from cmdbus.worker.waiting.timers import Timers, seconds_to_reading


@dataclass(slots=True)
class TimerRound:
    node: Node
    statements: ClaimStatements
    timers: Timers
    arming: Arming
    listening: Listening
    poll_interval: float
    #: Monotonic time of the next reading.
    _read_at: float = 0.0
    #: Monotonic time at which a worker is woken because the earliest timer is due; senders of
    #: earlier commands notify.
    due_at: float = 0.0
    #: Whether nothing else wakes a worker then; the promotion of due commands notifies, and no
    #: worker need know what has expired.
    _wakes: bool = True
    #: The latest reading included the ends of leases.
    _leases_known: bool = False

    def run(self, connection: Connection) -> float:
        now = time.monotonic()
        if self.listening.ready.is_set():
            # Another node may have claimed the command: this one watches the lease of that from its
            # first renewal on.
            self.listening.ready.clear()
            self._read_at = min(self._read_at, now + self.statements.renewal_seconds)
        view = self.node.board.snapshot(claims=False)
        parked = view.any_parked
        # Not put off before it is due: else each reading would be followed by another.
        latest = self.due_at if self.due_at > now else float("inf")
        if self.listening.due_earlier.is_set():
            self.listening.due_earlier.clear()
        elif parked and self.listening.is_on and not (self.arming.is_up and self._leases_known):
            # From now on no process polls: the leases of other nodes must be read.
            latest = float("inf")
        elif now < self._read_at:
            return self._read_at - now
        elif now >= self.due_at and (self._wakes or not self.listening.is_on):
            self.node.worker_pipe.put()
            self.timers.opened_until = now
        return self._read(connection, latest, view.claimers, leases=parked)

    def _read(
        self, connection: Connection, latest: float, own: Collection[int], *, leases: bool
    ) -> float:
        seconds = self.timers.promote_and_read(connection, leases=leases, own=own)
        self._leases_known = leases
        self.node.board.suspects = self.timers.seen.suspects
        self.listening.watch_queue(self.timers.seen.queue_usage)
        now, poll = time.monotonic(), self.poll_interval
        if now + min(seconds, poll) < latest:
            self._wakes = not self.timers.wakes_no_worker_within(min(seconds, poll))
        fallback = min(poll, max(0.0, latest - now))
        self.due_at = now + min(seconds, fallback)
        self._read_at = now + seconds_to_reading(seconds, fallback)
        # Until an own lease ends a process may exit, or fail to release what it has claimed.
        self._read_at = min(self._read_at, now + self.timers.seen.own_lease_ends)
        return self._read_at - now
