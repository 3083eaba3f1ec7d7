"""The database work of a node that is not for one command: a thread that runs rounds, one after
the other on the same session, and one that listens. A fleet has a process for it; a standalone
worker runs it among its own threads.

    Listening     hears notifications, and wakes one worker for each
    _renew        renews the leases of all that the node's living processes have claimed, and
                  marks those that are lost
    RescueRound   releases what processes that have exited had claimed (a fleet's)
    StaleBoards   does so for supervisors that died without a successor (a fleet's)
    TimerRound    promotes due commands, and wakes a worker for leases that have ended
    ScheduleRound sends the commands of schedules at their ticks
    BridgeRound   moves messages of PGMQ's queues into commands, and commands into messages
    BridgeArming  asks senders for notifications while a bridge has no commands to move
    BatchRound    ends batches that are over, and goes on with cancellations
    BreakerRound  lets processes read the states of breakers while no session listens
    BreakerWatch  logs when those of the app open and close, and ends deferrals after that
    Arming        asks senders for notifications while a worker waits
    PublishRound  publishes the node's state for operators
    RollupRound   writes each minute what the node's commands came to

Each pass runs all rounds. A round that fails keeps no other one from running: all errors end in
one place, with one warning and one pause, and the next pass tries again. Another thread ends a
statement that does not return, by `abort_if_late`. If the process is killed, its successor does
the rest.
"""

import logging
import threading
from collections.abc import Callable, Sequence

import psycopg

from cmdbus.board.board import Node
from cmdbus.board.records import Phase
from cmdbus.board.slots import Slot
from cmdbus.board.views import ClaimView
from cmdbus.board.wake_pipe import wait_for
from cmdbus.clock import time
from cmdbus.database import dsn as dsns
from cmdbus.errors import CmdbusError, SchemaError
from cmdbus.exits import cannot_start_thread
from cmdbus.timeouts import Timeouts
from cmdbus.worker.claims.claim import ClaimRef, Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.connections import ThreadConnection
from cmdbus.worker.claims.pools import session_settings
from cmdbus.worker.claims.rejections import reason
from cmdbus.worker.claims.renewal import Renewal
from cmdbus.worker.steward.batch_round import BatchRound
from cmdbus.worker.steward.breaker_round import BreakerRound
from cmdbus.worker.steward.bridge_round import BridgeRound
from cmdbus.worker.steward.listening import Listening
from cmdbus.worker.steward.rollup_round import RollupRound
from cmdbus.worker.steward.schedule_round import ScheduleRound
from cmdbus.worker.steward.timer_round import TimerRound
from cmdbus.worker.waiting.arming import Arming
from cmdbus.worker.waiting.bridge_arming import BridgeArming
from cmdbus.worker.waiting.timers import Timers

logger = logging.getLogger(__name__)

#: Seconds after which a round is late, and its session is cut off; its statements are short.
ROUND_SECONDS = 10.0
#: Seconds for one statement that moves one row: 16 MiB at 0.3 MB/s.
_ONE_ROW_SECONDS = 60.0
#: Seconds for any other statement of the steward.
STATEMENT_SECONDS = 5.0
#: Seconds from a failed pass to the next one.
_RETRY_SECONDS = 0.5
#: Seconds until a failed renewal is tried again, as leases go on ending; other rounds run
#: meanwhile.
_RETRY_RENEWAL_SECONDS = 3.0
#: Seconds between two warnings while passes keep failing.
_WARNING_SECONDS = 30.0

#: Does its due work, and returns the seconds until the next; infinity leaves that to a byte in the
#: steward's pipe. It is called more often than that: in each pass. One that may take longer than
#: ROUND_SECONDS calls `allow`.
Round = Callable[[Connection], float]


class Steward:
    """`slots` show the two threads on the board. `register` is repeated until it succeeds, before
    anything else. The claims' types are those of the node."""

    def __init__(
        self,
        node: Node,
        statements: ClaimStatements,
        connect: Callable[[], Connection],
        *,
        domains: Sequence[str],
        poll_interval: float,
        slots: tuple[Slot, Slot],
        listen: bool = True,
        register: Callable[[Connection], None] = lambda _: None,
    ) -> None:
        self._node, self._board, self._pipe = node, node.board, node.steward_pipe
        self._statements = statements
        self._register = register
        self._session = ThreadConnection(connect)
        self._renewal = Renewal(statements)
        #: Monotonic time of the next renewal.
        self._renew_at = 0.0
        self._slot, listening_slot = slots
        self.listening = Listening(
            node, statements, connect, listening_slot, enabled=listen, domains=domains
        )
        reread = self.listening.due_earlier.set
        self._arming = Arming(statements, node.board, node.worker_pipe, domains, reread)
        timers = Timers(statements, domains, statements.types, timeout=self._allow_one_row)
        self.timers = TimerRound(
            node, statements, timers, self._arming, self.listening, poll_interval
        )
        self._schedules = ScheduleRound(statements, timers)
        self.batches = BatchRound(statements)
        self._bridges = BridgeRound(
            *(statements, timers, self._allow_one_row, self.batches.hurry),
            self.listening.bridges,
        )
        self._bridge_arming = BridgeArming(statements)
        self._breakers = BreakerRound(self.listening, self.timers)
        self.rollups = RollupRound(node, statements)
        self._rounds: list[Round] = []
        self._leave: Sequence[Callable[[Connection], None]] = ()
        #: The monotonic time after which the current round is late; infinite between rounds.
        self.late_at = float("inf")
        #: The time since which no session can be opened; None while one is open.
        self.away_since: float | None = None
        #: The error that ended the thread before `stop`.
        self.ended_by: BaseException | None = None
        self._warned_at = float("-inf")
        self._stopping = threading.Event()
        self.threads = [threading.Thread(target=self._run, name="steward", daemon=True)]
        self.threads.append(self.listening.thread)

    def start(
        self,
        others: Sequence[Round] = (),
        leave: Sequence[Callable[[Connection], None]] = (),
    ) -> None:
        """`others` run in addition to the rounds that every node needs, `leave` at the stop."""
        self._leave = leave
        # Leases before the others: claims of the dead can wait longer than leases of the living.
        rounds: list[Round] = [self.timers.run, self._schedules.run, self._bridges.run]
        rounds += [self._arm_bridges, self.batches.run, self._breakers.run, self._arm]
        rounds.append(self.rollups.run)
        self._rounds = [self.listening.run_round, self._renew, *others, *rounds]
        self._board.disarm()
        self.threads[0].start()

    def stop(self, seconds: float = ROUND_SECONDS) -> None:
        self.listening.stop()
        self._stopping.set()
        self._pipe.put()
        self.threads[0].join(seconds)
        if self.threads[0].is_alive():
            self._session.abort_io()
            self.threads[0].join(seconds)
        self._board.listening = False

    @property
    def fault(self) -> str:
        """Why its process needs another steward; empty if it does not."""
        ended = [t.name for t in self.threads if t.ident is not None and not t.is_alive()]
        return f"the thread {ended[0]} has ended" if ended else ""

    def set_poll_interval(self, seconds: float) -> None:
        self.timers.poll_interval = seconds
        self.listening.due_earlier.set()
        self._pipe.put()

    def abort_if_late(self, now: float) -> None:
        """Called by another thread: frees this one from a server that does not answer."""
        if now > self.late_at:
            self._session.abort_io()

    def allow(self, seconds: float) -> None:
        """Gives the next statements of a round more time than others have."""
        self.late_at = time.monotonic() + seconds

    def _run(self) -> None:
        try:
            self._slot.occupy(-1, time.monotonic_ns())
            while not self._stopping.is_set() and self._attempt(self._open) is None:
                self._stopping.wait(_RETRY_SECONDS)
            while not self._stopping.is_set():
                self._slot.enter(Phase.LEADING, time.monotonic_ns(), 0)
                pause = self._pass()
                self._slot.enter(Phase.RESTING, time.monotonic_ns(), 0)
                wait_for([self._pipe], pause)
                self._pipe.drain()
            if not self._session.lost():
                self._attempt(self._close)
        except BaseException as error:
            self.ended_by = error
        finally:
            self._session.close()

    def _pass(self) -> float:
        """Returns the seconds until the next one."""
        pauses = []
        for round_ in self._rounds:
            pauses.append(self._attempt(round_))
            if pauses[-1] is None and self._session.lost():
                break
        # Processes that see a listening steward do not poll: it must also arm, and read timers.
        self._board.listening = self.listening.is_on and None not in pauses
        return min(_RETRY_SECONDS if pause is None else pause for pause in pauses)

    def _attempt(self, round_: Round) -> float | None:
        """None if it failed: the next pass tries again, on a new session if this one is lost."""
        self.allow(ROUND_SECONDS)
        try:
            pause = round_(self._session.connection())
            self._end_outage()
            return pause
        except SchemaError:
            raise
        except (psycopg.Error, CmdbusError) as error:
            self._warn_once(reason(error))
            self._session.discard_if_read_only(error)
        except OSError as error:  # no descriptor is left, or no memory
            self._warn_once(reason(error))
            self._session.drop()
        except Exception as error:
            if cannot_start_thread(error):
                raise
            logger.exception("the steward tries again")
            self._session.drop()
        finally:
            self.late_at = float("inf")
        if self._session.lost():
            self.away_since = self.away_since or time.monotonic()
            self._arming.forget()
            self._bridge_arming.forget()
        return None

    def _end_outage(self) -> None:
        if self.away_since is not None:
            seconds = time.monotonic() - self.away_since
            self.away_since = None
            logger.info("the database is back after %.1f s", seconds)

    def _warn_once(self, why: str) -> None:
        """At most one warning in a while, as an outage may last."""
        now = time.monotonic()
        if not self._stopping.is_set() and now >= self._warned_at + _WARNING_SECONDS:
            self._warned_at = now
            logger.warning("the steward cannot work and keeps trying: %s", why)

    # Rounds of its own.

    def _open(self, connection: Connection) -> float:
        self._register(connection)
        self._renewal.renew(connection, {})  # It may be armed before it has anything to renew.
        self.listening.start()
        self._node.worker_pipe.put()  # A dead process may have taken a byte.
        return 0.0

    def _close(self, connection: Connection) -> float:
        self._statements.value(connection, "leave", node=self._statements.incarnation)
        self._bridge_arming.lower(connection)
        for leave in (self.rollups.leave, *self._leave):
            leave(connection)
        return 0.0

    def _renew(self, connection: Connection) -> float:
        now = time.monotonic()
        if now < self._renew_at:
            return self._renew_at - now
        renewal_seconds = self._statements.renewal_seconds
        self._renew_at = now + min(renewal_seconds, _RETRY_RENEWAL_SECONDS)
        view = self._board.snapshot()
        claims: dict[int, Sequence[ClaimRef]] = {}
        for incarnation, seat in view.claimers.items():
            claims[incarnation] = seat.claims
            if not seat.complete:  # There are more than the board can show.
                claims[incarnation] = self._statements.keys_of(connection, incarnation)
        # A node that is armed shows by that what it handles.
        if any(claims.values()) or not (view.any_parked and self.listening.is_on):
            lost = self._renewal.renew(connection, claims)
            self._board.mark_lost(claim for claim in lost if isinstance(claim, ClaimView))
        self._renew_at = now + renewal_seconds
        self._board.renewed = int(now * 1e9)
        return renewal_seconds

    def _arm(self, connection: Connection) -> float:
        return self._arming.update(
            connection,
            parked=self._board.snapshot(claims=False).any_parked,
            session=self.listening.session,
            reads_at=self.timers.due_at,
            now=time.monotonic(),
        )

    def _arm_bridges(self, connection: Connection) -> float:
        domains = self._bridges.idle_domains
        pause, look = self._bridge_arming.update(
            connection, domains, session=self.listening.session, now=time.monotonic()
        )
        if look:
            self.listening.bridges.hear(domains)
            return 0.0
        return pause

    def _allow_one_row(self) -> float:
        self.allow(_ONE_ROW_SECONDS + ROUND_SECONDS)
        return _ONE_ROW_SECONDS


def connect(
    parts: dsns.Parts,
    statements: ClaimStatements,
    timeouts: Timeouts,
    statement_seconds: float = STATEMENT_SECONDS,
) -> Connection:
    settings = {**session_settings(timeouts), "statement_timeout": f"{statement_seconds:g}s"}
    return dsns.connect(
        dsns.complete(parts, application_name=statements.application_name, settings=settings)
    )
