"""A worker that chooses its number of threads from a range, with its connections."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from eventually import eventually, stays
from guarded import Guarded
from handlers import (
    Gate,
    await_drained,
    effects,
    executing_threads,
    handling,
    leave_effect,
    running,
    seat_of,
)
from lab.proxy import Proxy
from psycopg_pool import ConnectionPool
from queries import NOWHERE, SESSIONS, end_sessions, rows

from cmdbus import Command, CommandBus, Context, RetryPolicy, SendRequest, Timeouts
from cmdbus.board.board import Board
from cmdbus.board.health import Health
from cmdbus.board.records import Role
from cmdbus.board.threads import StepReason, ThreadsView
from cmdbus.database.pool import SessionPool
from cmdbus.settings import ThreadRange
from cmdbus.worker import Worker
from cmdbus.worker.claims.pools import HEADROOM
from cmdbus.worker.concurrency import Concurrency
from cmdbus.worker.pipeline.telemetry import Telemetry

#: Sessions of a standalone worker besides its pool: it listens, and does a steward's rounds.
STANDALONE = 2
#: Seconds within which a busy machine has found a number; most need one.
WITHIN_S = 30


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps after tenths of a second, not after seconds."""
    monkeypatch.setattr("cmdbus.worker.watch._BEAT_SECONDS", 0.02)
    monkeypatch.setattr("cmdbus.worker.load_meter._READ_SECONDS", 0.05)
    policy = "cmdbus.worker.thread_policy"
    monkeypatch.setattr(f"{policy}._SETTLE_SECONDS", 0.05)
    monkeypatch.setattr(f"{policy}._WINDOW_SECONDS", 0.1)
    monkeypatch.setattr(f"{policy}._MAX_WINDOW_SECONDS", 0.15)
    monkeypatch.setattr(f"{policy}._IDLE_SECONDS", 0.2)
    # A busy machine makes trials fail that are good: they are repeated soon.
    for name in ("_SOON_SECONDS", "_HOLD_SECONDS", "_MAX_HOLD_SECONDS"):
        monkeypatch.setattr(f"{policy}.{name}", 0.2)


def threads_of(worker: Worker) -> ThreadsView:
    """Once it has any."""
    view = eventually(lambda: seat_of(worker).threads)
    assert view is not None
    return view


def without_resources(worker: Worker) -> ThreadsView | None:
    """What it shows while a step was taken back for lack of threads or sessions."""
    view = threads_of(worker)
    return view if view.reason is StepReason.NO_RESOURCES else None


def sessions(dsn: str) -> int:
    return int(rows(dsn, f"SELECT count(*) {SESSIONS}")[0][0])


class Backlog:
    """A handler that takes 5 ms. As many commands wait as were sent, until `ends` is set: each
    sends another one."""

    def __init__(self, bus: CommandBus, count: int) -> None:
        self.ends = threading.Event()
        self._bus, self._count = bus, count
        self._sending = threading.Lock()

    def begin(self) -> None:
        self._bus.send_many([SendRequest("payments", "Debit")] * self._count)

    def __call__(self, command: Command, context: Context) -> None:
        time.sleep(0.005)
        if not self.ends.is_set():
            with self._sending:  # On one session.
                self._bus.send("payments", "Debit")


@pytest.mark.usefixtures("hasty")
def test_it_grows_while_commands_wait_and_shrinks_when_none_are_left(
    dsn: str, bus: CommandBus
) -> None:
    """Its sessions do the same."""
    backlog = Backlog(bus, 200)
    with running(dsn, handling(backlog), concurrency=(1, 4)) as worker:
        eventually(lambda: executing_threads() == 1)
        assert threads_of(worker) == ThreadsView(1, 1, 4, StepReason.STARTED)
        backlog.begin()
        grown = ThreadsView(4, 1, 4, StepReason.WORK_WAITS)
        eventually(lambda: threads_of(worker) == grown, WITHIN_S)
        eventually(lambda: executing_threads() == 4, WITHIN_S)
        eventually(lambda: sessions(dsn) >= 4, WITHIN_S)
        backlog.ends.set()
        await_drained(bus, WITHIN_S)
        eventually(lambda: threads_of(worker).now == 1)
        assert threads_of(worker).reason is StepReason.THREADS_IDLE
        eventually(lambda: executing_threads() == 1)
        eventually(lambda: sessions(dsn) <= 1 + HEADROOM + STANDALONE)
        assert bus.wait("payments", bus.send("payments", "Debit")).status == "COMPLETED"


@pytest.mark.usefixtures("hasty")
def test_shrinking_interrupts_no_command(dsn: str, bus: CommandBus) -> None:
    gate = Gate()
    with running(dsn, handling(gate), concurrency=(1, 4)) as worker:
        worker.set_concurrency(4)
        ids = bus.send_many([SendRequest("payments", "Debit")] * 4)
        gate.wait_for(4)
        worker.set_concurrency((1, 2))
        stays(lambda: gate.inside == 4, 0.1)
        gate.open.set()
        records = [bus.wait("payments", command_id) for command_id in ids]
        assert [(r.status, r.attempts) for r in records] == [("COMPLETED", 1)] * 4
        eventually(lambda: executing_threads() <= 2)


def test_a_range_and_a_number_replace_each_other(dsn: str) -> None:
    with running(dsn, handling(), concurrency=2) as worker:
        eventually(lambda: executing_threads() == 2)
        assert threads_of(worker) == ThreadsView(2, 2, 2, StepReason.FIXED)
        worker.set_concurrency((3, 6))
        eventually(lambda: executing_threads() == 3)
        assert threads_of(worker) == ThreadsView(3, 3, 6, StepReason.STARTED)
        worker.set_concurrency(5)
        worker.set_concurrency(ThreadRange(1, 4))
        eventually(lambda: executing_threads() == 4)
        assert threads_of(worker) == ThreadsView(4, 1, 4, StepReason.STARTED)


@pytest.mark.parametrize(
    ("concurrency", "sentence"),
    [
        ((8, 2), r"the least concurrency, 8, is above the most, 2: write \(2, 8\)"),
        ((0, 4), "the least concurrency must be a whole number from 1 to 128, not 0"),
        ((2, 1000), "the most concurrency must be a whole number from 1 to 128, not 1000"),
        ((2,), r"concurrency must be a number, or two like \(2, 32\), not \(2,\)"),
        ("2:32", "concurrency must be a whole number from 1 to 128, not '2:32'"),
    ],
)
def test_a_range_that_cannot_be_is_refused_in_a_sentence(
    concurrency: object, sentence: str
) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        Worker(NOWHERE, handling(), concurrency=concurrency)  # type: ignore[arg-type]


def test_a_pool_of_the_callers_must_have_the_most(dsn: str) -> None:
    options = "-c statement_timeout=30s -c idle_in_transaction_session_timeout=35s"
    kwargs = {"autocommit": True, "options": options}
    small = pytest.raises(ValueError, match="at most 9 connections, and 8 threads need 10")
    with ConnectionPool(dsn, min_size=1, max_size=9, kwargs=kwargs) as pool, small:
        Worker(pool, handling(), concurrency=(1, 8)).run()


def test_the_pool_has_room_for_surplus_threads_until_they_have_ended(
    dsn: str, bus: CommandBus
) -> None:
    """They may have to reconnect: a pool that is used up would be CRITICAL."""
    gate = Gate()
    with running(dsn, handling(gate), concurrency=6) as worker:
        bus.send_many([SendRequest("payments", "Debit")] * 6)
        gate.wait_for(6)
        pool = worker._concurrency.pool
        assert isinstance(pool, SessionPool)
        worker.set_concurrency((1, 2))
        assert (threads_of(worker).now, pool.min_size, pool.max_size) == (2, 2, 6 + HEADROOM)
        gate.open.set()
        eventually(lambda: executing_threads() == 2)
        worker.set_concurrency((1, 2))
        assert (pool.min_size, pool.max_size) == (2, 2 + HEADROOM)


def test_threads_without_a_session_are_taken_back(hasty: None, guarded: Guarded) -> None:
    """Not an outage, although one of them might have led."""
    with (
        guarded.role("worker", "producer", options="CONNECTION LIMIT 8") as dsn,
        CommandBus(dsn) as bus,
    ):
        timeouts = Timeouts(statement=0.9, pool=0.3, lease=1, thread=20, watchdog=30)
        backlog = Backlog(bus, 200)
        backlog.begin()
        registry = handling(backlog)
        with running(dsn, registry, concurrency=(1, 16), timeouts=timeouts) as worker:
            view = eventually(lambda: without_resources(worker), WITHIN_S)
            assert view and 1 <= view.now < 8
            eventually(lambda: executing_threads() == threads_of(worker).now)
            assert worker.health.health is Health.HEALTHY
            backlog.ends.set()


def test_a_thread_that_cannot_be_started_is_not_missed(
    dsn: str, bus: CommandBus, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        is_executing = thread.name.startswith("worker-") and thread.name[-1].isdigit()
        if is_executing and executing_threads() >= 3:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    backlog = Backlog(bus, 200)
    backlog.begin()
    with running(dsn, handling(backlog), concurrency=(1, 8)) as worker:
        view = eventually(lambda: without_resources(worker), WITHIN_S)
        assert view == ThreadsView(2, 1, 8, StepReason.NO_RESOURCES)
        eventually(lambda: executing_threads() == 2)
        backlog.ends.set()


@pytest.mark.parametrize(
    ("bounds", "begins_with"), [((2, 32), 9), ((2, 8), 8), ((12, 32), 12), (4, 4)]
)
def test_a_successor_begins_with_the_number_of_its_predecessor(
    bounds: tuple[int, int] | int, begins_with: int
) -> None:
    """As far as its own range allows; not with that of another worker, or of an earlier one."""
    with closing(Board.in_memory(5, 4)) as board:
        for index, (number, generation, threads) in enumerate(
            [(1, 1, 3), (0, 1, 5), (0, 3, 20), (0, 2, 9)]
        ):
            seat = board.seat(index)
            role = Role.QUARANTINE if index == 2 else Role.WORKER
            seat.assign(role, number=number, generation=generation)
            seat.threads = ThreadsView(threads, 1, 32).to_cell()
        own = board.seat(4)
        own.assign(Role.WORKER, number=0, generation=4)
        concurrency = Concurrency(bounds, Telemetry(board, own), Timeouts())
        concurrency.succeed(board, own)
        assert concurrency.number == begins_with


@pytest.mark.parametrize(
    "view",
    [ThreadsView(1, 1, 1), ThreadsView(5, 2, 32, StepReason.NO_GAIN), ThreadsView(128, 1, 128)],
)
def test_the_board_shows_the_number_and_its_reason(view: ThreadsView) -> None:
    with closing(Board.in_memory(1, 1)) as board:
        seat = board.seat(0)
        seat.assign(Role.WORKER, number=0, generation=1)
        assert board.seat_view(0).threads is None
        seat.threads = view.to_cell()
        assert board.seat_view(0).threads == view
        seat.assign(Role.WORKER, number=0, generation=2)
        assert board.seat_view(0).threads is None


@pytest.mark.parametrize("cell", [0, -1, 1, ThreadsView(3, 4, 5).to_cell(), 2**62, 99 << 45 | 1])
def test_garbage_on_the_board_is_no_number(cell: int) -> None:
    assert ThreadsView.from_cell(cell) is None


@contextmanager
def away(proxy: Proxy) -> Iterator[None]:
    """Nothing listens there meanwhile, and what was connected has ended."""
    aside = proxy.socket.rename(proxy.socket.with_name("away"))
    proxy.cut()
    yield
    aside.rename(proxy.socket)


def await_effects(dsn: str, count: int) -> None:
    eventually(lambda: effects(dsn) >= count)


@pytest.mark.parametrize("rounds", [3, pytest.param(60, marks=pytest.mark.long)])
@pytest.mark.usefixtures("hasty")
def test_a_changing_number_keeps_every_promise_while_sessions_and_the_server_go(
    dsn: str, bus: CommandBus, tmp_path: Path, rounds: int
) -> None:
    """Random loads, ranges, kills and outages: no command is lost or doubled, and no thread, slot
    or session is left over."""
    dice = random.Random(rounds)

    def debit(command: Command, context: Context) -> None:
        leave_effect(command, context)
        time.sleep(command.data)

    registry = handling(debit, retry=RetryPolicy(max_attempts=50, backoff=(0.01,)))
    timeouts = Timeouts(statement=0.9, pool=0.9, lease=1, thread=20, watchdog=30)
    ranges: list[int | tuple[int, int]] = [3, (1, 8), (2, 5)]
    sent = 0
    with (
        closing(Proxy(dsn, tmp_path)) as proxy,
        running(proxy.dsn, registry, concurrency=(1, 8), timeouts=timeouts) as worker,
    ):
        for _ in range(rounds):
            count = dice.randint(1, 150)
            seconds = dice.choice([0.0, 0.002, 0.01])
            bus.send_many([SendRequest("payments", "Debit", seconds)] * count)
            sent += count
            await_effects(dsn, effects(dsn) + dice.randrange(1 + count // 4))
            match dice.randrange(4):
                case 0 | 1:
                    end_sessions(dsn)
                case 2:
                    with away(proxy):
                        eventually(lambda: sessions(dsn) == 0)
            if dice.random() < 0.3:
                worker.set_concurrency(ranges[dice.randrange(3)])
        await_drained(bus, 20)
        assert effects(dsn) == sent
        ended = rows(dsn, "SELECT status, count(*) FROM cmdbus.finished GROUP BY 1")
        assert ended == [("COMPLETED", sent)]
        worker.set_concurrency((1, 8))
        eventually(lambda: threads_of(worker).now == 1)
        eventually(lambda: executing_threads() == 1)
        eventually(lambda: sum(slot.number >= 0 for slot in seat_of(worker).slots) == 1)
        eventually(lambda: sessions(dsn) <= 1 + HEADROOM + STANDALONE)
        assert worker.health.stuck_threads == worker.health.pool_exhaustions == 0
