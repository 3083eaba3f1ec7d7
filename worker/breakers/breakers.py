"""Which calls a worker process lets through, and what it reports of them."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import TypeVar

import psycopg

from cmdbus.backoff import Backoff
from cmdbus.board.board import Board
from cmdbus.breakers import MAX_FAILURES, Breaker, Verdict
from cmdbus.clock import time
from cmdbus.errors import BreakerOpenError
from cmdbus.registry import HandlerRegistry
from cmdbus.worker.breakers.claimed_probes import ClaimedProbes
from cmdbus.worker.breakers.reports import Report, Reports, as_json
from cmdbus.worker.breakers.states import BreakerStates
from cmdbus.worker.claims.claim import Claim, Connection, Fence, fence_of
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.connections import PooledConnections
from cmdbus.worker.claims.rejections import reason

logger = logging.getLogger(__name__)

#: Seconds until reports are written that found their breaker locked by another session.
_MIN_LOCKED_SECONDS, _MAX_LOCKED_SECONDS = 0.002, 0.1
#: Seconds within which failures are written, unless their rows or breaker are locked for long: then
#: they hold no call back, as what is claimed and given back would be claimed again.
_WRITTEN_SECONDS = 1.0
#: Seconds until this process asks for a probe's place again after it got none.
_REFUSED_SECONDS = 0.05
#: Seconds to wait for another thread that uses a session before its call.
_TURN_SECONDS = 0.1
#: Seconds to wait for a session of the pool's headroom.
_SESSION_SECONDS = 2.0
#: Seconds until the next try after an error of a statement, or without a session.
_AFTER_FAILURE = 1.0

Found = TypeVar("Found")


class Breakers:
    """Shared by all threads."""

    def __init__(
        self,
        statements: ClaimStatements,
        registry: HandlerRegistry,
        board: Board,
        source: PooledConnections,
    ) -> None:
        self._statements, self._registry, self._source = statements, registry, source
        declared = registry.breakers()
        self.states = BreakerStates(statements, declared, {*statements.types}, board)
        self.probes = ClaimedProbes()
        #: The latest success of each.
        self._succeeded_at: dict[str, float] = {}
        self._reports = Reports()
        #: Those of whole executions, until these are settled.
        self._unsettled: dict[Fence, Report] = {}
        #: When reports may be written again, and when anything may, after an error.
        self._report_at = self._retry_at = 0.0
        self._locked_pauses = Backoff(_MIN_LOCKED_SECONDS, _MAX_LOCKED_SECONDS)
        #: The latest warning, which is not repeated.
        self._last_warning = ""
        #: When the next place for a probe may be asked for.
        self._take_at: dict[str, float] = {}
        #: For the one thread that uses a session before its call, and when the next may.
        self._asking = Lock()
        self._ask_at = 0.0

    # What the leader and housekeeping do.

    @property
    def has_reports(self) -> bool:
        return bool(self._reports)

    @property
    def is_due(self) -> bool:
        """Whether something must be written or read."""
        if not (self._reports or self.states.is_stale):
            return False
        now = time.monotonic()
        is_late = self.states.is_stale or now >= self._report_at
        return is_late and now >= self._retry_at

    @property
    def is_due_before_claim(self) -> bool:
        return self.is_due or (self.states.is_old and time.monotonic() >= self._retry_at)

    @property
    def look_again_at(self) -> float:
        """When states must be read that could not be read; else infinite."""
        return self._retry_at if self.states.is_stale else float("inf")

    def attend(self, connection: Connection) -> None:
        """Writes reports and reads the states. An error is logged, and a later call tries again;
        that of a lost session is raised."""
        try:
            if self._reports:
                self._write(connection)
            self._read(connection)
            self._last_warning = ""
        except psycopg.Error as error:
            self._retry_at = time.monotonic() + _AFTER_FAILURE
            if connection.closed:
                raise
            self.warn_once(error)

    def warn_once(self, error: psycopg.Error) -> None:
        why = reason(error)
        if why != self._last_warning:
            logger.warning("circuit breakers hold as they were seen last, for now: %s", why)
        self._last_warning = why

    def _read(self, connection: Connection) -> None:
        self.states.read(connection)
        for name, failed_at in list(self.states.failing.items()):
            succeeded_at = self._succeeded_at.get(name, float("-inf"))
            if succeeded_at > failed_at:
                self._reports.add(Report(name, Verdict.SUCCESS, succeeded_at))

    def _write(self, connection: Connection) -> None:
        reports = self._reports.take()
        try:
            text = as_json(reports, time.monotonic())
            locked = self._statements.value(connection, "report_calls", reports=text)
        except BaseException:
            self._reports.put_back(reports)
            raise
        if locked:
            self._reports.put_back(each for each in reports if each.breaker in locked)
            self._report_at = time.monotonic() + self._locked_pauses.pause()
        else:
            self._locked_pauses.reset()

    def give_back_all(self, connection: Connection) -> None:
        """Frees the places of probes whose ends could not be reported, at the end."""
        if any(each.probe_id is not None for each in self._reports.take()):
            values = {"claimer": self._statements.incarnation, "seconds": 0.0}
            self._statements.execute(connection, "give_back_probes", values)

    # Calls.

    def find(self, name: str) -> Breaker:
        """A PermanentCommandError if the registry does not declare it."""
        return self._registry.find_breaker(name)

    def admits(self, name: str, claim: Claim) -> bool:
        """Whether the execution of a claim of a bound type may start."""
        if name in self.states.open:
            return self.probes.has(name, claim)
        return not self._is_about_to_open(name)

    def _is_about_to_open(self, name: str) -> bool:
        """By failures of this process that are about to be written."""
        if not (self._unsettled or self._reports):
            return False
        now = time.monotonic()
        if now < self._retry_at:
            return False
        reports = [*list(self._unsettled.values()), *self._reports.all()]
        failures = [
            each
            for each in reports
            if each[:2] == (name, Verdict.FAILURE) and each.at > now - _WRITTEN_SECONDS
        ]
        return len(failures) >= self.states.room.get(name, MAX_FAILURES)

    def enter(self, name: str, claim: Claim, seconds: float) -> int | None:
        """Lets a call of a command through, which takes at most these seconds; returns the id of
        its probe, if it is one. Raises BreakerOpenError."""
        states = self.states
        is_due = partial(self._is_due_before_call, name)
        if is_due():
            self._ask(self.attend, is_due)
        if name not in states.open:
            return None
        if not states.may_probe(name):
            self.give_back(name, claim)  # Another probe has opened it again.
        probe_id = self.probes.take(name, claim)
        if probe_id is None and self._may_ask(name):
            take = partial(self._take_probe, name, claim, seconds)
            probe_id = self._ask(take, partial(states.may_probe, name))
        reading = states.open.get(name)
        if probe_id is None and reading is not None:
            raise BreakerOpenError(name, reading.deferral(time.monotonic()))
        return probe_id

    def ended(self, report: Report, execution: Claim | None) -> None:
        """Takes the end of a call that was let through. That of a whole execution counts once it is
        settled, as its command may have been canceled; most successes count for nothing anyway."""
        name, verdict, _, probe_id = report
        is_failing = name in self.states.failing
        matters = probe_id is not None or verdict is Verdict.FAILURE or is_failing
        if execution is None or not matters:
            self._count(report)
        else:
            self._unsettled[fence_of(execution)] = report

    def settled(self, claims: Iterable[Claim]) -> None:
        if self._unsettled:
            for claim in claims:
                report = self._unsettled.pop(fence_of(claim), None)
                if report is not None:
                    self._count(report)

    def not_settled(self, claim: Claim) -> None:
        """Its command was canceled, or its lease was lost."""
        report = self._unsettled.pop(fence_of(claim), None)
        if report is not None:
            self._count(report._replace(verdict=Verdict.NOTHING))

    def _count(self, report: Report) -> None:
        states, (name, verdict, at, probe_id) = self.states, report
        if verdict is Verdict.SUCCESS:
            self._succeeded_at[name] = max(at, self._succeeded_at.get(name, at))
        counts = name not in states.open and (
            verdict is Verdict.FAILURE or (verdict is Verdict.SUCCESS and name in states.failing)
        )
        if probe_id is None and not counts:
            return
        self._reports.add(report)
        if verdict is Verdict.FAILURE:
            states.failing.setdefault(name, at)

    def give_back(self, name: str, claim: Claim) -> None:
        """Frees the place of a claimed probe whose call was not made."""
        probe_id = self.probes.take(name, claim)
        if probe_id is not None:
            self._reports.add(Report(name, Verdict.NOTHING, time.monotonic(), probe_id))

    def _is_due_before_call(self, name: str) -> bool:
        if self.states.is_old:
            return time.monotonic() >= self._retry_at
        return name in self.states.failing and self.is_due

    def _may_ask(self, name: str) -> bool:
        now = time.monotonic()
        if not self.states.may_probe(name) or now < self._take_at.get(name, 0.0):
            return False
        self._take_at[name] = now + _REFUSED_SECONDS
        return True

    def _take_probe(
        self, name: str, claim: Claim, seconds: float, connection: Connection
    ) -> int | None:
        probe_id: int | None = self._statements.value(
            connection,
            "take_probe",
            name=name,
            claimer=self._statements.incarnation,
            domain=claim.domain,
            priority=claim.priority,
            id=claim.id,
            token=claim.token,
            seconds=seconds + self._statements.lease_seconds,
        )
        if probe_id is None:
            self._read(connection)  # It may be closed.
        return probe_id

    def _ask(self, work: Callable[[Connection], Found], is_due: Callable[[], bool]) -> Found | None:
        """None without a session, after another thread has done it, or if that takes long: what was
        read last holds. The thread's own session may have a handler's transaction, or be used by
        another thread of its handler."""
        if time.monotonic() < self._ask_at or not self._asking.acquire(timeout=_TURN_SECONDS):
            return None
        try:
            if not is_due():
                return None
            with self._session() as connection:
                return work(connection)
        except psycopg.Error:
            self._ask_at = time.monotonic() + _AFTER_FAILURE
            return None
        finally:
            self._asking.release()

    @contextmanager
    def _session(self) -> Iterator[Connection]:
        """One of the pool's headroom."""
        connection = self._source.get(_SESSION_SECONDS)
        try:
            yield connection
        finally:
            self._source.put(connection)
