"""The node's one process for everything that needs the database but runs no commands.

    _listen    a thread: hears notifications, and wakes one worker for each
    _serve     a thread: rounds of what is owed to the database, each when it is due
    _watch     the main thread: beats, cuts the connection of a round that is late, and exits
               when one of the process's threads has ended

A round looks at the board and then hands back what the dead held, renews the leases of the
living, moves what is due, and arms or disarms. Whatever it is in the middle of when it is
killed, its successor does again.
"""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar

import psycopg

from cmdbus.board.board import Node
from cmdbus.board.counters import Counter, OutcomeLabel
from cmdbus.board.health import HealthReport
from cmdbus.board.records import ExitRecord, Phase, Role
from cmdbus.board.stack_files import read_stacks
from cmdbus.board.views import BoardView, SeatView
from cmdbus.board.wake_pipe import WakePipe, wait_for
from cmdbus.clock import time
from cmdbus.database import dsn as dsns
from cmdbus.database import schema as schemas
from cmdbus.database import statements
from cmdbus.errors import CmdbusError, SchemaError
from cmdbus.exits import Exit, cannot_start_thread
from cmdbus.registry import HandlerRegistry
from cmdbus.settings import Settings
from cmdbus.timeouts import RESCUE_SECONDS
from cmdbus.worker.claims.claim import Claim, ClaimRef, Connection
from cmdbus.worker.claims.claims import Claims
from cmdbus.worker.claims.connections import ThreadConnection, Unpooled, session_settings
from cmdbus.worker.claims.rejections import reason
from cmdbus.worker.claims.renewal import Renewal
from cmdbus.worker.steward.attribution import attribute
from cmdbus.worker.steward.maintenance import Maintenance
from cmdbus.worker.steward.rescue import Rescued, rescue
from cmdbus.worker.steward.stale_boards import KILLED, StaleBoards
from cmdbus.worker.waiting.arming import Arming
from cmdbus.worker.waiting.listener import Listener
from cmdbus.worker.waiting.timers import Timers, seconds_to_look

logger = logging.getLogger(__name__)

_LIVING = (Role.WORKER, Role.QUARANTINE, Role.STOPPING)
#: One statement of the steward is short; and a round is late after so long.
_STATEMENT_SECONDS = 5.0
_ROUND_SECONDS = 10.0
_MAINTENANCE_SECONDS = 60.0
#: Timeout of a statement that moves one row: 16 MiB at 0.3 MB/s.
_ONE_ROW_SECONDS = 60.0
#: Handing back what whole fleets have left.
_STALE_BOARDS_SECONDS = 60.0
#: Where it shows what its threads do.
_SERVING, _LISTENING = 0, 1
_RETRY_SECONDS = 0.5
#: Seconds until a renewal that has failed is tried again; other duties come in between.
_RENEW_AGAIN_SECONDS = 3.0
_COMPLAIN_SECONDS = 30.0
#: Of the server's queue of notifications.
_MAX_QUEUE_USAGE = 0.5
Value = TypeVar("Value")


class Steward:
    def __init__(
        self,
        settings: Settings,
        node: Node,
        registry: HandlerRegistry,
        stacks: Path,
        beside: Sequence[threading.Thread] = (),
    ) -> None:
        """`beside`: further threads of the process, without which it is replaced, too."""
        self._settings = settings
        self._node = node
        self._board = node.board
        self._worker_pipe = node.worker_pipe
        self._registry = registry
        #: Where the node's processes write their stacks, by place.
        self._stacks = stacks
        domains = [d for d in registry.domains if not settings.domains or d in settings.domains]
        self._types = types = [f"{h.domain} {h.type}" for h in registry if h.domain in domains]
        self._claims = Claims(settings.schema, settings.timeouts.lease)
        self._claims.types = types
        self._renewal = Renewal(self._claims)
        self._arming = Arming(
            self._claims,
            node.board,
            node.worker_pipe,
            domains,
            look=lambda: self._due_earlier.set(),
        )
        self._timers = Timers(self._claims, domains, types, timeout=self._be_patient)
        self._listener = Listener(
            self._connect, self._claims, began=self._began, heard=self._heard, ended=self._ended
        )
        self._session = ThreadConnection(Unpooled(self._connect))
        self._stale_boards = StaleBoards(stacks.parent, settings.name, self._hand_back)
        self._maintenance = Maintenance(
            self._claims, lambda: self._connect(statement=_MAINTENANCE_SECONDS), domains
        )
        #: Cleared by a round: something is due earlier than was known, or may be.
        self._due_earlier = threading.Event()
        #: The same: some commands came that another node may claim.
        self._heard_ready = threading.Event()
        #: Cleared by a round: the listening session has ended, so this one may have, too.
        self._doubtful = threading.Event()
        self._listening = False
        #: The server's queue of notifications is.
        self._full = False
        #: When the timers are read again, and when a worker is woken because the earliest of them
        #: is due, in monotonic time.
        self._timers_at = self._due_at = 0.0
        #: Whether nobody else wakes a worker then: the promotion of due commands notifies.
        self._wakes = True
        #: The latest look was for the ends of leases, too.
        self._leases_known = False
        self._renew_at = 0.0
        #: When what is going on with the database is late; infinite in between.
        self._late_at = float("inf")
        self._warned_at = float("-inf")
        #: Since when what is tried finds no database.
        self._away_since: float | None = None
        #: The last thing that was tried has not succeeded.
        self._failed = False
        self._stopping = threading.Event()
        self._orders: SimpleQueue[float] = SimpleQueue()
        self._wake_event = WakePipe(1)
        self._serving = threading.Thread(target=self._serve, name="steward", daemon=True)
        threads = self._serving, self._listener.thread, self._maintenance.thread
        self._threads = [*threads, *beside]

    def request_stop(self, by: float) -> None:
        """For a signal handler."""
        self._orders.put(by)

    def run(self) -> Exit:
        statements.load()
        self._board.set_listening(False)
        self._board.set_armed(0)
        self._serving.start()
        self._watch()
        self._stopping.set()
        self._wake_event.put()
        self._maintenance.stop()
        if self._settings.listen:
            self._listener.stop()
        self._serving.join(_ROUND_SECONDS)
        if not self._serving.is_alive():
            self._wake_event.close()
        self._board.set_listening(False)
        return Exit.DONE

    # The main thread.

    def _watch(self) -> None:
        """Until it is told to leave. Past the due that this shows, the steward is hung."""
        promise = max(2.0, self._settings.timeouts.lease / 3)
        while True:
            now = time.monotonic()
            if os.getppid() != self._node.parent:
                os._exit(Exit.ERROR)
            if any(t.ident is not None and not t.is_alive() for t in self._threads):
                logger.error("a thread of the steward has ended: another steward takes over")
                os._exit(Exit.ERROR)
            if now > self._late_at:
                self._session.abort_io()
            if now <= self._late_at + _ROUND_SECONDS:
                self._node.seat.beat(_ns(now + promise), HealthReport(database_away=self._is_away))
            with suppress(Empty):
                self._orders.get(timeout=min(1.0, promise / 4))
                return

    # The thread that serves.

    def _serve(self) -> None:
        slot = self._node.seat.slot(_SERVING)
        slot.occupy(-1, time.monotonic_ns())
        try:
            self._begin()
        except RuntimeError as error:
            if cannot_start_thread(error):
                os._exit(Exit.NO_RESOURCES)
            raise
        while not self._stopping.is_set():
            slot.enter(Phase.LEADING, time.monotonic_ns(), 0)
            if self._stale_boards.wait() == 0:
                self._bounded(self._rescue_stale_boards, None, _STALE_BOARDS_SECONDS)
            pause = self._bounded(self._round, _RETRY_SECONDS)
            # Who trusts it does not poll: it must hear, and arm, and look at the timers.
            self._board.set_listening(self._is_listening and not self._failed)
            slot.enter(Phase.RESTING, time.monotonic_ns(), 0)
            self._rest(min(pause, self._stale_boards.wait()))
        if not self._session.lost():
            self._bounded(lambda: self._claims.remove_waiter(self._session.connection()), None)
        self._session.close()

    def _begin(self) -> None:
        """An incarnation of its own, as soon as the database is there."""
        while not self._stopping.is_set() and not self._bounded(self._register, False):
            self._stopping.wait(_RETRY_SECONDS)
        if self._settings.listen and not self._stopping.is_set():
            self._listener.start()
        self._maintenance.start()
        # Also what a byte was for that a dead one had taken.
        self._worker_pipe.put()

    def _register(self) -> bool:
        connection = self._session.connection()
        schemas.check(connection, self._settings.schema)
        self._claims.register(connection, f"steward:{os.getpid()}")
        self._node.seat.register(self._claims.incarnation)
        self._node.seat.ready(time.monotonic_ns())
        return True

    def _bounded(
        self, what: Callable[[], Value], otherwise: Value, seconds: float = _ROUND_SECONDS
    ) -> Value:
        """After so long the main thread cuts it off from the database."""
        self._late_at = time.monotonic() + seconds
        try:
            return self._attempt(what, otherwise)
        finally:
            self._late_at = float("inf")

    def _attempt(self, what: Callable[[], Value], otherwise: Value) -> Value:
        """Whatever goes wrong, the next round tries again, on a fresh session if need be."""
        try:
            value = what()
            self._failed = False
            self._end_outage()
            return value
        except SchemaError as error:
            logger.error("%s", error)
            os._exit(Exit.CANNOT_START)
        except (psycopg.Error, CmdbusError) as error:
            self._warn_once(reason(error))
            self._session.discard_if_read_only(error)
        except Exception:
            logger.exception("the steward tries again")
            self._session.drop()
        self._failed = True
        if self._session.lost():
            self._away_since = self._away_since or time.monotonic()
            self._arming.forget()
        return otherwise

    @property
    def _is_away(self) -> bool:
        return self._away_since is not None

    def _end_outage(self) -> None:
        if self._away_since is not None:
            seconds = time.monotonic() - self._away_since
            self._away_since = None
            logger.info("the database is back after %.1f s", seconds)

    def _warn_once(self, why: str) -> None:
        """Not each time, while the database is away."""
        now = time.monotonic()
        if not self._stopping.is_set() and now >= self._warned_at + _COMPLAIN_SECONDS:
            self._warned_at = now
            logger.warning("the steward cannot work and keeps trying: %s", why)

    def _round(self) -> float:
        """Seconds until the next."""
        connection = self._session.connection()
        if self._doubtful.is_set():
            self._doubtful.clear()
            self._claims.ping(connection)
        view = self._board.snapshot()
        duties: list[Callable[[], float]] = [
            # First: the dead can wait longer than the living's leases.
            lambda: self._renew(connection, view, time.monotonic()),
            *(
                partial(self._rescue, connection, seat)
                for seat in view.seats
                if _is_to_rescue(seat)
            ),
            lambda: self._look_for_suspects(connection, view),
            lambda: self._read_timers(connection, view, time.monotonic()),
            lambda: self._arm(connection),
        ]
        pauses, failures = list[float](), list[Exception]()
        for duty in duties:
            # Each by itself: what keeps one from being done keeps none of the others.
            try:
                pauses.append(duty())
            except Exception as error:
                if self._session.lost():
                    raise
                failures.append(error)
        if failures:
            raise failures[0]
        return min(pauses)

    def _look_for_suspects(self, connection: Connection, view: BoardView) -> float:
        if view.suspects or any(_is_to_rescue(seat) for seat in view.seats):
            self._board.set_suspects(self._claims.suspects_wait(connection, self._types))
        return float("inf")

    def _arm(self, connection: Connection) -> float:
        return self._arming.update(
            connection,
            parked=self._is_parked(self._board.snapshot()),
            session=self._listener.session if self._is_listening else 0,
            looks_at=self._due_at,
        )

    def _rescue(self, connection: Connection, seat: SeatView) -> float:
        """What the dead held is handed back; a byte, because one of them may have taken it."""
        if self._hand_back(connection, seat, seat.exit or KILLED):
            self._board.seat(seat.index).set_rescued(seat.generation)
            self._worker_pipe.put()
        # Else the next round tries again.
        return float("inf")

    def _hand_back(self, connection: Connection, seat: SeatView, exit_record: ExitRecord) -> bool:
        """False if sessions of the dead did not end in time."""
        if seat.incarnation is None:
            return True  # It has never claimed.
        attribution = attribute(seat, exit_record, read_stacks(self._stacks / str(seat.index)))
        rescued = rescue(
            connection, self._claims, self._registry, attribution, within=RESCUE_SECONDS
        )
        if rescued.sessions_ended:
            self._count(seat, rescued.ends)
            _log_rescue(seat, rescued)
        return rescued.sessions_ended

    def _count(self, dead: SeatView, ends: Sequence[tuple[Claim, OutcomeLabel]]) -> None:
        """Executions that the process's exit has ended; no other process writes there now."""
        seat = self._board.seat(dead.index)
        counters = seat.slot(0).counters
        for claim, end in ends:
            counters.ended(seat.command_type(claim.domain, claim.type).index, end)

    def _rescue_stale_boards(self) -> None:
        self._stale_boards.rescue(self._session.connection)
        self._worker_pipe.put()

    def _renew(self, connection: Connection, view: BoardView, now: float) -> float:
        """All that living processes hold."""
        if now < self._renew_at:
            return self._renew_at - now
        renewal = self._claims.renewal_seconds
        # After an error sooner: the leases go on ending.
        self._renew_at = now + min(renewal, _RENEW_AGAIN_SECONDS)
        held = {
            seat.incarnation: self._held_by(connection, seat, seat.incarnation)
            for seat in view.seats
            if seat.role in _LIVING and seat.incarnation
        }
        if any(held.values()) or not self._is_parked(view):
            self._renewal.renew(connection, held)
        self._renew_at = now + renewal
        self._board.set_renewed(_ns(now))
        return self._renew_at - now

    def _held_by(
        self, connection: Connection, seat: SeatView, incarnation: int
    ) -> Sequence[ClaimRef]:
        """From the database if the board has no place for all of it."""
        return seat.claims if seat.complete else self._claims.keys_of(connection, incarnation)

    def _read_timers(self, connection: Connection, view: BoardView, now: float) -> float:
        """Promotes what is due, which notifies, and wakes a worker for a lease that has ended, or
        because nothing else has for long."""
        if self._heard_ready.is_set():
            # Another node may have it: from its first renewal on its lease is watched.
            self._heard_ready.clear()
            self._timers_at = min(self._timers_at, now + self._claims.renewal_seconds)
        parked = self._is_parked(view)
        # Not put off before it has come, or each reading would be followed by another.
        latest = self._due_at if self._due_at > now else float("inf")
        if self._due_earlier.is_set():
            self._due_earlier.clear()
        elif parked and self._is_listening and not (self._arming.is_up and self._leases_known):
            # From now on no process polls: the leases of other nodes must be read.
            latest = float("inf")
        elif now < self._timers_at:
            return self._timers_at - now
        elif now >= self._due_at and (self._wakes or not self._is_listening):
            self._worker_pipe.put()
        seconds = self._timers.read(connection, leases=parked)
        self._leases_known = parked
        self._board.set_suspects(self._timers.seen.suspects)
        self._watch_queue(self._timers.seen.queue_usage)
        now = time.monotonic()
        poll = self._settings.poll_interval
        if now + min(seconds, poll) < latest:
            self._wakes = not self._timers.only_promotes_within(min(seconds, poll))
        fallback = min(poll, max(0.0, latest - now))
        self._due_at = now + min(seconds, fallback)
        self._timers_at = now + seconds_to_look(seconds, fallback)
        return self._timers_at - now

    def _be_patient(self) -> float:
        """Before a statement that may take longer than a round."""
        self._late_at = time.monotonic() + _ONE_ROW_SECONDS + _ROUND_SECONDS
        return _ONE_ROW_SECONDS

    def _watch_queue(self, usage: float) -> None:
        """Of notifications, which are all databases' together: full, it fails senders' commits.
        Above half, ours are not asked for, and everybody polls."""
        full = usage > _MAX_QUEUE_USAGE
        if full != self._full and self._settings.listen:
            self._full = full
            logger.log(
                logging.WARNING if full else logging.INFO,
                "the server's queue of notifications is %s: %s",
                "more than half full, so some session does not read it" if full else "read again",
                "polling" if full else "listening",
            )

    @property
    def _is_listening(self) -> bool:
        return self._listening and not self._full

    def _is_parked(self, view: BoardView) -> bool:
        return any(seat.parked for seat in view.seats if seat.role is Role.WORKER)

    def _rest(self, seconds: float) -> None:
        wait_for([self._node.steward_pipe, self._wake_event], seconds)
        self._node.steward_pipe.drain()
        self._wake_event.drain()

    # The thread that listens.

    def _connect(self, statement: float = _STATEMENT_SECONDS) -> Connection:
        return dsns.connect(
            dsns.complete(
                dsns.parse(self._settings.dsn or ""),
                application_name=self._claims.application_name,
                settings={
                    **session_settings(self._settings.timeouts),
                    "statement_timeout": f"{statement:g}s",
                },
            )
        )

    def _began(self) -> None:
        self._counters = self._node.seat.slot(_LISTENING)
        self._counters.occupy(-1, time.monotonic_ns())
        self._listening = True
        self._board.set_listening(not self._full)
        if self._node.generation > 1 or self._listener.session > 1:
            # Notifications sent in the gap reached no session.
            self._board.count_pause()
        # Notifications sent in the gap, of earlier due times too, reached no session.
        self._due_earlier.set()
        self._wake_event.put()

    def _heard(self, channels: set[str]) -> None:
        self._counters.counters.add(Counter.NOTIFICATION_WAKEUPS)
        if any(channel.endswith("_ready") for channel in channels):
            self._worker_pipe.put()
            self._heard_ready.set()
        if any(channel.endswith("_due") for channel in channels):
            self._due_earlier.set()
            self._wake_event.put()
        if any(channel.endswith("_pause") for channel in channels):
            self._board.count_pause()

    def _ended(self) -> None:
        self._listening = False
        self._doubtful.set()
        self._board.set_listening(False)
        self._wake_event.put()


def _is_to_rescue(seat: SeatView) -> bool:
    return seat.role is Role.DEAD and not seat.rescued


def _log_rescue(seat: SeatView, rescued: Rescued) -> None:
    text = ", ".join(
        f"{len(claims)} {what}"
        for claims, what in (
            (rescued.released, "given back"),
            (rescued.lost, "run again"),
            (rescued.charged, "charged"),
            (rescued.left, "held by somebody else"),
        )
        if claims
    )
    logger.info("the commands of worker %s, pid %s: %s", seat.number, seat.pid, text or "none")


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
