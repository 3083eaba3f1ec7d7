"""The stop of a worker: running commands may end until the deadline, the others are released."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import psycopg

from cmdbus.board.slots import Slot
from cmdbus.clock import time
from cmdbus.command_log import log_about
from cmdbus.printable import joined
from cmdbus.worker.claims.claim import STOPPED, Claim, Connection
from cmdbus.worker.claims.connections import ThreadConnection
from cmdbus.worker.claims.releasing import release
from cmdbus.worker.claims.sessions import abort_io_at, end_sessions
from cmdbus.worker.pipeline.in_flight import ROW_LOCKED
from cmdbus.worker.pipeline.worker_thread import RoundTrip, WorkerThread
from cmdbus.worker.watch import Watch

logger = logging.getLogger(__name__)

#: Seconds after the deadline for releasing the remaining claims.
RELEASE_SECONDS = 1.0
#: Minimum seconds for releasing rows that other sessions have locked, and between two attempts.
_LOCKED_SECONDS, _LOCKED_PAUSE_SECONDS = 0.5, 0.02
_NOT_ORDERED = "its process got a SIGTERM that the supervisor did not send"


class Drain:
    def __init__(self, watch: Watch, deadline: float) -> None:
        self._watch = watch
        self._deadline = deadline
        self._statements, self._telemetry = watch.setup.statements, watch.setup.telemetry
        self._threads, self._in_flight = watch.threads, watch.threads.in_flight
        self._adoption = watch.threads.pipeline.leader.adoption
        self._housekeeping = watch.housekeeping
        self._abandoned = 0
        source = watch.setup.source
        self._connection = ThreadConnection(
            lambda: source.get(max(1.0, deadline - time.monotonic())), source.put
        )

    def run(self) -> int:
        """Returns the number of commands that still ran, and were released, and of sessions that
        may have left further claims."""
        self._threads.pipeline.stop_claiming()
        if self._watch.steward is not None:
            self._watch.steward.listening.request_stop()
        message = "worker %s stops: running commands may end, the others are released"
        self._threads.unsettled.report(partial(logger.info, message, self._statements.worker))
        try:
            with abort_io_at(self._deadline + RELEASE_SECONDS, self._connection.abort_io):
                self._settle_all()
        except Exception as error:
            message = (
                "cannot release this worker's claims (%s): others can claim them when the leases "
                "expire"
            )
            self._threads.unsettled.report(partial(logger.warning, message, joined(str(error))))
            self._abandoned = max(self._abandoned, len(self._in_flight.known()))
        finally:
            self._housekeeping.stop(self._deadline)
            self._threads.cut_all()
            self._connection.close()
            for log in (self._threads.unsettled.reports, self._threads.unsettled.log):
                log.write_last(max(RELEASE_SECONDS, self._deadline - time.monotonic()))
        return self._abandoned + self._adoption.unresolved_count

    def _settle_all(self) -> None:
        """Housekeeping releases what was not started: if it cannot, that cuts no running command
        off, and a database that is away does not keep this thread from its heartbeat."""
        stuck = self._await_end()
        for thread in stuck:
            if isinstance(thread.work, RoundTrip) and thread.work.leads:
                self._adoption.mark_in_doubt(thread.connection.session)
        self._housekeeping.stop(self._deadline)
        slot = self._telemetry.acquire_slot()
        self._settle_rest(slot)
        self._settle_locked(slot)
        self._report_calls()
        self._telemetry.release_slot(slot)
        self._release_locked()
        if stuck:
            self._abandon(stuck, self._connection.connection())
        self._abandoned += self._in_flight.end()

    def _await_end(self) -> list[WorkerThread]:
        """Waits for running commands until the deadline; returns the threads that are left."""
        while (now := time.monotonic()) < self._deadline:
            until = min(self._deadline, now + self._watch.beat_seconds)
            if not self._threads.join(until):
                if not self._housekeeping.has_timed_out_threads:
                    return []
                time.sleep(_LOCKED_PAUSE_SECONDS)
            self._watch.look(until)
        return self._threads.left()

    def _settle_rest(self, slot: Slot) -> None:
        settle_all = partial(self._threads.pipeline.settle_all, self._connection, slot)
        try:
            settle_all()
        except psycopg.Error:
            if not self._connection.lost() or time.monotonic() >= self._deadline:
                raise
            settle_all()  # The session had ended unnoticed, as when the server is restarted.

    def _settle_locked(self, slot: Slot) -> None:
        """Tries again to store outcomes whose rows other sessions have locked."""
        unsettled = self._threads.unsettled
        while (left := self._in_flight.in_state(ROW_LOCKED)) and (
            (now := time.monotonic()) < self._deadline - RELEASE_SECONDS
        ):
            time.sleep(_LOCKED_PAUSE_SECONDS)
            self._watch.look(now + _LOCKED_PAUSE_SECONDS)
            unsettled.settle_old(self._connection, slot, 0.0)
        unsettled.find_out(self._connection, slot)
        for entry in left:
            message = "the outcome of a command could not be stored in time"
            log_about(logger, logging.ERROR, entry.claim.log_fields, message)

    def _report_calls(self) -> None:
        """Tries again: another session may have locked a breaker."""
        breakers = self._threads.pipeline.breakers
        until = max(self._deadline, time.monotonic() + _LOCKED_SECONDS)
        with suppress(psycopg.Error):  # Leases end the places that are left.
            while breakers.has_reports and (now := time.monotonic()) < until:
                if breakers.is_due:
                    breakers.attend(self._connection.connection())
                else:
                    time.sleep(_LOCKED_PAUSE_SECONDS)
                    self._watch.look(now + _LOCKED_PAUSE_SECONDS)
            if breakers.has_reports:
                breakers.give_back_all(self._connection.connection())

    def _release_locked(self) -> None:
        """Tries again: another worker's claim may lock rows that this one has just claimed."""
        until = max(self._deadline, time.monotonic() + _LOCKED_SECONDS)
        while not self._in_flight.release(self._connection) and time.monotonic() < until:
            time.sleep(_LOCKED_PAUSE_SECONDS)

    def _abandon(self, stuck: list[WorkerThread], connection: Connection) -> None:
        """Ends the sessions of these threads, which could commit until then, and releases their
        commands."""
        held = self._in_flight.unfinished()
        self._abandoned = len(held)
        sessions = [session for thread in stuck if (session := thread.connection.session)]
        for thread in stuck:
            thread.connection.abort_io()
        end_sessions(self._statements, connection, sessions)
        work = partial(self._release_begun, connection)
        released, locked = release(self._statements, connection, held, work)
        until = time.monotonic() + _LOCKED_SECONDS
        while locked and time.monotonic() < until:
            time.sleep(_LOCKED_PAUSE_SECONDS)
            more, locked = release(self._statements, connection, locked, work)
            released += more
        self._in_flight.free(held)
        for claim in released:
            message = "command did not end in time: released, it runs again"
            log_about(logger, logging.ERROR, claim.log_fields, message)

    def _release_begun(self, connection: Connection, claims: Sequence[Claim]) -> list[Claim]:
        """An order to stop counts no loss. A verdict does, and so does any other signal, which the
        command may have sent."""
        node = self._watch.node
        verdict, ordered = node.seat.stop_verdict, node.parent is None or bool(node.seat.stop_by)
        why = "its worker was stopped" if ordered else _NOT_ORDERED
        if verdict:
            why = "its worker was replaced"
        loss = int(bool(verdict) or not ordered)
        return self._statements.release(
            connection,
            claims,
            [loss] * len(claims),
            f"{why} before it had ended",
            None if loss else STOPPED,
        )
