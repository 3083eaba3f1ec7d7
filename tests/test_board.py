"""The board: what is written by one process is what others read, whoever is killed when."""

import json
import mmap
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from eventually import eventually

from cmdbus.board import Board
from cmdbus.counters import OTHER, Counter, End, mark
from cmdbus.errors import BoardError
from cmdbus.health import Health, Levels
from cmdbus.keys import KeyState
from cmdbus.layout import BUCKETS, CELL, HEAD, HEAD_CELLS, KEY_COUNT, SLOT_AT
from cmdbus.seats import Ended, Role, Seat, Verdict
from cmdbus.slots import Phase, Slot
from cmdbus.views import KeyView, Restart, SlotView, SupervisorState

SECOND = 1_000_000_000


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board.in_memory(seats=2, slots=3, kinds=4)
    yield board
    board.close()


@contextmanager
def forked(run: Callable[[], None]) -> Iterator[int]:
    """A child that runs `run` and is gone at the end."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            run()
            code = 0
        finally:
            os._exit(code)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def taken(board: Board, place: int = 0, generation: int = 1) -> Seat:
    seat = board.seat(place)
    seat.assign(Role.WORKER, number=place, generation=generation, now=1)
    seat.enter(pid=os.getpid(), generation=generation, now=2)
    return seat


def begin(slot: Slot, seat: Seat, number: int) -> None:
    """A command all of whose numbers are the same."""
    slot.begin(
        seat.kind(f"domain{number % 2}", "Odd" if number % 2 else "E" * 100),
        priority=number % 11,
        id=number,
        token=number,
        command_id=UUID(int=number),
        attempt=number,
        started=number,
        due=number,
    )


def is_of_one_write(view: SlotView) -> bool:
    command = view.command
    assert command is not None
    number = command.id
    return (
        (command.token, command.attempt, command.command_id.int) == (number,) * 3
        and (view.since, view.due, command.priority) == (number, number, number % 11)
        and command.domain == f"domain{number % 2}"
        and command.type == ("Odd" if number % 2 else "E" * 100)
    )


def beyond(value: Callable[[], int], limit: int) -> bool:
    return value() > limit


# What is shown.


def test_a_new_board_shows_empty_seats(board: Board) -> None:
    view = board.snapshot()
    assert (view.name, view.pid, view.state, view.armed) == ("cmdbus", None, None, 0)
    assert [(seat.pid, seat.slots, seat.keys) for seat in view.seats] == [(None, (), ())] * 2


def test_a_slot_shows_its_command_and_when_it_has_promised_to_be_back(board: Board) -> None:
    seat, command_id = taken(board), uuid4()
    slot = seat.slot(1)
    slot.occupy(7, now=3)
    slot.session(4711, 123)
    slot.begin(
        seat.kind("payments", "Debit"),
        priority=5,
        id=99,
        token=3,
        command_id=command_id,
        attempt=2,
        started=10,
        due=20,
    )
    (view,) = board.snapshot().seats[0].slots
    assert (view.place, view.number, view.phase, view.since, view.due) == (
        1,
        7,
        Phase.RUNNING,
        10,
        20,
    )
    assert view.command is not None
    assert view.command.command_id == command_id
    assert (view.command.domain, view.command.type) == ("payments", "Debit")
    assert (view.command.priority, view.command.id, view.command.token) == (5, 99, 3)
    assert (view.thread, view.backend_pid, view.backend_start) == (
        threading.get_native_id(),
        4711,
        123,
    )
    slot.extend(50)
    assert board.slot_view(0, 1).due == 50
    slot.end(60)
    ended = board.slot_view(0, 1)
    assert (ended.phase, ended.command, ended.since, ended.due) == (Phase.IDLE, None, 60, None)
    slot.enter(Phase.LEADING, 70, 80)
    slot.phase = Phase.RESTING
    assert (board.slot_view(0, 1).phase, board.slot_view(0, 1).due) == (Phase.RESTING, 80)
    slot.leave()
    assert board.snapshot().seats[0].slots == ()


def test_a_verdict_holds_until_the_thread_moves_on(board: Board) -> None:
    seat = taken(board)
    slot = seat.slot(0)
    slot.occupy(0, now=1)
    begin(slot, seat, 1)
    seat.judge(0, board.slot_view(0, 0).sequence)
    assert board.slot_view(0, 0).phase is Phase.STUCK
    assert board.slot_view(0, 0).command is not None
    begin(slot, seat, 1)
    assert board.slot_view(0, 0).phase is Phase.RUNNING


def test_a_seat_shows_its_process_and_its_health(board: Board) -> None:
    seat = taken(board)
    levels = Levels(last_success=1.5, consecutive_failures=11, stuck_threads=1, pool_exhaustions=2)
    seat.register(42)
    seat.ready(5)
    seat.beat(9, levels)
    seat.park(8)
    view = board.seat_view(0)
    assert (view.pid, view.generation, view.incarnation) == (os.getpid(), 1, 42)
    assert (view.since, view.ready, view.due, view.parked) == (2, 5, 9, 8)
    assert (view.levels, view.health) == (levels, Health.DEGRADED)
    seat.unpark()
    assert board.seat_view(0).parked is None


def test_a_process_is_not_shown_under_the_generation_of_its_successor(board: Board) -> None:
    late = taken(board)
    board.seat(0).assign(Role.WORKER, number=0, generation=2, now=3)
    late.beat(100, Levels())
    assert board.seat_view(0).pid is None
    assert board.seat_view(0).due is None


def test_a_seat_that_is_assigned_anew_shows_nothing_of_the_one_before(board: Board) -> None:
    seat = taken(board)
    slot = seat.slot(0)
    slot.occupy(0, now=1)
    begin(slot, seat, 1)
    seat.judge(0, board.slot_view(0, 0).sequence)
    seat.keys.claimed(seat.kind("a", "B"), 5, 1, 1, uuid4())
    seat.park(3)
    slot.counters.add(Counter.LOST_LEASES)
    successor = taken(board, generation=2)
    view = board.seat_view(0)
    assert (view.generation, view.slots, view.keys, view.parked) == (2, (), (), None)
    again = successor.slot(0)
    again.occupy(0, now=2)
    begin(again, successor, 1)
    assert is_of_one_write(board.slot_view(0, 0))
    assert board.slot_view(0, 0).phase is Phase.RUNNING, "the old verdict is not of this one"
    assert board.counters().lost_leases == 1


def test_a_seat_shows_how_its_process_came_to_its_end_until_it_is_free(board: Board) -> None:
    seat = taken(board, generation=7)
    seat.order_to_leave(0, 7, by=50, now=3)
    assert (board.seat_view(0).role, board.seat_view(0).leave_by) == (Role.LEAVING, 50)
    assert seat.leave_by == 50
    ended = Ended(generation=7, pid=12, signal=9, verdict=Verdict.STUCK, slot=1, token=4)
    seat.bury(0, ended, now=4)
    view = board.seat_view(0)
    assert (view.role, view.pid, view.ended, view.rescued) == (Role.DEAD, os.getpid(), ended, False)
    seat.rescue(7)
    assert board.seat_view(0).rescued
    seat.clear(now=5)
    taken(board, generation=1)
    view = board.seat_view(0)
    assert (view.ended, view.rescued, view.leave_by) == (None, False, None)


def test_a_seat_without_a_process_is_shown_empty(board: Board) -> None:
    board.supervise(pid=1234, state=SupervisorState.RUNNING, since=1, due=2, wanted=2)
    taken(board, place=0)
    taken(board, place=1).order_to_leave(1, 1, by=50, now=3)
    seats = board.snapshot().to_dict(now=4)["seats"]
    assert isinstance(seats, list)
    assert [(seat["seat"], seat["pid"]) for seat in seats] == [(0, os.getpid()), (1, None)]


def test_a_snapshot_has_the_shape_of_ps(board: Board) -> None:
    steward = board.seat(1)
    steward.assign(Role.STEWARD, number=0, generation=3, now=1)
    steward.enter(pid=77, generation=3, now=1 * SECOND)
    board.set_listening(True)
    board.set_armed(12)
    board.supervise(pid=1234, state=SupervisorState.RUNNING, since=1, due=2)
    board.count_restart(Restart.CRASHED)
    seat = taken(board)
    seat.beat(5 * SECOND, Levels(stuck_threads=4))
    slot, relief = seat.slot(0), seat.slot(2)
    slot.occupy(0, now=1)
    relief.occupy(-1, now=1)
    slot.begin(
        seat.kind("payments", "Debit"),
        priority=5,
        id=1,
        token=1,
        command_id=UUID(int=5),
        attempt=2,
        started=3 * SECOND,
        due=38 * SECOND,
    )
    shown = json.loads(json.dumps(board.snapshot().to_dict(now=4 * SECOND)))
    assert shown == {
        "name": "cmdbus",
        "pid": 1234,
        "state": "running",
        "seats": [
            {
                "seat": 0,
                "pid": os.getpid(),
                "generation": 1,
                "health": "CRITICAL",
                "reasons": ["4 stuck threads within 5 minutes, and more than 3 are too many"],
                "since": 4.0,
                "slots": [
                    {
                        "slot": 0,
                        "phase": "running",
                        "command_id": str(UUID(int=5)),
                        "domain": "payments",
                        "type": "Debit",
                        "attempt": 2,
                        "since": 1.0,
                        "due": 34.0,
                    }
                ],
            }
        ],
        "steward": {
            "pid": 77,
            "generation": 3,
            "since": 3.0,
            "due": None,
            "listening": True,
            "armed": True,
        },
        "quarantine": None,
    }
    assert board.snapshot().restarts["crashed"] == 1


# Keys.


def test_keys_show_what_is_claimed_started_and_finished(board: Board) -> None:
    seat = taken(board)
    kind = seat.kind("payments", "Debit")
    commands = [uuid4() for _ in range(4)]
    places = [
        seat.keys.claimed(kind, 10, id, id + 100, command)
        for id, command in enumerate(commands, start=1)
    ]
    for place in places[1:]:
        seat.keys.started(place)
    for place in places[2:]:
        seat.keys.finished(place)
    seat.keys.free(places[3])
    keys = board.seat_view(0).keys
    assert keys == tuple(
        KeyView(
            domain="payments",
            priority=10,
            id=number + 1,
            token=number + 101,
            command_id=commands[number],
            state=state,
            place=places[number],
            kind=kind.index,
        )
        for number, state in enumerate([KeyState.CLAIMED, KeyState.STARTED, KeyState.FINISHED])
    )
    for key in keys:
        board.seat(0).free(key.place)
    assert board.seat_view(0).keys == ()


def test_keys_beyond_the_table_are_not_shown_and_the_seat_says_so(board: Board) -> None:
    seat = taken(board)
    kind = seat.kind("payments", "Debit")
    places = [seat.keys.claimed(kind, 5, id + 1, 1, UUID(int=id)) for id in range(KEY_COUNT)]
    assert (seat.keys.room, board.seat_view(0).complete) == (0, True)
    beyond = seat.keys.claimed(kind, 5, 9_999, 1, uuid4())
    seat.keys.started(beyond)
    seat.keys.finished(beyond)
    view = board.seat_view(0)
    assert (len(view.keys), view.complete) == (KEY_COUNT, False)
    for place in [beyond, *places]:
        seat.keys.free(place)
    assert (seat.keys.room, board.seat_view(0).keys) == (KEY_COUNT, ())


@pytest.mark.process
def test_no_key_is_read_half_while_places_are_taken_and_freed(board: Board) -> None:
    taken(board)

    def work() -> None:
        seat = board.seat(0)
        kind, number = seat.kind("payments", "Debit"), 0
        while True:
            places = []
            for _ in range(KEY_COUNT):
                number += 1
                id = UUID(int=number << 64 | number)
                places.append(seat.keys.claimed(kind, number % 11, number, number, id))
            for place in places:
                seat.keys.started(place)
                seat.keys.finished(place)
                seat.keys.free(place)

    with forked(work):
        eventually(lambda: board.seat_view(0).keys)
        seen = 0
        while seen < 50_000:
            for key in board.seat_view(0).keys:
                assert (key.token, key.priority) == (key.id, key.id % 11)
                assert key.command_id == UUID(int=key.id << 64 | key.id)
                seen += 1


# Counters.


def test_counters_are_summed_over_slots_and_seats_by_name(board: Board) -> None:
    for place, names in ((0, ("A", "B")), (1, ("B", "A"))):
        seat = taken(board, place)
        for slot in range(3):
            counters = seat.slot(slot).counters
            for name in names:
                kind = seat.kind("orders", name)
                for claim in range(1 if name == "A" else 10):
                    counters.ended(kind.index, End.COMPLETED, claim)
                counters.handler_duration.observe(kind.index, 0.2)
            counters.add(Counter.BATCHES_PROCESSED)
            counters.add(Counter.WAKEUPS_TIMER, 2)
    view = board.counters()
    assert view.commands == {("orders", "A", "completed"): 6, ("orders", "B", "completed"): 60}
    assert (view.batches_processed, view.wakeups["timer"], view.wakeups["poll"]) == (6, 12, 0)
    assert view.handler_duration["orders", "A"].count == 6
    assert view.handler_duration["orders", "A"].sum == pytest.approx(1.2)
    assert view.dequeue_latency["orders", "A"].count == 0


def test_an_observation_is_counted_in_its_bucket_and_all_above(board: Board) -> None:
    seat = taken(board)
    kind, histogram = seat.kind("a", "B"), seat.slot(0).counters.dequeue_latency
    for seconds in (0.0, 0.001, 0.0011, 60, 61):
        histogram.observe(kind.index, seconds)
    view = board.counters().dequeue_latency["a", "B"]
    assert view.counts == (2, *[3] * (len(BUCKETS) - 2), 4, 5)


def test_kinds_that_find_no_place_share_a_row_and_are_shown_by_name(board: Board) -> None:
    seat = taken(board)
    slot = seat.slot(0)
    slot.occupy(0, now=1)
    for number in range(6):
        kind = seat.kind("orders", f"Type{number}")
        slot.counters.ended(kind.index, End.FAILED, number)
    assert board.counters().commands[(*OTHER, "failed")] == 2
    slot.begin(kind, priority=5, id=1, token=1, command_id=uuid4(), attempt=1, started=1, due=2)
    command = board.slot_view(0, 0).command
    assert command is not None and command.type == "Type5"


def test_a_new_generation_finds_the_rows_of_its_kinds_in_any_order(board: Board) -> None:
    first = taken(board)
    rows = {name: first.kind("orders", name).index for name in ("A", "B", "C")}
    second = taken(board, generation=2)
    assert {name: second.kind("orders", name).index for name in ("C", "D", "A", "B")} == {
        **rows,
        "D": 3,
    }


@pytest.mark.process
def test_sums_are_exact_however_often_the_writers_are_killed(board: Board) -> None:
    """H16 of the history's invariants: counters never go back and never lose anything. The
    writer notes what it has done after it did it, so it may be killed one ahead of its note."""
    notes = mmap.mmap(-1, mmap.PAGESIZE)
    done = memoryview(notes).cast("q")
    dice = random.Random(5)

    def work() -> None:
        seat = board.seat(0)
        counters, kind = seat.slot(0).counters, seat.kind("orders", "A").index
        while True:
            counters.add(Counter.EMPTY_RECEIVES)
            done[0] += 1
            counters.ended(kind, End.COMPLETED, done[1])
            done[1] += 1
            counters.handler_duration.observe(kind, 0.004)
            done[2] += 1

    for generation in range(1, 26):
        before = done.tolist()[:3]
        taken(board, generation=generation)
        with forked(work) as pid:
            enough = before[2] + dice.randrange(2_000)
            eventually(partial(beyond, lambda: done[2], enough))
            os.kill(pid, signal.SIGKILL)
        counters = board.counters()
        counted = [
            counters.empty_receives,
            counters.commands["orders", "A", "completed"],
            counters.handler_duration["orders", "A"].count,
        ]
        ahead = [count - note for count, note in zip(counted, done, strict=False)]
        assert sum(ahead) in (0, 1) and min(ahead) >= 0
        for index, count in enumerate(counted):
            done[index] = count
    assert counted[2] > 25_000 / 2
    done.release()
    notes.close()


@pytest.mark.process
def test_a_key_that_was_counted_is_known_however_its_process_was_killed(board: Board) -> None:
    """What a dead process has settled and not counted can be counted for it, and no more."""
    notes = mmap.mmap(-1, mmap.PAGESIZE)
    latest = memoryview(notes).cast("q")
    dice = random.Random(7)

    def work() -> None:
        seat = board.seat(0)
        counters, kind = seat.slot(0).counters, seat.kind("orders", "A")
        while True:
            latest[0] += 1
            id = latest[0]
            place = seat.keys.claimed(kind, 5, id, id % 3 + 1, UUID(int=id))
            seat.keys.started(place)
            counters.ended(kind.index, End.COMPLETED, mark(id, id % 3 + 1))
            seat.keys.free(place)

    sides = set[bool]()
    for generation in range(1, 601):
        if generation > 60 and len(sides) == 2:
            break
        taken(board, generation=generation)
        enough = latest[0] + dice.randrange(300)
        with forked(work) as pid:
            eventually(partial(beyond, lambda: latest[0], enough))
            os.kill(pid, signal.SIGKILL)
        count = board.counters().commands["orders", "A", "completed"]
        keys = board.seat_view(0).keys
        if not keys:
            latest[0] = count
            continue
        assert [key.id for key in keys] == [latest[0]]
        counted = mark(keys[0].id, keys[0].token) in board.last_counted(0)
        assert count == latest[0] - (not counted)
        sides.add(counted)
        if not counted:
            counters = board.seat(0).slot(0).counters
            counters.ended(keys[0].kind, End.COMPLETED, mark(keys[0].id, keys[0].token))
    assert sides == {True, False}
    latest.release()
    notes.close()


# Torn, dead, garbage, full.


@pytest.mark.process
def test_no_slot_is_read_torn_while_its_thread_writes(board: Board) -> None:
    """Fault 26."""
    seat = taken(board)
    for number in (0, 1):
        begin(seat.slot(number), seat, 1)

    def hammer(number: int) -> None:
        seat = board.seat(0)
        slot = seat.slot(number)
        slot.occupy(number, 1)
        for command in range(1, 2**40):
            begin(slot, seat, command)

    with forked(lambda: hammer(0)), forked(lambda: hammer(1)):
        eventually(lambda: all(board.slot_view(0, n).sequence > 1_000 for n in (0, 1)))
        unknown, sequences = 0, set()
        for read in range(200_000):
            view = board.slot_view(0, read % 2)
            if view.phase is None:
                unknown += 1
            else:
                sequences.add(view.sequence)
                assert is_of_one_write(view)
    assert unknown < 100_000, "a reader that looks again mostly finds a moment between two writes"
    assert len(sequences) > 1_000


@pytest.mark.process
def test_a_writer_killed_while_it_writes_leaves_what_is_true_or_unknown(board: Board) -> None:
    dice = random.Random(7)

    def hammer() -> None:
        seat = board.seat(0)
        slot = seat.slot(0)
        slot.occupy(0, 1)
        for command in range(1, 2**40):
            begin(slot, seat, command)

    last = 0
    for generation in range(1, 41):
        seat = taken(board, generation=generation)
        with forked(hammer) as pid:
            enough = last + 2 + dice.randrange(1_000)
            eventually(partial(beyond, lambda: board.slot_view(0, 0).sequence, enough))
            os.kill(pid, signal.SIGKILL)
        view = board.slot_view(0, 0)
        # Idle, if the one before left an unknown sequence, and this one came no further.
        idle = view.phase is Phase.IDLE and view.command is None
        assert view.phase is None or idle or is_of_one_write(view)
        last = max(last, view.sequence)
    slot = seat.slot(0)
    slot.occupy(0, 1)
    begin(slot, seat, 5)
    assert is_of_one_write(board.slot_view(0, 0))


def test_garbage_is_shown_as_unknown_and_breaks_no_reader(tmp_path: Path) -> None:
    """Fault 26: no exception in the supervisor, whatever somebody wrote into its memory."""
    dice = random.Random(3)
    board = Board.create(tmp_path / "board", seats=2, slots=2, kinds=2)
    size, head = board.layout.size, HEAD_CELLS * CELL
    for _ in range(30):
        seat = taken(board)
        slot = seat.slot(0)
        slot.occupy(0, now=1)
        begin(slot, seat, 1)
        with (tmp_path / "board").open("r+b") as file:
            if dice.random() < 0.5:
                file.seek(HEAD.size)
                file.write(dice.randbytes(size - HEAD.size))
            for _ in range(1_000):
                file.seek(dice.randrange(head, size - CELL))
                file.write(dice.randbytes(CELL))
        json.dumps(board.snapshot().to_dict(now=1))
        board.counters()
        begin(slot, seat, 2)
        board.seat(0).slot(1).occupy(1, now=1)
    board.close()


def test_a_slot_with_one_wrong_bit_is_unknown_until_it_is_written_again(tmp_path: Path) -> None:
    board = Board.create(tmp_path / "board", seats=1, slots=1)
    seat = taken(board)
    slot = seat.slot(0)
    slot.occupy(0, now=1)
    begin(slot, seat, 1)
    with (tmp_path / "board").open("r+b") as file:
        file.seek((board.layout.slot(0, 0) + SLOT_AT + 3) * CELL)
        file.write(b"\x40")
    view = board.snapshot().seats[0].slots[0]
    assert (view.phase, view.command, view.due, view.sequence) == (None, None, None, 0)
    begin(slot, seat, 2)
    assert is_of_one_write(board.slot_view(0, 0))
    board.close()


@pytest.mark.process
def test_a_board_is_read_after_everybody_who_wrote_it_is_dead(tmp_path: Path) -> None:
    path = tmp_path / "board"

    def work() -> None:
        board = Board.create(path, seats=1, slots=1, name="flight")
        seat = taken(board)
        slot = seat.slot(0)
        slot.occupy(0, now=1)
        begin(slot, seat, 17)
        (tmp_path / "written").touch()
        time.sleep(60)

    with forked(work) as pid:
        eventually((tmp_path / "written").exists)
        os.kill(pid, signal.SIGKILL)
    board = Board.open(path)
    view = board.snapshot()
    assert (view.name, view.this_boot, view.seats[0].pid) == ("flight", True, pid)
    assert is_of_one_write(view.seats[0].slots[0])
    with pytest.raises(TypeError):
        board.set_armed(1)
    board.close()


def test_the_file_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    for mask in (0o000, 0o777):
        before = os.umask(mask)
        try:
            Board.create(tmp_path / "board", seats=1, slots=1).close()
        finally:
            os.umask(before)
        assert (tmp_path / "board").stat().st_mode & 0o7777 == 0o600
        assert [path.name for path in tmp_path.iterdir()] == ["board"]


def test_a_new_board_replaces_the_old_one_which_its_readers_keep(tmp_path: Path) -> None:
    path = tmp_path / "board"
    old = Board.create(path, seats=1, slots=1, name="old")
    (tmp_path / ".board.new").write_text("left by a maker that was killed")
    new = Board.create(path, seats=2, slots=2, name="new")
    reader = Board.open(path)
    assert (old.snapshot().name, reader.snapshot().name) == ("old", "new")
    for each in (old, new, reader):
        each.close()


def test_space_is_reserved_when_the_board_is_made(tmp_path: Path) -> None:
    """Fault 25, finding 9: not by SIGBUS later."""
    board = Board.create(tmp_path / "board", seats=1, slots=2)
    assert (tmp_path / "board").stat().st_blocks * 512 >= board.layout.size
    board.close()


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a small memory file system: needs root")
def test_a_full_memory_file_system_is_refused_when_the_board_is_made(tmp_path: Path) -> None:
    """Fault 25, finding 9."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        with pytest.raises(BoardError, match=r"No space left on device.*--runtime-dir"):
            Board.create(tmp_path / "board", seats=4, slots=8)
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_place_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(BoardError, match="missing/board: No such file"):
        Board.create(tmp_path / "missing" / "board", seats=1, slots=1)
    with pytest.raises(BoardError, match="missing cannot be read: No such file"):
        Board.open(tmp_path / "missing")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda raw: b"", "not a file with something in it"),
        (lambda raw: raw[:20], "only 20 bytes"),
        (lambda raw: b"#" * len(raw), "something else"),
        (lambda raw: raw[:8] + (9).to_bytes(8, "little") + raw[16:], "version 9, .* knows 1"),
        (lambda raw: raw[:16] + (5).to_bytes(8, "little") + raw[24:], "damaged"),
        (lambda raw: raw[:16] + (-5).to_bytes(8, "little", signed=True) + raw[24:], "seats must"),
        (lambda raw: raw[:-8], "damaged"),
    ],
)
def test_what_is_no_board_is_refused_with_what_is_wrong(
    tmp_path: Path, spoil: Callable[[bytes], bytes], says: str
) -> None:
    path = tmp_path / "board"
    Board.create(path, seats=1, slots=1).close()
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(BoardError, match=says):
        Board.open(path)


def test_neither_a_pipe_nor_a_link_nor_a_directory_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    Board.create(tmp_path / "board", seats=1, slots=1).close()
    (tmp_path / "link").symlink_to(tmp_path / "board")
    for name in ("pipe", "link", "."):
        with pytest.raises(BoardError):
            Board.open(tmp_path / name)


def test_a_board_of_another_boot_says_so(tmp_path: Path) -> None:
    path = tmp_path / "board"
    Board.create(path, seats=1, slots=1).close()
    raw = path.read_bytes()
    path.write_bytes(raw[: HEAD.size - 16] + bytes(16) + raw[HEAD.size :])
    board = Board.open(path)
    assert not board.snapshot().this_boot
    board.close()


def test_slots_and_seats_begin_on_cache_lines(board: Board) -> None:
    layout = board.layout
    starts = [layout.seat(s) for s in (0, 1)] + [layout.slot(s, t) for s in (0, 1) for t in (0, 2)]
    assert [start * CELL % 64 for start in starts] == [0] * 6


def test_seats_and_slots_that_are_not_there_are_refused(board: Board) -> None:
    for wrong in (lambda: board.seat(2), lambda: board.seat(-1), lambda: board.seat(0).slot(3)):
        with pytest.raises(ValueError, match=r"has s(eats|lots) 0 to"):
            wrong()
