"""Executions that have finished and are not settled yet.

What fails puts the outcomes back first: an outcome is here, in one hand, or settled.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import psycopg

from cmdbus.board.counters import End
from cmdbus.board.slots import Slot as Place
from cmdbus.clock import time
from cmdbus.database import schema as schemas
from cmdbus.failpoints import COUNTED, SETTLED, reach
from cmdbus.worker.claims.claim import Claim, Connection, Finished
from cmdbus.worker.claims.claims import Claims
from cmdbus.worker.claims.connections import Hand
from cmdbus.worker.claims.outcomes import (
    MAX_MESSAGE,
    Kind,
    Outcome,
    ascii_text,
    completed,
    troubled,
)
from cmdbus.worker.claims.rejections import Cause, cause_of, reason
from cmdbus.worker.in_flight import Holding, Key, key_of
from cmdbus.worker.telemetry import Record, log_end

logger = logging.getLogger(__name__)

#: Outcomes that could not be stored for now, after which a pass defers the remaining ones.
_MAX_WAITS = 3
#: Seconds until a deferred outcome is tried again.
_DEFERRED_SECONDS = 1.0
#: Bytes of results and details in one settlement of several outcomes: the process and the server
#: have them in memory more than once until the statement has ended.
MAX_BYTES = 8 * 2**20
_KINDS = {
    End.COMPLETED: Kind.COMPLETED,
    End.FAILED: Kind.FAILED,
    End.RETRY: Kind.RETRY,
    End.INTERRUPTED: Kind.RETRY,
    End.TROUBLE: Kind.TROUBLE,
}


class Done:
    """Shared by all threads; every operation on a deque or a dict is atomic."""

    def __init__(self, claims: Claims, record: Record, held: Holding) -> None:
        self._claims = claims
        self._record = record
        self._held = held
        self._waiting: deque[Finished] = deque()
        #: Outcomes whose rows another session has locked, or that could not even be set aside: the
        #: leader skips them and the keeper tries them again.
        self._barred: deque[Finished] = deque()
        self._barred_until = 0.0
        #: Why the latest outcome could not be stored, which is logged once.
        self._complained = ""
        #: Settled before, by a statement whose reply was lost, or not ours any more.
        self._rowless: dict[Key, Finished] = {}
        #: What is settled and not logged yet: a handler that hangs may hold the lock of the log,
        #: and must not keep a thread from settling, or the lead from the queue.
        self._unlogged: deque[Callable[[], None]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def any_left(self) -> bool:
        """For relief alone."""
        return bool(self._barred or self._rowless)

    def add(self, finished: Finished) -> None:
        self._waiting.append(finished)

    def log_later(self, message: Callable[[], None]) -> None:
        """Logged by the next `log`, which any thread may call when it has nothing else to do."""
        self._unlogged.append(message)

    def log(self) -> None:
        while self._unlogged:
            try:
                message = self._unlogged.popleft()
            except IndexError:  # another thread has logged it
                return
            message()

    def put_back(self, done: Sequence[Finished]) -> None:
        self._waiting.extendleft(reversed(done))

    def take(self) -> list[Finished]:
        """All of them, in the order in which settlements may wait for their rows: so no two
        wait in a circle."""
        done: list[Finished] = []
        with suppress(IndexError):
            while True:
                done.append(self._waiting.popleft())
        return sorted(done, key=_key)

    def settle_old(self, hand: Hand, place: Place, older: float) -> None:
        """If something was finished longer ago than `older`, while all threads were busy."""
        oldest = time.monotonic()
        with suppress(IndexError):
            oldest = self._waiting[0].at
        if time.monotonic() - oldest > older:
            self.settle(hand, place, self.take())
        if self._barred and time.monotonic() > self._barred_until:
            self._settle_barred(hand, place)

    def settle_all(self, hand: Hand, place: Place) -> None:
        """For the last time."""
        self._unbar()
        self.settle(hand, place, self.take())
        self.find_out(hand, place)

    def _settle_barred(self, hand: Hand, place: Place) -> None:
        """One of them: if that is let in, so are the others."""
        try:
            first = self._barred.popleft()
        except IndexError:  # another thread has taken it
            return
        self.settle_singly(hand, place, [first])
        if first not in self._barred:
            self._complained = ""
            self._unbar()

    def _unbar(self) -> None:
        with suppress(IndexError):
            while True:
                self._waiting.append(self._barred.popleft())

    def settle(self, hand: Hand, place: Place, done: list[Finished]) -> None:
        """Outcomes of any kind. Raises only what says nothing about them: then they are back."""
        while done:
            some, done = first_part(done)
            try:
                self._settle(hand, place, some)
            except BaseException:
                self.put_back(done)
                raise

    def _settle(self, hand: Hand, place: Place, done: list[Finished]) -> None:
        try:
            lost = self._claims.settle(hand.connection(), done)
        except BaseException as error:
            cause = cause_of(error)
            if cause is Cause.ELSEWHERE:
                self.put_back(done)
                raise
        else:
            self.settled(place, done, lost)
            return
        if cause is Cause.ROWS:
            # A session that a handler has spoilt would reject each of them.
            hand.drop()
        self.settle_singly(hand, place, done)

    def settled(self, place: Place, done: Sequence[Finished], lost: Sequence[Claim] = ()) -> None:
        """Tells whom it concerns, of one after another: so that whatever kills this process, at
        most one in each thread is counted and not free. Of those that found no row, relief
        finds out."""
        if done:
            reach(SETTLED)
        if lost:
            keys = {key_of(claim) for claim in lost}
            for finished in done:
                if key_of(finished.claim) in keys:
                    self._rowless[key_of(finished.claim)] = finished
            done = [finished for finished in done if key_of(finished.claim) not in keys]
        for finished in done:
            if self._record.settled(place, finished):
                self.log_later(partial(log_end, finished))
            reach(COUNTED)
            self._held.free(finished.claim)

    def find_out(self, hand: Hand, place: Place) -> None:
        """By relief and, at the end, by the thread that stops the worker; each takes out what
        it counts, and puts it back after an error."""
        rowless = list(self._rowless.values())
        if not rowless:
            return
        ends = self._claims.ends(hand.connection(), [finished.claim for finished in rowless])
        for finished, end in zip(rowless, ends, strict=True):
            key = key_of(finished.claim)
            if self._rowless.pop(key, None) is None:
                continue
            try:
                self._found_out(place, finished, end)
            except BaseException:
                self._rowless[key] = finished
                raise

    def _found_out(self, place: Place, finished: Finished, end: End | None) -> None:
        if end is None or end is End.LOST or end is End.CANCELED:
            self._record.ended_elsewhere(place, finished.claim, end or End.LOST)
            self._held.free(finished.claim)
            log = self._record.log_canceled if end is End.CANCELED else self._record.log_lost
            self.log_later(partial(log, finished.claim))
            return
        kind, charged = _KINDS[end], end is not End.INTERRUPTED
        if kind is not finished.outcome.kind:
            # In its own transaction, or given up before that was known.
            finished = finished._replace(outcome=Outcome(kind=kind, charged=charged))
        self.settled(place, [finished])

    def not_settled(self, claim: Claim, max_attempts: int) -> None:
        """Its own transaction found no row: housekeeping finds out why."""
        self._held.finish(claim)
        finished = Finished(claim, completed(None), max_attempts, time.monotonic())
        self._rowless[key_of(claim)] = finished

    def settle_singly(self, hand: Hand, place: Place, done: list[Finished]) -> None:
        """One of them is rejected, or its row is locked: the others need not wait."""
        waits = 0
        for number, finished in enumerate(done):
            if waits == _MAX_WAITS:
                self._bar(done[number:])
                return
            try:
                settled, lost = settle_one(self._claims, hand.connection(), finished)
            except BaseException as error:
                cause = cause_of(error)
                if cause is Cause.ELSEWHERE:
                    self.put_back(done[number:])
                    raise
                self._bar([finished])
                self._complain(finished, cause, error)
                waits += cause is not Cause.ROWS
            else:
                self.settled(place, [settled], lost)

    def _bar(self, done: Sequence[Finished]) -> None:
        self._barred.extend(done)
        self._barred_until = time.monotonic() + _DEFERRED_SECONDS

    def _complain(self, finished: Finished, cause: Cause, error: BaseException) -> None:
        why = reason(error)
        if why != self._complained:
            level, what = (
                (logging.ERROR, "can neither be stored nor moved to the troubleshooting queue")
                if cause is Cause.ROWS
                else (logging.WARNING, "cannot be stored for now")
            )
            self.log_later(
                partial(
                    logger.log,
                    level,
                    "the outcome of command %s (%s/%s) %s (%s): trying again every %g s",
                    finished.claim.command_id,
                    finished.claim.domain,
                    finished.claim.type,
                    what,
                    why,
                    _DEFERRED_SECONDS,
                )
            )
        self._complained = why


def first_part(done: list[Finished]) -> tuple[list[Finished], list[Finished]]:
    """What one statement settles: one outcome, or the first that have MAX_BYTES; and the rest."""
    if sum([len(f.outcome.result or f.outcome.details or "") for f in done]) <= MAX_BYTES // 4:
        return done, []  # No character has more than four bytes.
    taken = 0
    for number, finished in enumerate(done):
        text = finished.outcome.result or finished.outcome.details or ""
        taken += len(text.encode("utf-8", "surrogatepass"))
        if taken > MAX_BYTES and number:
            return done[:number], done[number:]
    return done, []


def settle_one(
    claims: Claims, connection: Connection, finished: Finished
) -> tuple[Finished, list[Claim]]:
    """Settles an outcome by itself or, if it is rejected, moves its command to
    troubleshooting. Returns the outcome that is stored, and its claim if that was lost.

    Raises if the row is locked, if the error is none of the outcome's, or if even the move
    is rejected."""
    try:
        return finished, claims.settle(connection, [finished])
    except Exception as error:
        if cause_of(error) is not Cause.ROWS:
            raise
        rejection = error
    if _lacks_partition(rejection):
        schemas.make_partitions(connection, claims.schema)
        return finished, claims.settle(connection, [finished])
    why = ascii_text(
        f"its outcome {finished.outcome.kind} was rejected: {reason(rejection)}",
        MAX_MESSAGE,
    )
    code = "OUTCOME_NOT_STORABLE"
    moved = claims.set_aside(connection, claims.key(finished.claim), code, why)
    return finished._replace(outcome=troubled(code, why)), [] if moved else [finished.claim]


def _lacks_partition(error: Exception) -> bool:
    """The same SQLSTATE as a CHECK's, without the name of a constraint."""
    return isinstance(error, psycopg.errors.CheckViolation) and not error.diag.constraint_name


def _key(finished: Finished) -> tuple[str, int, int]:
    return finished.claim[:3]
