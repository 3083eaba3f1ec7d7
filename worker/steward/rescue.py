"""Releases exactly what a dead worker process has left, without waiting for its leases, and
charges only the commands that its exit is attributed to.

Its sessions are ended and waited for first: the backend of a killed client still executes what
is in its socket, and would claim once more for the dead process.
"""

import logging
import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psycopg

from cmdbus import instrument_hooks, instruments
from cmdbus.backoff import Backoff
from cmdbus.board.board import Node
from cmdbus.board.counters import OutcomeLabel
from cmdbus.board.records import ExitRecord, Role
from cmdbus.board.stack_files import read_stacks
from cmdbus.board.views import SeatView
from cmdbus.clock import time
from cmdbus.failpoints import AFTER_RESCUE, IN_RESCUE, failpoint
from cmdbus.registry import HandlerRegistry
from cmdbus.retry import SUSPECT_LOSSES, RetryPolicy
from cmdbus.timeouts import RESCUE_SECONDS
from cmdbus.worker.claims.claim import Claim, Connection, Finished, fence_of
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.ended_executions import settled_executions
from cmdbus.worker.claims.ends import log_end, log_lost
from cmdbus.worker.claims.halving import in_halves
from cmdbus.worker.claims.outcomes import failed
from cmdbus.worker.claims.rejections import Cause, cause_of, reason
from cmdbus.worker.claims.releasing import warn_of_release
from cmdbus.worker.claims.sessions import end_sessions
from cmdbus.worker.claims.settlement import settle_one
from cmdbus.worker.claims.settlement_log import SettlementLog
from cmdbus.worker.steward.attribution import Attribution, attribute, begun
from cmdbus.worker.steward.exits import Exits

logger = logging.getLogger(__name__)

#: Seconds between two attempts for rows that other sessions have locked.
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.01, 0.5
#: Seconds until a breaker lets a call through after one that its process did not survive.
_PROBE_PAUSE_SECONDS = 5.0
#: Seconds to the next round while some of the dead are left.
_RETRY_SECONDS = 0.5


@dataclass(slots=True)
class Rescued:
    """The claims of the dead, by what was done with them."""

    #: Not started when it died: claimable again, as if nothing had been.
    released: list[Claim] = field(default_factory=list)
    #: Started and not settled: claimable again, and a loss is counted.
    lost: list[Claim] = field(default_factory=list)
    #: The exit is attributed to them: their attempt has failed.
    charged: list[Claim] = field(default_factory=list)
    #: Other sessions had locked their rows until the time was over: the ends of their leases, or
    #: another rescue, release them.
    left: list[Claim] = field(default_factory=list)
    #: How the executions among them ended, as the counters name it.
    ends: list[tuple[Claim, OutcomeLabel]] = field(default_factory=list)
    #: False if a session of the dead process did not end in time: then nothing was released.
    sessions_ended: bool = True

    def __str__(self) -> str:
        counts = {
            "released": self.released,
            "run again": self.lost,
            "charged": self.charged,
            "locked by other sessions": self.left,
        }
        texts = [f"{len(claims)} {what}" for what, claims in counts.items() if claims]
        return ", ".join(texts) or "none left"


def rescue(
    connection: Connection,
    statements: ClaimStatements,
    registry: HandlerRegistry,
    attribution: Attribution,
    log: SettlementLog,
    within: float = RESCUE_SECONDS,
) -> Rescued:
    """Bounded by `within` seconds, and may be repeated. The connection's own limits apply: a
    charged command's settlement waits for its row as long as lock_timeout says. The ends of
    executions are left to `log`, also if an error ends this call."""
    deadline = time.monotonic() + within
    sessions = [
        (slot.backend_pid, slot.backend_start)
        for slot in attribution.seat.slots
        if slot.backend_pid and slot.backend_start
    ]
    dead = attribution.seat.incarnation
    assert dead is not None, "a process without one has claimed nothing"
    if not end_sessions(statements, connection, sessions, incarnation=dead, within=within / 2):
        return Rescued(sessions_ended=False)
    failpoint(IN_RESCUE)
    if registry.breakers():
        values = {"claimer": dead, "seconds": _PROBE_PAUSE_SECONDS}
        statements.execute(connection, "give_back_probes", values)
    rescuer = _Rescuer(connection, statements.of(dead), registry, attribution, log)
    rescued, backoff = rescuer.rescued, Backoff(_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
    rescued.left = rescuer.shown() or rescuer.claimed()
    while rescued.left and time.monotonic() < deadline:
        if not rescuer.hand_back(rescued.left):
            time.sleep(backoff.pause())
        rescued.left = rescuer.claimed()
    failpoint(AFTER_RESCUE)
    return rescued


@dataclass(slots=True)
class _Rescuer:
    connection: Connection
    #: The statements for the claims of the dead.
    statements: ClaimStatements
    registry: HandlerRegistry
    attribution: Attribution
    log: SettlementLog
    rescued: Rescued = field(default_factory=Rescued)
    #: Claims that could not be released.
    rejected: set[Claim] = field(default_factory=set)
    #: There are too many rows to find claims that the seat does not show.
    too_many: bool = False

    def claimed(self) -> list[Claim]:
        """Also claims that the seat does not show, unless reading all rows takes too long."""
        if not self.too_many:
            try:
                return self.statements.claimed(self.connection)
            except psycopg.errors.QueryCanceled as error:
                self.too_many = True
                logger.warning(
                    "cannot find more claims of pid %s (%s): their leases must end first",
                    self.attribution.seat.pid,
                    reason(error),
                )
        return self.shown()

    def shown(self) -> list[Claim]:
        seat = self.attribution.seat
        shown = [key.command_id for key in seat.claims]
        shown += [slot.command.command_id for slot in seat.slots if slot.command]
        return self.statements.claimed(self.connection, shown) if shown else []

    def hand_back(self, claims: list[Claim]) -> bool:
        """False if other sessions have locked some of the rows."""
        causes = [claim for claim in claims if fence_of(claim) in self.attribution.causes]
        others = [claim for claim in claims if fence_of(claim) not in self.attribution.causes]
        executed = begun(self.attribution.seat)
        lost = {claim for claim in others if fence_of(claim) in executed}
        given = self._release(others, lost)
        charged = [claim for claim in causes if self._charge(claim)]
        self.rescued.released += [claim for claim in others if claim in given - lost]
        self.rescued.lost += lost & given
        self.rescued.ends += [(claim, OutcomeLabel.LOST) for claim in lost & given]
        for claim in lost & given:
            self.log.add(partial(log_lost, claim))
        self.rescued.charged += charged
        return len(given) + len(charged) == len(claims)

    def _release(self, claims: list[Claim], lost: set[Claim]) -> set[Claim]:
        def work(some: Sequence[Claim]) -> list[Claim]:
            losses = [self.attribution.losses(claim) if claim in lost else None for claim in some]
            return self.statements.release(
                self.connection, some, losses, self.attribution.why, self.attribution.reason
            )

        return set(in_halves(work, claims, self._warn))

    def _warn(self, claim: Claim, error: Exception) -> None:
        """Once for each."""
        if claim not in self.rejected:
            warn_of_release(claim, error)
        self.rejected.add(claim)

    def _charge(self, claim: Claim) -> bool:
        handler = self.registry.find(claim.domain, claim.type)
        policy = handler.policy if handler else RetryPolicy()
        max_attempts = claim.max_attempts or policy.max_attempts
        outcome = failed(
            self.attribution.causes[fence_of(claim)],
            "",
            attempt=claim.attempts + 1,
            max_attempts=max_attempts,
            policy=policy,
            retry_after=None,
            rand=random.random(),
        )
        finished = Finished(claim, outcome, max_attempts, time.monotonic())
        try:
            settled, lost = settle_one(self.statements, self.connection, finished)
        except Exception as error:
            if cause_of(error) is Cause.ELSEWHERE:
                raise
            return False
        if not lost:
            self.rescued.ends.append((claim, OutcomeLabel[settled.outcome.kind]))
            self.log.add(partial(log_end, settled))
            if instruments.installed:
                ended = settled_executions([settled])
                self.log.add(partial(instrument_hooks.settled, ended))
        return not lost


@dataclass(frozen=True, slots=True)
class RescueRound:
    """The steward's round for the dead processes of its node's board. It begins none after
    RESCUE_SECONDS: sessions that do not end must not keep the steward from its other rounds.
    """

    node: Node
    statements: ClaimStatements
    registry: HandlerRegistry
    #: The directory in which processes write their stacks, in files named by their index.
    stacks: Path
    #: Called after each.
    rescued: Callable[[], None] = lambda: None
    #: The exits that are shown to operators.
    exits: Exits = field(default_factory=Exits)
    #: To be written by another thread: an instrument that hangs must not keep this one from the
    #: steward's other rounds.
    log: SettlementLog = field(default_factory=SettlementLog)
    #: Monotonic times of the latest tries by index, of those that have not succeeded.
    _tried: dict[int, float] = field(default_factory=dict)

    def run(self, connection: Connection) -> float:
        view = self.node.board.snapshot(claims=False)
        dead = [seat.index for seat in view.seats if seat.role is Role.DEAD and not seat.rescued]
        dead.sort(key=lambda index: self._tried.get(index, 0.0))
        until = time.monotonic() + RESCUE_SECONDS
        rescued, failures = 0, []
        for index in dead:
            if time.monotonic() >= until:
                break
            self._tried[index] = time.monotonic()
            try:
                rescued += self._rescue(connection, self.node.board.seat_view(index))
            except Exception as error:  # It keeps none of the others from being rescued.
                if connection.closed:
                    raise
                failures.append(error)
        if dead or view.suspects:
            self.node.board.suspects = self.statements.value(
                connection,
                "suspect_waits",
                types=self.statements.types,
                losses=SUSPECT_LOSSES,
                priorities=self.statements.band,
            )
        if failures:
            raise failures[0]
        return float("inf") if rescued == len(dead) else _RETRY_SECONDS

    def _rescue(self, connection: Connection, seat: SeatView) -> bool:
        """False if a session has not ended in time."""
        rescued = self.release(connection, seat)
        if not rescued.sessions_ended:
            return False
        del self._tried[seat.index]
        dead = self.node.board.seat(seat.index)
        # Executions that the exit has ended: no other process writes to these counters now.
        counters = dead.slot(0).counters
        for claim, end in rescued.ends:
            counters.ended(dead.command_type(claim.domain, claim.type).index, end)
        dead.rescued = seat.generation
        self.node.worker_pipe.put()  # The dead process may have taken a byte.
        self.rescued()
        return True

    def release(self, connection: Connection, seat: SeatView) -> Rescued:
        """Of a seat of any board; to be repeated until the sessions of its process have ended."""
        exit_record = seat.exit or _orphan_exit(seat)
        attribution = attribute(seat, exit_record, read_stacks(self.stacks / str(seat.index)))
        rescued = Rescued()
        if seat.incarnation is not None:  # It may have claimed.
            rescued = rescue(connection, self.statements, self.registry, attribution, self.log)
        if rescued.sessions_ended:
            charged = {fence_of(claim) for claim in rescued.charged}
            self.exits.add(seat, exit_record, attribution.stack, charged, time.monotonic())
        if rescued.sessions_ended and seat.incarnation is not None:
            name = "quarantine" if exit_record.quarantined else f"worker {seat.number}"
            message = "the commands of %s, pid %s: %s"
            self.log.add(partial(logger.info, message, name, seat.pid, str(rescued)))
        return rescued


def _orphan_exit(seat: SeatView) -> ExitRecord:
    """The exit of a process if its supervisor died before it could record one."""
    pid = seat.pid or 0
    return ExitRecord(generation=seat.generation, pid=pid, signal=signal.SIGKILL, orphaned=True)
