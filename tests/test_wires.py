"""Bytes without a meaning: one byte, one reader, and no process ever waits to put one."""

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cmdbus.board.wake_pipe import WakePipe, wait_for
from cmdbus.exits import ExitStatus
from cmdbus.supervisor.children import fork, wait


@contextmanager
def wire(capacity: int) -> Iterator[WakePipe]:
    made = WakePipe(capacity)
    try:
        yield made
    finally:
        made.close()


def test_each_byte_is_taken_once() -> None:
    with wire(4) as pipe:
        assert not pipe.take()
        pipe.put()
        pipe.put()
        assert pipe.pending == 2
        assert [pipe.take() for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("capacity", [1, 4, 8])
def test_what_is_put_into_a_full_one_is_dropped(capacity: int) -> None:
    """No block, no growth; what is in it wakes as many as there are."""
    with wire(capacity) as pipe:
        for _ in range(5_000):
            pipe.put()
        assert pipe.pending == capacity
        assert pipe.take()
        pipe.put()
        pipe.put()
        assert pipe.pending == capacity


def test_one_as_wide_as_the_pipe_itself_does_not_block_either() -> None:
    with wire(10_000_000) as pipe:
        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, 4096)
        for _ in range(5_000):
            pipe.put()
        assert pipe.pending == 4096


def test_drained_it_is_empty() -> None:
    with wire(8) as pipe:
        for _ in range(8):
            pipe.put()
        pipe.drain()
        pipe.drain()
        assert pipe.pending == 0


def test_a_wait_ends_with_a_byte_on_any_or_at_its_time() -> None:
    with wire(1) as first, wire(1) as second:
        wait_for([first, second], 0.001)
        wait_for([first, second], -5)
        second.put()
        wait_for([first, second], 20)
        wait_for([first, second], float("inf"))
        assert second.pending == 1, "waiting takes nothing"


def test_an_exec_leaves_it_closed() -> None:
    with wire(1) as pipe:
        assert not os.get_inheritable(pipe.fileno())


@pytest.mark.process
def test_among_many_processes_each_byte_has_one_reader() -> None:
    """The channel is shared, and what one takes the others do not get."""
    count = 500
    with wire(8) as pipe, wire(8) as over:

        def read() -> int:
            taken = 0
            while True:
                wait_for([pipe, over], 20)
                if pipe.take():
                    taken += 1
                elif over.pending:
                    os.write(writer, f"{taken}\n".encode())
                    return 0

        reader, writer = os.pipe()
        children = [fork(read, close=[reader]) for _ in range(3)]
        os.close(writer)
        put = 0
        while put < count:
            if pipe.pending < 8:
                pipe.put()
                put += 1
        over.put()
        with os.fdopen(reader) as counts:
            assert sum(int(line) for line in counts) == count
        for child in children:
            wait([child.descriptor], 10)
            assert child.reap() == ExitStatus(0, 0)


@pytest.mark.process
def test_a_process_killed_while_it_uses_a_pipe_keeps_no_other_from_it() -> None:
    """There is no lock on it."""
    with wire(4) as pipe:

        def hammer() -> int:
            while True:
                pipe.put()
                pipe.take()

        for _ in range(10):
            child = fork(hammer, close=[])
            wait_for([pipe], 10)
            child.send(signal.SIGKILL)
            wait([child.descriptor], 10)
            assert child.reap() == ExitStatus(signal.SIGKILL, 0)
            pipe.drain()
            pipe.put()
            assert pipe.take() and not pipe.take()
