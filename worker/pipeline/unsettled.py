"""Executions that have finished and are not settled yet.

After an error the outcomes are put back first: an outcome is here, with one thread, or settled.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter

from cmdbus import instrument_hooks, instruments
from cmdbus.board.counters import OutcomeLabel
from cmdbus.board.slots import Slot
from cmdbus.clock import time
from cmdbus.command_log import log_about
from cmdbus.failpoints import SETTLED, failpoint
from cmdbus.worker.breakers.breakers import Breakers
from cmdbus.worker.claims.claim import Claim, Finished, fence_of
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.connections import ThreadConnection
from cmdbus.worker.claims.ended_executions import other_end, settled_executions
from cmdbus.worker.claims.ends import log_end, log_not_settled
from cmdbus.worker.claims.outcomes import Outcome, OutcomeKind, completed
from cmdbus.worker.claims.rejections import Cause, cause_of, lacks_a_right, reason
from cmdbus.worker.claims.settlement import settle_one
from cmdbus.worker.claims.settlement_log import SettlementLog
from cmdbus.worker.pipeline.in_flight import ROW_LOCKED, ROW_MISSING, InFlight
from cmdbus.worker.pipeline.telemetry import Telemetry

logger = logging.getLogger(__name__)

#: Lock timeouts after which a pass defers its remaining outcomes.
_MAX_WAITS = 3
#: Seconds until a deferred outcome is tried again.
_DEFERRED_SECONDS = 1.0
#: Bytes of results and details in one settlement of several outcomes: until the statement ends,
#: the process and the server keep several copies of them.
MAX_BYTES = 8 * 2**20


class Unsettled:
    """Shared by all threads; every operation on a deque is atomic."""

    def __init__(
        self, statements: ClaimStatements, telemetry: Telemetry, in_flight: InFlight
    ) -> None:
        self._statements = statements
        self._telemetry = telemetry
        self._in_flight = in_flight
        #: Learn which executions were settled, if types are bound to some.
        self.breakers: Breakers | None = None
        self._waiting: deque[Finished] = deque()
        #: Time of the next try of outcomes that could not be stored.
        self._row_locked_until = 0.0
        #: The latest warning, which is not repeated.
        self._last_warning = ""
        self.log = SettlementLog()
        #: Messages of threads that must not wait, such as the leader.
        self.reports = SettlementLog()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, finished: Finished) -> None:
        self._waiting.append(finished)

    def put_back(self, finished: Sequence[Finished]) -> None:
        self._waiting.extendleft(reversed(finished))

    def take(self) -> list[Finished]:
        """Takes all, in the order in which settlements wait for rows without deadlocks."""
        finished: list[Finished] = []
        with suppress(IndexError):
            while True:
                finished.append(self._waiting.popleft())
        finished.sort(key=itemgetter(0))
        return finished

    def settle_old(self, connection: ThreadConnection, slot: Slot, older: float) -> None:
        """Settles what has waited for more than `older` seconds, as all threads are busy."""
        since = time.monotonic() - older
        if any(finished.at < since for finished in self._waiting.copy()):
            self.settle(connection, slot, self.take())
        if time.monotonic() > self._row_locked_until:
            self._settle_row_locked(connection, slot)

    def settle_all(self, connection: ThreadConnection, slot: Slot) -> None:
        self._retry_row_locked()
        self.settle(connection, slot, self.take())
        self.find_out(connection, slot)

    def _settle_row_locked(self, connection: ThreadConnection, slot: Slot) -> None:
        """Tries one of them, and the others if that one can be stored."""
        for first in self._in_flight.in_state(ROW_LOCKED)[:1]:
            if finished := self._in_flight.take_held(first, ROW_LOCKED):
                self._settle_singly(connection, slot, [finished])
            if first.state is not ROW_LOCKED:
                self._last_warning = ""
                self._retry_row_locked()

    def _retry_row_locked(self) -> None:
        for entry in self._in_flight.in_state(ROW_LOCKED):
            if finished := self._in_flight.take_held(entry, ROW_LOCKED):
                self._waiting.append(finished)

    def settle(self, connection: ThreadConnection, slot: Slot, finished: list[Finished]) -> None:
        """Settles outcomes of any kind. After an error that is not theirs, puts them back."""
        while finished:
            some, finished = first_part(finished)
            try:
                self._settle(connection, slot, some)
            except BaseException:
                self.put_back(finished)
                raise

    def _settle(self, connection: ThreadConnection, slot: Slot, finished: list[Finished]) -> None:
        try:
            lost = self._statements.settle(connection.connection(), finished)
        except BaseException as error:
            cause = cause_of(error)
            if cause is Cause.ELSEWHERE:
                self.put_back(finished)
                raise
            if cause is Cause.ROWS:
                # A session that a handler has changed would reject each of them.
                connection.drop()
            self._settle_singly(connection, slot, finished)
        else:
            self.settled(slot, finished, lost)

    def settled(self, slot: Slot, done: Sequence[Finished], lost: Sequence[Claim] = ()) -> None:
        """Counts these outcomes. Housekeeping finds out about those that found no row."""
        if not done:
            return
        failpoint(SETTLED)
        if lost:
            fences = {fence_of(claim) for claim in lost}
            for finished in done:
                if fence_of(finished.claim) in fences:
                    self._in_flight.hold(finished, ROW_MISSING)
            done = [finished for finished in done if fence_of(finished.claim) not in fences]
        for finished in self._telemetry.settled(slot, done):
            self.log.add(partial(log_end, finished))
        if instruments.installed and done:
            self.log.add(partial(instrument_hooks.settled, settled_executions(done)))
        if self.breakers is not None:
            self.breakers.settled(finished.claim for finished in done)
        self._in_flight.free([finished.claim for finished in done])

    def find_out(self, connection: ThreadConnection, slot: Slot) -> None:
        """Finds out why settlements found no rows, and counts these executions. Called by two
        threads: each takes the outcomes that it counts, and puts them back after an error."""
        entries = self._in_flight.in_state(ROW_MISSING)
        if not entries:
            return
        ends = self._statements.ends(connection.connection(), [entry.claim for entry in entries])
        for entry, end in zip(entries, ends, strict=True):
            finished = self._in_flight.take_held(entry, ROW_MISSING)
            if finished is not None:
                try:
                    self._found_out(slot, finished, end)
                except BaseException:
                    self._in_flight.hold(finished, ROW_MISSING)
                    raise

    def _found_out(self, slot: Slot, finished: Finished, end: OutcomeLabel | None) -> None:
        if end is None or end is OutcomeLabel.LOST or end is OutcomeLabel.CANCELED:
            self._telemetry.ended_elsewhere(slot, finished.claim, end or OutcomeLabel.LOST)
            self.report_other_end(finished.claim, end or OutcomeLabel.LOST, finished)
            if self.breakers is not None:
                self.breakers.not_settled(finished.claim)
            self._in_flight.free([finished.claim])
            self.log.add(partial(log_not_settled, finished, end))
            return
        charged = end is not OutcomeLabel.INTERRUPTED
        kind = OutcomeKind[end.name] if charged else OutcomeKind.RETRY
        if kind is not finished.outcome.kind:
            # Settled in its own transaction, or timed out before that was known.
            finished = finished._replace(outcome=Outcome(kind=kind, charged=charged))
        self.settled(slot, [finished])

    def report_other_end(
        self, claim: Claim, end: OutcomeLabel, finished: Finished | None = None
    ) -> None:
        """To the instruments of the process: this execution was not settled."""
        if instruments.installed:
            self.log.add(partial(instrument_hooks.settled, [other_end(claim, end, finished)]))

    def not_settled(self, claim: Claim, max_attempts: int, seconds: float) -> None:
        """The settlement in the command's own transaction found no row."""
        finished = Finished(claim, completed(None), max_attempts, 0.0, seconds)
        self._in_flight.hold(finished, ROW_MISSING)

    def _settle_singly(
        self, connection: ThreadConnection, slot: Slot, done: list[Finished]
    ) -> None:
        """One of them is rejected, or its row is locked: the others need not wait."""
        waits = 0
        for number, finished in enumerate(done):
            if waits == _MAX_WAITS:
                self._defer_row_locked(done[number:])
                return
            try:
                settled, lost = settle_one(self._statements, connection.connection(), finished)
            except BaseException as error:
                cause = cause_of(error)
                if cause is Cause.ELSEWHERE:
                    self.put_back(done[number:])
                    raise
                if lacks_a_right(error):
                    # Other errors say less about the process: a locked row must not replace it.
                    self._telemetry.health.ended(time.monotonic(), failures=1)
                self._defer_row_locked([finished])
                self._warn_once(finished, cause, error)
                waits += cause is not Cause.ROWS
            else:
                self.settled(slot, [settled], lost)

    def _defer_row_locked(self, finished: Sequence[Finished]) -> None:
        for each in finished:
            self._in_flight.hold(each, ROW_LOCKED)
        self._row_locked_until = time.monotonic() + _DEFERRED_SECONDS

    def report(self, message: Callable[[], object]) -> None:
        """Logs what must not be waited for, as a handler that hangs may hold the lock of the log:
        housekeeping lets another thread write it."""
        self.reports.add(message)
        self._in_flight.filled.set()

    def _warn_once(self, finished: Finished, cause: Cause, error: BaseException) -> None:
        why = reason(error)
        if why != self._last_warning:
            level, what = (
                (logging.ERROR, "can neither be stored nor moved to the troubleshooting queue")
                if cause is Cause.ROWS
                else (logging.WARNING, "cannot be stored yet")
            )
            message = "the outcome of a command %s (%s): trying again every %g s"
            about = finished.claim.log_fields
            log = partial(log_about, logger, level, about, message, what, why, _DEFERRED_SECONDS)
            self.log.add(log)
        self._last_warning = why


def first_part(done: list[Finished]) -> tuple[list[Finished], list[Finished]]:
    """The outcomes of one statement, which have at most MAX_BYTES or are one; and the rest."""
    if sum([len(f.outcome.result or f.outcome.details or "") for f in done]) <= MAX_BYTES // 4:
        return done, []  # No character has more than four bytes.
    taken = 0
    for number, finished in enumerate(done):
        text = finished.outcome.result or finished.outcome.details or ""
        taken += len(text.encode("utf-8", "surrogatepass"))
        if taken > MAX_BYTES and number:
            return done[:number], done[number:]
    return done, []
