"""A worker's threads: ended, left behind by a handler, and more or fewer while it runs."""

import ctypes
import os
import signal
import threading

import pytest
from eventually import eventually
from handlers import (
    LADDER,
    Gate,
    beside,
    executing_threads,
    handling,
    leave_effect,
    running,
    threads_of_workers,
)
from tracing import ends_other_threads

from cmdbus import Command, CommandBus, Context, InvalidOperationError, SendRequest
from cmdbus.worker import Worker


@ends_other_threads
@pytest.mark.parametrize("whose", ["a thread", "the housekeeping thread"])
def test_a_worker_whose_thread_is_ended_stops_with_an_error(
    dsn: str, bus: CommandBus, whose: str
) -> None:
    """An exception that was sent to a thread, as libraries for timeouts do, ends it anywhere."""

    def end(command: Command, context: Context) -> None:
        others = {*threading.enumerate()} - {threading.current_thread()}
        for thread in others:
            is_housekeeping = thread.name == "worker-housekeeping"
            if thread.name.startswith("worker-") and is_housekeeping == (
                whose == "the housekeeping thread"
            ):
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit)
                )
        bus.send_many([SendRequest("payments", "Noop")] * 10)  # which wakes them

    bus.send("payments", "End")
    with pytest.raises(RuntimeError, match=f"{whose} was ended by SystemExit"):
        Worker(dsn, handling(end, "End"), concurrency=3, timeouts=LADDER).run()
    eventually(lambda: not threads_of_workers())


def test_an_interrupted_worker_leaves_no_threads_that_go_on(dsn: str, bus: CommandBus) -> None:
    """Ctrl-C where no handler of SIGINT calls stop."""

    def interrupt(command: Command, context: Context) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    bus.send("payments", "Interrupt")
    with pytest.raises(KeyboardInterrupt):
        Worker(dsn, handling(interrupt, "Interrupt"), concurrency=2, timeouts=LADDER).run()
    eventually(lambda: not threads_of_workers())
    assert bus.snapshot("payments")["in_progress"] == 0


def test_a_thread_that_a_handler_left_behind_gets_no_connection(dsn: str, bus: CommandBus) -> None:
    refused: list[BaseException] = []
    returned = threading.Event()
    left: list[threading.Thread] = []

    def leave(command: Command, context: Context) -> None:
        def late() -> None:
            returned.wait(10)
            try:
                leave_effect(command, context)
            except InvalidOperationError as error:
                refused.append(error)

        left.append(threading.Thread(target=late))
        left[0].start()

    with running(dsn, handling(leave, "Leave"), concurrency=1):
        bus.wait("payments", bus.send("payments", "Leave"))
        returned.set()
        left[0].join(5)
        assert len(refused) == 1
        assert bus.wait("payments", bus.send("payments", "Noop")).status == "COMPLETED"


def test_a_worker_takes_more_and_fewer_threads_while_it_runs(dsn: str, bus: CommandBus) -> None:
    gate = Gate()
    with running(dsn, handling(gate), concurrency=1) as worker:
        bus.send_many([SendRequest("payments", "Debit")] * 20)
        gate.wait_for(1)
        worker.set_concurrency(5)
        gate.open.set()
        gate.wait_for(19)
        eventually(lambda: gate.inside == 0)
        gate.open.clear()
        worker.set_concurrency(2)
        worker.set_poll_interval(30)
        eventually(lambda: executing_threads() == 2)
        bus.send_many([SendRequest("payments", "Debit")] * 4)
        gate.wait_for(2)
        # What was claimed ahead of a type that was quick until now goes back.
        eventually(lambda: bus.snapshot("payments")["ready"] == 2)
        gate.open.set()
        eventually(lambda: bus.snapshot("payments")["ready"] == 0)
        with pytest.raises(ValueError, match="concurrency must be"):
            worker.set_concurrency(0)
        with pytest.raises(ValueError, match="poll_interval must be"):
            worker.set_poll_interval(0.09)


def test_after_the_first_thread_has_ended_as_surplus_no_other_is_started_for_its_number(
    dsn: str, bus: CommandBus
) -> None:
    """Threads end in any order; those with other numbers count, too."""
    inside, open_first, open_others = threading.Semaphore(0), threading.Event(), threading.Event()

    def debit(command: Command, context: Context) -> None:
        inside.release()
        first = threading.current_thread().name.endswith("-0")
        (open_first if first else open_others).wait(20)

    with running(dsn, handling(debit), concurrency=3) as worker:
        pool = eventually(lambda: worker._concurrency.threads)
        assert pool is not None
        bus.send_many([SendRequest("payments", "Debit")] * 3)
        assert all(inside.acquire(timeout=10) for _ in range(3))
        worker.set_concurrency(2)
        open_first.set()
        eventually(lambda: sorted(thread.number for thread in pool.left()) == [1, 2])
        worker.set_concurrency(2)
        assert sorted(thread.number for thread in pool.left()) == [1, 2]
        open_others.set()


def test_two_changes_of_the_number_of_threads_at_the_same_time_start_no_thread_twice(
    dsn: str, frequent_switches: None
) -> None:
    together = threading.Barrier(2)

    def change(number: int) -> None:
        together.wait(10)
        worker.set_concurrency(number)

    with running(dsn, handling(), concurrency=1) as worker:
        eventually(lambda: executing_threads() == 1)
        for _ in range(15):
            with beside(change, 6):
                change(6)
            worker.set_concurrency(1)
            eventually(lambda: executing_threads() == 1)
