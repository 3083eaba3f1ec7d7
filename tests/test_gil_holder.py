"""Who holds the GIL: by values, and on real threads of real processes."""

import os
import resource
import signal
import threading
import time
from dataclasses import replace
from uuid import UUID

import pytest
from eventually import eventually
from forks import forked

from cmdbus.board.board import Board
from cmdbus.board.records import Role
from cmdbus.board.views import SlotView
from cmdbus.proc import PidState, cpu_seconds, pid_state, rss_bytes
from cmdbus.supervisor.aftermath import gil_holder, stuck

#: Of the threads 11 and 12, the slots; 10 is the main thread.
RUNNING = {0: 11, 1: 12}


@pytest.mark.parametrize(
    ("after", "slot"),
    [
        ({10: 3.0, 11: 6.0, 12: 7.0}, 0),
        ({10: 3.0, 11: 5.0, 12: 8.0}, 1),
        ({10: 3.02, 11: 5.0625, 12: 7.0}, 0),
        ({10: 3.0, 11: 5.03, 12: 7.0}, None),
        ({10: 3.25, 11: 5.75, 12: 7.0}, 0),
        ({10: 3.26, 11: 5.74, 12: 7.0}, None),
        ({10: 3.0, 11: 5.5, 12: 7.5}, None),
        ({10: 4.0, 11: 5.0, 12: 7.0}, None),
        ({10: 3.0, 11: 5.0, 12: 7.0}, None),
        ({}, None),
    ],
    ids=[
        "one did",
        "the other",
        "little, on a busy machine",
        "next to nothing",
        "three quarters",
        "less",
        "both",
        "the main thread",
        "none",
        "gone",
    ],
)
def test_the_gil_holder_is_the_slot_whose_thread_used_the_cpu_of_its_process(
    after: dict[int, float], slot: int | None
) -> None:
    assert gil_holder({10: 3.0, 11: 5.0, 12: 7.0}, after, 1.0, RUNNING) == slot


def test_a_thread_that_is_new_since_the_first_look_has_used_all_of_its_time_since() -> None:
    assert gil_holder({}, {12: 0.6}, 1.0, RUNNING) == 1


def test_a_thread_that_runs_no_command_is_not_the_gil_holder() -> None:
    assert gil_holder({11: 0.0}, {11: 1.0}, 1.0, {}) is None


def slots(dues: dict[int, int], *, judged: int | None = None) -> tuple[SlotView, ...]:
    """Slots that run commands, with their dues; `judged`: the main thread gave this one up."""
    board = Board.in_memory(1, 4)
    seat = board.seat(0)
    seat.assign(Role.WORKER, number=0, generation=1)
    command_type = seat.command_type("shop", "Noop")
    for index, due in dues.items():
        slot = seat.slot(index)
        slot.occupy(index, 1)
        slot.begin(
            command_type,
            priority=5,
            id=index,
            token=1,
            command_id=UUID(int=index),
            attempt=1,
            started=1,
            due=due,
        )
        if judged == index:
            seat.mark_stuck(index, slot.sequence)
    return tuple(replace(slot, thread=10 + slot.index) for slot in board.seat_view(0).slots)


@pytest.mark.parametrize(
    ("dues", "judged", "gil_holder", "expected"),
    [
        ({0: 50, 1: 60}, 0, None, 0),
        ({0: 50, 1: 60}, 0, 1, 0),
        ({0: 50, 1: 60}, None, 1, 1),
        ({0: 50, 1: 900}, None, 1, 1),
        ({0: 50, 1: 60}, None, None, None),
        ({0: 50}, None, None, 0),
        ({0: 900, 1: 900}, None, 1, None),
        ({}, None, None, None),
    ],
    ids=[
        "the main thread gave it up",
        "that one, whichever burns the processor",
        "the main thread did not run: the GIL's holder",
        "though that one is not overdue itself",
        "any of them",
        "the only one",
        "none is overdue",
        "none",
    ],
)
def test_the_slot_that_keeps_a_process_from_ending(
    dues: dict[int, int], judged: int | None, gil_holder: int | None, expected: int | None
) -> None:
    found = stuck(slots(dues, judged=judged), gil_holder, now=100)
    assert (found and found.index) == expected


@pytest.mark.process
def test_the_thread_that_uses_the_cpu_is_found_in_another_process() -> None:
    reader, writer = os.pipe()

    def work() -> None:
        def burn() -> None:
            os.write(writer, f"{threading.get_native_id()}\n".encode())
            while True:
                pass

        waits = threading.Thread(target=signal.pause, daemon=True)
        waits.start()
        os.write(writer, f"{waits.native_id}\n".encode())
        burn()

    with forked(work) as pid:
        os.close(writer)
        with os.fdopen(reader) as lines:
            running = dict(enumerate([int(lines.readline()), int(lines.readline())]))
        before, at = cpu_seconds(pid), time.monotonic()
        assert set(running.values()) <= set(before)

        def found() -> bool:
            return gil_holder(before, cpu_seconds(pid), time.monotonic() - at, running) == 1

        eventually(lambda: time.monotonic() > at + 0.2 and found(), 10)


@pytest.mark.process
def test_nothing_is_known_of_a_process_that_is_gone() -> None:
    with forked(signal.pause) as pid:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert cpu_seconds(pid) == {} and rss_bytes(pid) == 0
        assert pid_state(pid) is PidState.GONE


def test_a_process_that_cannot_be_looked_at_does_not_count_as_gone() -> None:
    """Its commands would be released while they run."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        found = pid_state(os.getpid()), cpu_seconds(os.getpid())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert found == (PidState.RUNNING, {})


@pytest.mark.process
def test_a_process_counts_as_stopped_only_if_a_signal_has_stopped_it() -> None:
    with forked(signal.pause) as pid:
        assert pid_state(pid) is PidState.RUNNING
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: pid_state(pid) is PidState.STOPPED)
        os.kill(pid, signal.SIGCONT)
        eventually(lambda: pid_state(pid) is PidState.RUNNING)
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert pid_state(pid) is PidState.GONE, "a zombie is"
