"""A steward with a worker that is only its seat on the board."""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg
import pytest
from eventually import eventually
from handlers import found, handling
from queries import SESSIONS, count, end_listening_sessions, scalar

from cmdbus import CommandBus, SendRequest, Timeouts
from cmdbus.board.board import Board, Node
from cmdbus.board.layout import CLAIM_COUNT
from cmdbus.board.records import ExitRecord, Role
from cmdbus.board.seats import Seat
from cmdbus.board.wake_pipe import WakePipe
from cmdbus.settings import Settings
from cmdbus.worker.claims.claim import ClaimRequest
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.pipeline.in_flight import InFlight
from cmdbus.worker.steward.steward import Steward
from cmdbus.worker.steward.steward_process import StewardProcess

TIMEOUTS = Timeouts(statement=5, pool=5, lease=6, thread=7, watchdog=8)
#: Nothing is found by the fallback here.
POLL = 600.0


@dataclass
class Idle:
    """A node whose only worker does what the test says."""

    board: Board
    worker: Seat
    worker_pipe: WakePipe
    running: threading.Thread

    def is_woken(self) -> bool:
        if not self.worker_pipe.pending:
            return False
        self.worker_pipe.drain()
        return True

    def start(self) -> None:
        self.running.start()

    def park(self) -> None:
        self.worker.parked = time.monotonic_ns()


@pytest.fixture
def idle(dsn: str, tmp_path: Path) -> Iterator[Idle]:
    with ExitStack() as opened:
        board, worker_pipe, steward_pipe = Board.in_memory(2, 2), WakePipe(8), WakePipe(1)
        for what in (board, worker_pipe, steward_pipe):
            opened.callback(what.close)
        now = time.monotonic_ns()
        seat, worker = board.seat(0), board.seat(1)
        for each, role in ((seat, Role.STEWARD), (worker, Role.WORKER)):
            each.assign(role, number=0, generation=1)
            each.enter(pid=os.getpid(), generation=1, now=now)
        node = Node(
            board=board,
            seat=seat,
            generation=1,
            parent=os.getppid(),
            worker_pipe=worker_pipe,
            steward_pipe=steward_pipe,
        )
        settings = Settings(dsn=dsn, timeouts=TIMEOUTS, poll_interval=POLL)
        steward = StewardProcess(settings, node, handling(), tmp_path)
        running = threading.Thread(target=steward.run)
        idle = Idle(board, worker, worker_pipe, running)
        idle.park()
        yield idle
        steward.request_stop(time.monotonic())
        running.join(10)


def test_a_look_while_the_node_was_busy_forgets_no_lease_of_another(idle: Idle, dsn: str) -> None:
    """It looks when a lease of another node should end, which that renews; no worker waits
    just then, and one does before the flag is down again."""
    with CommandBus(dsn) as bus, psycopg.connect(dsn, autocommit=True) as other:
        bus.send("payments", "Debit")
        lease(other, 1.0)
        idle.start()
        eventually(lambda: idle.board.armed and looks_within(other, 1.0))
        idle.worker.parked = 0
        lease(other, 1.5)
        eventually(lambda: not looks_within(other, POLL / 2))
        idle.park()
        idle.is_woken()
        eventually(lambda: lease_has_ended(other))
        eventually(idle.is_woken)


def test_the_lease_of_a_living_worker_sets_no_timer_and_still_ends(idle: Idle, dsn: str) -> None:
    """The steward renews what the board shows; this claim could not be released."""
    idle.worker.enter(pid=os.getpid(), generation=1, now=time.monotonic_ns())
    idle.worker.register(17)
    with CommandBus(dsn) as bus, psycopg.connect(dsn, autocommit=True) as other:
        bus.send("payments", "Debit")
        lease(other, 3.0, 17)
        idle.start()
        eventually(lambda: idle.board.armed and not looks_within(other, POLL / 2))
        idle.is_woken()
        assert not lease_has_ended(other)
        eventually(lambda: lease_has_ended(other))
        eventually(idle.is_woken)


def test_a_steward_counts_as_hung_only_after_some_seconds(idle: Idle) -> None:
    """A busy machine stops a process for longer than from one renewal to the next, of 2 s here."""

    def seconds_left() -> float:
        return (idle.board.seat_view(0).due or 0) / 1e9 - time.monotonic()

    idle.start()
    eventually(lambda: seconds_left() > 4)
    assert seconds_left() <= 5


def test_a_pause_is_counted_on_the_board_for_the_workers(idle: Idle, dsn: str) -> None:
    """Also one that was sent while no session listened."""
    with CommandBus(dsn) as bus:
        idle.start()
        eventually(lambda: idle.board.listening)
        assert idle.board.domain_pauses == 0
        bus.pause("payments")
        eventually(lambda: idle.board.domain_pauses == 1)
        bus.resume("payments")
        assert end_listening_sessions(dsn) == 1
        eventually(lambda: idle.board.domain_pauses == 2)


def test_a_stranger_who_notifies_of_pauses_makes_few_of_them_count(idle: Idle, dsn: str) -> None:
    """Each makes workers release what they have claimed ahead. The last one counts, too."""
    with psycopg.connect(dsn, autocommit=True) as stranger:
        idle.start()
        eventually(lambda: idle.board.listening)
        began = time.monotonic()
        while (counted := idle.board.domain_pauses) < 3 and time.monotonic() < began + 20:
            stranger.execute("NOTIFY cmdbus_pause")
        assert 3 <= counted <= 2 * (time.monotonic() - began) + 1
        stranger.execute("NOTIFY cmdbus_pause")
        eventually(lambda: idle.board.domain_pauses > counted)


def test_the_timers_are_read_50_ms_early_and_a_worker_is_woken_at_the_time(
    idle: Idle, dsn: str
) -> None:
    """Each by the database's clock. On a busy machine the early look may come late, or be missed:
    so it is seen in one of several."""
    leads, waits = [], []
    with CommandBus(dsn) as bus, psycopg.connect(dsn, autocommit=True) as other:
        idle.start()
        eventually(lambda: idle.board.armed and not looks_within(other, POLL / 2))
        for _ in range(5):
            due_at = found(bus, bus.send("payments", "Debit", delay=0.4)).due_at.timestamp()
            eventually(partial(looks_by, other, due_at))
            idle.is_woken()
            if now(other) < due_at:  # else the worker may have been woken before
                looks = looks_until(other, lambda: idle.worker_pipe.pending > 0)
                waits.append(due_at - looks[-1])
                leads += [due_at - at for at in looks[:-1]]
                if any(0.01 < lead < 0.06 for lead in leads):
                    break
            eventually(lambda: not looks_within(other, POLL / 2))
    assert any(0.01 < lead < 0.06 for lead in leads), leads
    assert max(waits) <= 0, waits


@pytest.mark.parametrize(("domains", "count"), [(80, 80), (1, CLAIM_COUNT + 50)])
def test_leases_are_renewed_beyond_what_the_board_can_show(
    idle: Idle, dsn: str, domains: int, count: int
) -> None:
    """More domains than a seat has names for, and more claims than it has keys for."""
    names = [f"domain{number}" for number in range(domains)]
    statements = ClaimStatements("cmdbus", 3.0)
    idle.worker.enter(pid=os.getpid(), generation=1, now=time.monotonic_ns())
    idle.worker.register(statements.incarnation)
    in_flight = InFlight(statements, idle.worker)
    with CommandBus(dsn) as bus, psycopg.connect(dsn, autocommit=True) as session:
        bus.send_many([SendRequest(names[n % domains], "Debit") for n in range(count)])
        request = ClaimRequest(count, 0, names, [f"{name} Debit" for name in names], [], {})
        _, claimed = statements.settle_and_claim(session, [], request)
        assert len(in_flight.take(claimed, lambda: False)) == count
        idle.start()
        renewed = (
            "SELECT count(*) FROM cmdbus.ready"
            " WHERE lease_until > clock_timestamp() + interval '3.5 s'"
        )
        eventually(lambda: session.execute(renewed).fetchall() == [(count,)])


def lease(connection: psycopg.Connection, seconds: float, claimer: int = 0) -> None:
    """As a claim of another node writes it, or of this one's worker."""
    connection.execute(
        "WITH claimed AS ("
        "  UPDATE cmdbus.ready SET claimer = %(claimer)s, token = 1,"
        "  lease_until = clock_timestamp() + make_interval(secs => %(seconds)s)"
        ") SELECT cmdbus.note_lease(%(claimer)s, make_interval(secs => %(seconds)s))",
        {"seconds": seconds, "claimer": claimer},
    )


def looks_until(connection: psycopg.Connection, over: Callable[[], bool]) -> list[float]:
    """The times, as the database has them, at which a steward asked it something, and the one
    when it was over."""
    seen = (
        "SELECT extract(epoch FROM max(query_start))::float8,"
        f" extract(epoch FROM clock_timestamp())::float8 {SESSIONS}"
    )
    [(first, _)] = connection.execute(seen).fetchall()
    looks: set[float] = set()
    while True:
        ended = over()
        [(latest, now)] = connection.execute(seen).fetchall()
        looks.add(latest)
        if ended:
            return [*sorted(looks - {first}), now]
        time.sleep(0.002)


def lease_has_ended(connection: psycopg.Connection) -> bool:
    return bool(scalar(connection, "SELECT lease_until < clock_timestamp() FROM cmdbus.ready"))


def now(connection: psycopg.Connection) -> float:
    query = "SELECT extract(epoch FROM clock_timestamp())::float8"
    return float(scalar(connection, query))


def looks_by(connection: psycopg.Connection, due_at: float) -> bool:
    """Or has looked."""
    return now(connection) >= due_at or looks_within(connection, due_at + 0.1 - now(connection))


def looks_within(connection: psycopg.Connection, seconds: float) -> bool:
    """As the database knows."""
    query = "SELECT reads_at < clock_timestamp() + make_interval(secs => %s) FROM cmdbus.waiter"
    return connection.execute(query, (seconds,)).fetchall() == [(True,)]


def test_what_cannot_be_handed_back_keeps_nothing_else_from_being_done(
    idle: Idle, dsn: str
) -> None:
    idle.worker.enter(pid=os.getpid(), generation=1, now=time.monotonic_ns())
    idle.worker.register(17)
    idle.board.seat(1).record_exit(0, ExitRecord(generation=1, pid=1, signal=9))
    with CommandBus(dsn) as bus, psycopg.connect(dsn, autocommit=True) as other:
        other.execute("ALTER FUNCTION cmdbus.finite RENAME TO finite_once")
        bus.send("payments", "Debit", delay=0.2)
        idle.start()
        eventually(lambda: count(other, "cmdbus.ready") == 1)
        assert not idle.board.seat_view(1).rescued
        other.execute("ALTER FUNCTION cmdbus.finite_once RENAME TO finite")
        eventually(lambda: idle.board.seat_view(1).rescued)


def test_a_system_that_lets_it_open_no_session_is_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def connect() -> psycopg.Connection:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with ExitStack() as opened:
        board, worker_pipe, steward_pipe = Board.in_memory(1, 2), WakePipe(1), WakePipe(1)
        for what in (board, worker_pipe, steward_pipe):
            opened.callback(what.close)
        seat = board.seat(0)
        seat.assign(Role.STEWARD, number=0, generation=1)
        node = Node(board=board, seat=seat, worker_pipe=worker_pipe, steward_pipe=steward_pipe)
        steward = Steward(
            node,
            ClaimStatements("cmdbus", 1.0),
            connect,
            domains=[],
            poll_interval=POLL,
            slots=(seat.slot(0), seat.slot(1)),
            listen=False,
        )
        steward.start()
        opened.callback(steward.stop)
        eventually(lambda: "keeps trying: [Errno 24] Too many open files" in caplog.text)
        assert steward.threads[0].is_alive()
    assert not [record for record in caplog.records if record.exc_info]
