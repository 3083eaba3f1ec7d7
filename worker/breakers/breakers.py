"""What a worker process knows of its registry's breakers, and what it reports of its calls.

The states are in the database. A change of one raises a number on the board; while that is not the
number that was read, the leader, housekeeping, and each thread before its next guarded call read
the states again. While the database is away, what was read last holds.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import NamedTuple

import psycopg

from cmdbus.backoff import Backoff
from cmdbus.board.board import Board
from cmdbus.breakers import MAX_FAILURES, Breaker, BreakerState, Verdict, deferral
from cmdbus.clock import time
from cmdbus.errors import BreakerOpenError
from cmdbus.registry import HandlerRegistry
from cmdbus.worker.breakers.reports import Report, Reports, as_json
from cmdbus.worker.claims.claim import Claim, Connection, Fence, fence_of
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.connections import PooledConnections

#: Seconds until reports are written that found their breaker locked by another session.
_MIN_LOCKED_SECONDS, _MAX_LOCKED_SECONDS = 0.002, 0.1
#: Seconds until this process asks for a probe's place again after it got none.
_REFUSED_SECONDS = 0.05
#: Seconds to wait for a session of the pool's headroom.
_SESSION_SECONDS = 2.0

#: Yields a session for a short statement.
OpenSession = Callable[[], AbstractContextManager[Connection]]


class Seen(NamedTuple):
    """The state of a breaker as it was read; times are monotonic."""

    state: BreakerState
    #: Seconds.
    cooldown: float
    #: From when on probes are let through; infinite while an operator keeps it open.
    retry_at: float
    changed_at: float
    #: Of the first failure on record.
    failed_at: float | None
    #: Further failures that open it.
    room: int

    @classmethod
    def of(cls, row: Sequence[object], now: float) -> "Seen":
        """From a row of read_breaker_states, without its name."""
        state, cooldown, retry_in, changed_ago, failed_ago, room = row
        assert isinstance(cooldown, float) and isinstance(changed_ago, float)
        return cls(
            BreakerState(str(state)),
            cooldown,
            now + retry_in if isinstance(retry_in, float) else float("inf"),
            now - changed_ago,
            now - failed_ago if isinstance(failed_ago, float) else None,
            int(str(room)),
        )

    def deferral(self, now: float) -> float:
        retry_in = None if self.retry_at == float("inf") else self.retry_at - now
        return deferral(self.cooldown, retry_in, now - self.changed_at, random.random())


class Breakers:
    """Shared by all threads; what they read is replaced as a whole."""

    def __init__(
        self,
        statements: ClaimStatements,
        registry: HandlerRegistry,
        board: Board,
        source: PooledConnections,
    ) -> None:
        self._statements, self._registry = statements, registry
        self._board, self._source = board, source
        declared = registry.breakers()
        self._names = [each.name for each in declared]
        handled = set(statements.types)
        #: The types of this process that are bound to each breaker, as "domain type".
        self.types = {
            each.name: types
            for each in declared
            if (types := [name for name in each.covers if name in handled])
        }
        #: The number on the board for which the states were read.
        self._number = -1
        #: Those that are not CLOSED.
        self.open: dict[str, Seen] = {}
        #: The types that are bound to these: they are not claimed.
        self.kept_types: frozenset[str] = frozenset()
        #: Failures that each still lets through.
        self._room: dict[str, int] = {}
        #: Those that have failures on record, and the time of the first one.
        self._failing: dict[str, float] = {}
        #: The latest success of each.
        self._succeeded_at: dict[str, float] = {}
        self._reports = Reports()
        #: Those of whole executions, until these are settled.
        self._unsettled: dict[Fence, Report] = {}
        self._report_at = 0.0
        self._locked_pauses = Backoff(_MIN_LOCKED_SECONDS, _MAX_LOCKED_SECONDS)
        #: Claims that were made as probes, and their numbers.
        self._probes: dict[tuple[str, Fence], int] = {}
        #: When the next place for a probe may be asked for.
        self._take_at: dict[str, float] = {}

    # The states.

    @property
    def is_stale(self) -> bool:
        return bool(self._names) and self._board.breaker_changes != self._number

    @property
    def has_reports(self) -> bool:
        return bool(self._reports)

    @property
    def is_due(self) -> bool:
        """Whether something must be written or read."""
        reports_due = bool(self._reports) and time.monotonic() >= self._report_at
        return reports_due or self.is_stale

    def attend(self, connection: Connection) -> None:
        """Writes reports and reads the states. After an error, the next call tries again."""
        if self._reports:
            self._write(connection)
            self.read(connection)
        elif self.is_stale:
            self.read(connection)

    def read(self, connection: Connection) -> None:
        # Before the states: one that changes meanwhile is read again.
        number = self._board.breaker_changes
        rows = self._statements.rows(connection, "read_breaker_states", names=self._names)
        now = time.monotonic()
        seen = {name: Seen.of(row, now) for name, *row in rows}
        if number < self._number:
            return  # Another thread has read later ones.
        self.open = {n: s for n, s in seen.items() if s.state is not BreakerState.CLOSED}
        kept = frozenset(name for each in self.open for name in self.types.get(each, ()))
        if kept != self.kept_types:
            self.kept_types = kept
        self._failing = {n: s.failed_at for n, s in seen.items() if s.failed_at is not None}
        self._room = {n: s.room for n, s in seen.items()}
        self._number = number
        for name, failed_at in self._failing.items():
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

    # Calls.

    def find(self, name: str) -> Breaker:
        """A PermanentCommandError if the registry does not declare it."""
        return self._registry.find_breaker(name)

    def admits(self, name: str, claim: Claim) -> bool:
        """Whether the execution of a claim of a bound type may start."""
        if name in self.open:
            return (name, fence_of(claim)) in self._probes
        return not self._is_about_to_open(name)

    def _is_about_to_open(self, name: str) -> bool:
        """By failures of this process that are not written yet."""
        if not (self._unsettled or self._reports):
            return False
        reports = [*list(self._unsettled.values()), *self._reports.all()]
        failures = [each.at for each in reports if each[:2] == (name, Verdict.FAILURE)]
        return len(failures) >= self._room.get(name, MAX_FAILURES)

    def enter(
        self, name: str, claim: Claim, seconds: float, open_session: OpenSession
    ) -> int | None:
        """Lets a call of a command through, which takes at most these seconds; returns the number
        of its probe, if it is one. Raises BreakerOpenError."""
        if self.is_due and (self.is_stale or name in self._failing):
            with suppress(psycopg.Error), open_session() as connection:
                self.attend(connection)
        if name not in self.open:
            return None
        if not self._may_probe(name):
            self.give_back(name, claim)  # Another probe has opened it again.
        probe = self._probes.pop((name, fence_of(claim)), None)
        if probe is None and self._may_ask(name):
            with suppress(psycopg.Error), open_session() as connection:
                probe = self._take_probe(connection, name, claim, seconds)
        seen = self.open.get(name)
        if probe is None and seen is not None:
            raise BreakerOpenError(name, seen.deferral(time.monotonic()))
        return probe

    def ended(self, report: Report, execution: Claim | None) -> None:
        """Takes the end of a call that was let through. That of a whole execution counts once it is
        settled, as its command may have been canceled; most successes count for nothing anyway."""
        name, verdict, _, probe = report
        matters = probe is not None or verdict is Verdict.FAILURE or name in self._failing
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
        name, verdict, at, probe = report
        if verdict is Verdict.SUCCESS:
            self._succeeded_at[name] = max(at, self._succeeded_at.get(name, at))
        counts = name not in self.open and (
            verdict is Verdict.FAILURE or (verdict is Verdict.SUCCESS and name in self._failing)
        )
        if probe is None and not counts:
            return
        self._reports.add(report)
        if verdict is Verdict.FAILURE:
            self._failing.setdefault(name, at)

    def _may_ask(self, name: str) -> bool:
        now = time.monotonic()
        if not self._may_probe(name) or now < self._take_at.get(name, 0.0):
            return False
        self._take_at[name] = now + _REFUSED_SECONDS
        return True

    def _may_probe(self, name: str) -> bool:
        seen = self.open.get(name)
        return seen is not None and time.monotonic() >= seen.retry_at

    def _take_probe(
        self, connection: Connection, name: str, claim: Claim, seconds: float
    ) -> int | None:
        probe: int | None = self._statements.value(
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
        if probe is None:
            self.read(connection)  # It may be closed.
        return probe

    @contextmanager
    def session(self) -> Iterator[Connection]:
        """One of the pool's headroom."""
        connection = self._source.get(_SESSION_SECONDS)
        try:
            yield connection
        finally:
            self._source.put(connection)

    # Claims that are probes.

    def claimed(self, name: str, claims: Sequence[Claim], probes: Sequence[int]) -> None:
        for claim, probe in zip(claims, probes, strict=True):
            self._probes[name, fence_of(claim)] = probe

    def give_back(self, name: str, claim: Claim) -> None:
        """Frees its place, if its call was not made."""
        probe = self._probes.pop((name, fence_of(claim)), None)
        if probe is not None:
            self._reports.add(Report(name, Verdict.NOTHING, time.monotonic(), probe))

    def forget_all_but(self, known: "set[Fence]") -> None:
        """Forgets the probes of claims that were released."""
        self._probes = {key: n for key, n in self._probes.items() if key[1] in known}
