"""The lead: settles what is finished, claims the next run, and waits when there is nothing.

One thread has it at a time; it says nothing about which.

    step      settle + claim in one round trip
    rest      after an empty claim: until somebody rings, or a timer does
    recover   after an error: until the database answers again

A step whose session died may have claimed, or may still: its session is in doubt. The next
step ends it, waits until it is gone, and adopts what the table says is ours and nobody
here holds.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Container, Sequence
from contextlib import suppress
from functools import partial

import psycopg

from cmdbus.board.counters import Counter
from cmdbus.board.slots import Phase
from cmdbus.clock import time
from cmdbus.failpoints import AFTER_CLAIM, reach
from cmdbus.printable import joined
from cmdbus.worker.claims.claim import Claim, Connection, Finished, Looked, Session, Want
from cmdbus.worker.claims.claims import Claims
from cmdbus.worker.claims.connections import PoolExhausted
from cmdbus.worker.claims.floors import Floors
from cmdbus.worker.claims.rejections import Cause, cause_of, reason, was_executed
from cmdbus.worker.in_flight import Holding, Key
from cmdbus.worker.narrowing import Narrowing
from cmdbus.worker.prefetch_policy import Pace
from cmdbus.worker.telemetry import Record
from cmdbus.worker.unsettled import Done, first_part
from cmdbus.worker.waiting.wake import Waking
from cmdbus.worker.worker_thread import Slot

logger = logging.getLogger(__name__)

#: After a step failed for another reason than its connection, seconds until the next.
_AFTER_FAILURE = 1.0
#: Seconds until the next step while the board has no place for another claim and nothing was
#: settled.
_FULL_SECONDS = 0.01
#: A session in doubt that is not gone so soon is asked for again by the next step.
_GONE_WITHIN = 2.0


class Lead:
    def __init__(
        self,
        *,
        claims: Claims,
        held: Holding,
        done: Done,
        pace: Pace,
        wake: Waking,
        record: Record,
        domains: Sequence[str],
        types: Sequence[str],
        claim_bytes: int,
        take_on: Callable[[Slot, list[Claim]], None],
        stopping: threading.Event,
    ) -> None:
        self._claims = claims
        self._narrowing = Narrowing(claims)
        self._held = held
        self._done = done
        self._pace = pace
        self._wake = wake
        self._record = record
        self._domains = deque(domains)
        self._types = types
        self._claim_bytes = claim_bytes
        #: Puts claims into the queue.
        self._take_on = take_on
        self._stopping = stopping
        self._floors = Floors()
        #: Of the types that are claimed ahead; they are kept while these are the same.
        self._quick_floors, self._quick = Floors(), list[str]()
        #: The latest claim has left something that it could have taken.
        self._full = False
        #: Why the latest step failed, which is not said again.
        self._said = ""
        #: Added to by relief, too.
        self.doubts: set[Session] = set()

    def doubt(self, session: Session | None) -> None:
        """Nobody knows whether its last step has claimed."""
        if session is not None:
            self.doubts.add(session)

    def step(self, slot: Slot, threads: int) -> bool:
        """Settles everything finished and claims the next run; False if there was none."""
        hand, place = slot.hand, slot.place
        connection = hand.connection()
        if hand.session != slot.registered:
            self._claims.register_again(connection)
            slot.registered = hand.session
        if self.doubts:
            self.adopt(slot)
        self._wake.working(connection)
        try:
            began, want, claims = self._settle_and_claim(slot, threads)
        except BaseException as error:
            if hand.lost() or not isinstance(error, psycopg.Error):
                self.doubt(hand.session)
            raise
        if claims is None:
            return True
        ended = time.monotonic()
        self._record.stepped(place, len(claims), ended - began)
        payload = sum(len(claim.data) for claim in claims)
        self._wake.stepped(full=self._full)
        self._domains.rotate(-1)
        self._pace.stepped(len(claims), began, ended, payload)
        if claims:
            reach(AFTER_CLAIM)
        self._take_on(slot, claims)
        return bool(claims or not want.free)

    def _settle_and_claim(self, slot: Slot, threads: int) -> tuple[float, Want, list[Claim] | None]:
        """When the claim began, its limits, and its claims; None if they came row by row."""
        hand, place = slot.hand, slot.place
        done = self._done.take()
        plain, later = first_part([finished for finished in done if finished.plain])
        self._done.put_back(later)
        try:
            self._done.settle(hand, place, [finished for finished in done if not finished.plain])
            began = time.monotonic()
            want = self._want(began, threads, self._held.room + len(plain))
            if not (want.free or done):
                self._stopping.wait(_FULL_SECONDS)
            lost, claims = self._step(hand.connection(), plain, want)
        except BaseException as error:
            self._done.put_back(plain)
            if cause_of(error) is Cause.ELSEWHERE:
                raise
            rejection = error
        else:
            self._said = ""
            hand.worked()
            self._done.settled(place, plain, lost)
            return began, want, claims
        return began, want, self._claim_apart(slot, want, rejection)

    def _step(
        self, connection: Connection, done: Sequence[Finished], want: Want
    ) -> tuple[list[Claim], list[Claim]]:
        """With what it tells about where the next one is to begin."""
        looks: list[Looked] = []
        lost, claims = self._claims.step(connection, done, want, looks.append)
        self._full = len(claims) >= want.free
        now = time.monotonic()
        for looked in looks:
            if looked.ahead:
                self._quick_floors.looked(want.quick_floors, False, want.queues, looked, now)
            else:
                self._full = looked.stopped_at is not None
                self._floors.looked(want.floors, want.below, want.queues, looked, now)
        return lost, claims

    def _claim_apart(self, slot: Slot, want: Want, error: BaseException) -> list[Claim] | None:
        """After an outcome or a row has made a step fail: settles, then claims, on another
        session, as a handler may have spoilt this one. If the claim is what fails, rows are
        claimed one by one; the error is raised if that does not get on either."""
        slot.hand.drop()
        self._done.settle(slot.hand, slot.place, self._done.take())
        connection = slot.hand.connection()
        try:
            if was_executed(error):
                self._adopt(slot, connection, self._held.known())
            return self._step(connection, [], want)[1]
        except Exception as second:
            if cause_of(second) is Cause.ELSEWHERE:
                raise
            rejection = second
        if not self._narrowing.claim(connection, want, partial(self._take_on, slot)):
            raise rejection
        self._complain(rejection, "claiming row by row")
        self._record.claim_failed(slot.place)
        return None

    def adopt(self, slot: Slot) -> None:
        """What a step in doubt has claimed."""
        sessions = set(self.doubts)
        connection = slot.hand.connection()
        gone, known = self._end_sessions(connection, sessions)
        self._adopt(slot, connection, known)
        if gone and not slot.given_up:
            self.doubts -= sessions

    def _adopt(self, slot: Slot, connection: Connection, known: Container[Key]) -> None:
        """As far as there is room for payloads; the rest goes back."""
        adopted, rest = self._narrowing.adopt(connection, known, self._claim_bytes)
        if adopted or rest:
            count = len(adopted) + len(rest)
            logger.info("%s commands were claimed by a step whose reply was lost", count)
        self._held.turn_back(rest)
        self._take_on(slot, adopted)
        if rest:
            self._held.give_back(connection)

    def orphans(self, connection: Connection, sessions: Collection[Session]) -> list[Claim]:
        """Claims of this worker that it does not hold, without payloads."""
        _, known = self._end_sessions(connection, sessions)
        return self._narrowing.orphans(connection, known)

    def _end_sessions(
        self, connection: Connection, sessions: Collection[Session]
    ) -> tuple[bool, set[Key]]:
        """Whether the sessions are gone, or may still claim; and what is held after that."""
        gone = self._claims.end_sessions(connection, sessions, within=_GONE_WITHIN)
        # Before the table is read: what is settled in between is in neither.
        return gone, self._held.known()

    def _want(self, now: float, threads: int, room: int) -> Want:
        quick = [name for name in self._types if self._pace.is_quick(*name.split(" "))]
        bytes_ = self._claim_bytes - self._held.payload_ahead
        if bytes_ <= 0:
            room = 0  # Until a thread has started some of it.
        free = min(max(1, threads - len(self._held)), room)
        ahead = min(self._pace.ahead(bytes_), room - free) if quick else 0
        if len(quick) == len(self._types):
            free, ahead = free + ahead, 0
        if quick != self._quick:
            self._quick_floors, self._quick = Floors(), quick
        return Want(
            free=free,
            ahead=ahead,
            domains=list(self._domains),
            types=self._types,
            quick_types=quick,
            floors=self._floors.for_claim(now),
            bytes=bytes_,
            below=self._floors.below(now),
            quick_floors=self._quick_floors.for_claim(now),
        )

    def rest(self, slot: Slot) -> bool:
        """True if there was nothing to do but to settle, which is done: it may rest on."""
        self._record.waits(slot.place, Phase.RESTING)
        source = self._wake.rest(
            slot.hand.connection(),
            busy=lambda: bool(self._done) or self._stopping.is_set(),
            until=self._floors.look_again_at,
        )
        if source is not None:
            slot.place.counters.add(source)
        if source is Counter.WAKEUPS_NOTIFY:
            slot.place.counters.add(Counter.NOTIFICATION_WAKEUPS)
        if source is not None or self._stopping.is_set() or not self._wake.only_own():
            return False
        self._done.settle(slot.hand, slot.place, self._done.take())
        return True

    def recover(self, slot: Slot, error: Exception) -> None:
        """The outcomes are back in `done`; then a session that works, however long it takes,
        unless the worker stops meanwhile."""
        if not isinstance(error, psycopg.Error):
            # Something that a handler did to the connection object, or to the process.
            slot.hand.drop()
            self._complain(error, f"trying again every {_AFTER_FAILURE:g} s")
            self._stopping.wait(_AFTER_FAILURE)
            return
        slot.hand.heed(error)
        if not slot.hand.lost():
            slot.hand.failed()
            self._complain(error, f"trying again every {_AFTER_FAILURE:g} s")
            self._stopping.wait(_AFTER_FAILURE)
            return
        why = joined(str(error))
        if why != self._said:
            logger.warning(
                "the database connection is lost (%s); reconnecting until it is back", why
            )
        self._said = why
        self._record.waits(slot.place, Phase.AWAY)
        if not isinstance(error, PoolExhausted):
            self._record.health.database_away(time.monotonic())
        if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
            # Where the DSN takes any server, the next session may be one with the same.
            self._stopping.wait(_AFTER_FAILURE)
        while not self._stopping.is_set():
            # An error is the end of the worker, or of its pool for the moment.
            with suppress(psycopg.OperationalError):
                slot.hand.reconnect(self._stopping)
                self._record.database_back()
                return

    def _complain(self, error: Exception, then: str) -> None:
        """Not each time: what the server refuses now it may refuse for an hour."""
        why = reason(error)
        if why != self._said:
            logger.error("a step failed (%s); %s", why, then)
        self._said = why
