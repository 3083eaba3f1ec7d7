"""Database work of a worker whose threads are busy: one thread, with a session from the pool's
headroom.

It renews leases, settles outcomes that would wait for a busy thread, releases commands that were
claimed ahead and not started, and replaces threads that have timed out.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial

import psycopg

from cmdbus.clock import time
from cmdbus.exits import cannot_start_thread
from cmdbus.worker.claims.claim import Session
from cmdbus.worker.claims.connections import ThreadConnection
from cmdbus.worker.claims.rejections import reason
from cmdbus.worker.claims.renewal import Renewal
from cmdbus.worker.claims.sessions import end_sessions
from cmdbus.worker.execution.execution import Execution
from cmdbus.worker.pipeline.setup import Setup
from cmdbus.worker.pipeline.telemetry import NoSlotError
from cmdbus.worker.pipeline.worker_thread import RoundTrip, Work, WorkerThread
from cmdbus.worker.thread_pool import ThreadPool

logger = logging.getLogger(__name__)

#: Seconds within which an outcome is settled, whatever else the process is doing.
_SETTLE_WITHIN = 0.05
#: Seconds until the next try after a thread could not be replaced.
_AFTER_FAILURE = 1.0
#: Seconds added to the statement timeout to get the deadline of a task.
_SPARE_SECONDS = 5.0
#: Renewals that the steward may miss before the worker renews its leases by itself.
_STEWARD_MISSES = 1.5
#: Seconds for the thread to end after a stop, before its session is aborted.
_ENDS_WITHIN = 1.0


class Housekeeping:
    def __init__(self, threads: ThreadPool, setup: Setup) -> None:
        self._pool = threads
        self._pipeline = threads.pipeline
        self._statements, self._telemetry = setup.statements, setup.telemetry
        self._renewal = Renewal(setup.statements)
        self._timeout = setup.timeouts.statement + _SPARE_SECONDS
        #: Deadline of the current task.
        self._due = float("inf")
        self._slot, source = setup.telemetry.acquire_slot(), setup.source
        self._connection = ThreadConnection(source.get, source.put, self._slot.session)
        #: Threads that have timed out, with their work and stack.
        self._timed_out: deque[tuple[WorkerThread, Work, str]] = deque()
        self._replace_at = 0.0
        self._renew_at = 0.0
        self._attend_at = 0.0
        #: The latest warning, which is not repeated.
        self._last_warning = ""
        self._stopping = threading.Event()
        #: The exception that ended its thread before a stop.
        self._ended_by: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="worker-housekeeping", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, deadline: float) -> None:
        self._stopping.set()
        self._pipeline.in_flight.filled.set()
        self._thread.join(max(_ENDS_WITHIN, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._connection.abort_io()
            self._thread.join(_ENDS_WITHIN)

    def take_over(self, thread: WorkerThread, work: Work, stack: str) -> None:
        """Called by the main thread, which never touches the database itself."""
        self._timed_out.append((thread, work, stack))
        self._pipeline.in_flight.filled.set()

    @property
    def has_timed_out_threads(self) -> bool:
        return bool(self._timed_out)

    @property
    def fault(self) -> str:
        """Why this process must be replaced; empty if it need not be."""
        error = self._ended_by
        return f"the housekeeping thread was ended by {type(error).__name__}" if error else ""

    def cut_if_late(self, now: float) -> None:
        """Frees it from a server that does not answer."""
        if now > self._due:
            self._due = float("inf")
            self._connection.abort_io()
            what = "housekeeping waits for a database that does not answer: reconnecting"
            self._pipeline.unsettled.report(partial(logger.warning, what))

    def _run(self) -> None:
        self._slot.occupy(-1, time.monotonic_ns())
        try:
            while not self._stopping.wait(_SETTLE_WITHIN):
                if not self._pipeline.busy:
                    self._wait()
                self._pool.help_queued()
                for task in (
                    self._replace,
                    self._renew,
                    self._settle_old,
                    self._release_stale,
                    self._attend_batches,
                    self._attend_breakers,
                    self._pipeline.unsettled.log.write_beside,
                    self._pipeline.unsettled.reports.write_beside,
                ):
                    self._attempt(task)
        except BaseException as error:
            self._ended_by = error
        finally:
            self._connection.close()
            self._telemetry.release_slot(self._slot)

    def _attempt(self, task: Callable[[], None]) -> None:
        """An error of one task does not keep the others from running."""
        self._due = time.monotonic() + self._timeout
        try:
            task()
        except psycopg.Error as error:
            self._warn_once(reason(error))
            self._connection.discard_if_read_only(error)
            if self._connection.lost():
                self._connection.close()
        except Exception as error:
            if cannot_start_thread(error) or isinstance(error, NoSlotError):
                # Perhaps there is no thread that could write it.
                self._warn_once(str(error), beside=False)
            else:
                what = "housekeeping failed, and is tried again"
                self._pipeline.unsettled.report(partial(logger.error, what, exc_info=error))
                self._connection.drop()
        finally:
            self._due = float("inf")

    def _warn_once(self, error: str, *, beside: bool = True) -> None:
        """`beside`: another thread writes it."""
        if error != self._last_warning:
            warn = partial(logger.warning, "housekeeping failed, and is tried again: %s", error)
            self._pipeline.unsettled.report(warn) if beside else warn()
        self._last_warning = error

    def _settle_old(self) -> None:
        self._pipeline.unsettled.settle_old(self._connection, self._slot, _SETTLE_WITHIN)
        self._pipeline.unsettled.find_out(self._connection, self._slot)

    def _release_stale(self) -> None:
        self._pipeline.queue.mark_stale_released()
        self._pipeline.in_flight.release(self._connection)

    def _attend_batches(self) -> None:
        """As the threads are busy with other commands."""
        if self._pipeline.batches.due and time.monotonic() >= self._attend_at:
            self._attend_at = time.monotonic() + _AFTER_FAILURE
            self._pipeline.batches.attend(self._connection)
            self._attend_at = 0.0

    def _attend_breakers(self) -> None:
        if self._pipeline.breakers.is_due:
            self._pipeline.breakers.attend(self._connection.connection())

    def _wait(self) -> None:
        """Waits until something is claimed. Clears first, then checks: a thread that claims does
        the opposite."""
        self._pipeline.in_flight.filled.clear()
        has_work = self._pipeline.busy or self._timed_out or self._pipeline.unsettled.reports
        if not (has_work or self._stopping.is_set()):
            self._last_warning = ""
            self._pipeline.in_flight.filled.wait()

    def _replace(self) -> None:
        while self._timed_out and time.monotonic() >= self._replace_at:
            self._due = time.monotonic() + self._timeout
            # Before it fails: an error of another task must not delay this one.
            self._replace_at = time.monotonic() + _AFTER_FAILURE
            item = thread, work, stack = self._timed_out[0]
            self._timed_out.rotate(-1)  # The others come first if it fails.
            if isinstance(work, RoundTrip):
                self._replace_stuck(thread, stack, leads=work.leads)
            else:
                if not work.outcome_taken:
                    self._settle_late(thread, work, stack)
                self._pool.replace(thread)
            self._timed_out.remove(item)
            self._replace_at = 0.0

    def _settle_late(self, thread: WorkerThread, work: Execution, stack: str) -> None:
        """Ends the session before it settles the command: until then the session could commit."""
        connection = self._connection.connection()
        session = thread.connection.session
        activity = self._activity(session) if session else {}
        thread.connection.abort_io()
        if session:
            end_sessions(self._statements, connection, [session])
        thread.connection.take_away()
        finished = work.timed_out(stack, activity)
        work.outcome_taken = True
        # Nothing of them has happened.
        self._pipeline.in_flight.mark_released(c for c in work.group if c is not work.claim)
        self._telemetry.health.stuck(time.monotonic())
        self._pipeline.unsettled.settle(self._connection, self._slot, [finished])

    def _activity(self, session: Session) -> dict[str, object]:
        """For the event's details: the latest statement of a handler, and the sessions that block
        it, the longest first."""
        row = self._statements.row(self._connection.connection(), "read_session", pid=session[0])
        details = dict(zip(("statement", "blocked_by"), row or (), strict=False))
        return {name: value for name, value in details.items() if value}

    def _replace_stuck(self, thread: WorkerThread, stack: str, *, leads: bool) -> None:
        """`leads`: else it prepares its session, and does not claim."""
        what = "a thread cannot prepare its session: another one tries"
        if leads:
            # The next leader ends the session, and then adopts its claims. Each statement of a
            # round trip has a timeout but its COMMIT, which may wait for a synchronous standby: the
            # database counts as away until a round trip succeeds.
            what = "the leader is stuck in a round trip: another thread takes over"
            self._telemetry.health.database_away(time.monotonic())
            self._pipeline.leader.adoption.mark_in_doubt(thread.connection.session)
        thread.connection.abort_io()
        thread.connection.take_away()
        self._pool.replace(thread, with_lead=leads)
        self._pipeline.unsettled.report(partial(logger.error, "%s\n%s", what, stack))

    def _renew(self) -> None:
        now = time.monotonic()
        # A steward that is being replaced, or cannot connect, must not cost a lease.
        by_steward = self._telemetry.board.renewed / 1e9
        if now < max(
            self._renew_at, by_steward + _STEWARD_MISSES * self._statements.renewal_seconds
        ):
            return
        self._renew_at = now + self._statements.renewal_seconds
        held = self._pipeline.in_flight.all_claims()
        if held:
            claims = {self._statements.incarnation: held}
            lost = self._renewal.renew(self._connection.connection(), claims)
            self._pipeline.in_flight.mark_lost(lost)
