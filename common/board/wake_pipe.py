"""Pipes of bytes without a meaning, shared by a node's processes: a byte wakes whoever reads it.

One byte, one reader. Nobody ever blocks: a wire that is full drops what is put, because
what is in it already wakes as many as there are.
"""

import fcntl
import os
import select
import sys
import termios
from collections.abc import Iterable
from contextlib import suppress

_COUNT_BYTES = 4


class WakePipe:
    """Made before the fork by whoever shares it."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def descriptors(self) -> tuple[int, int]:
        return self._reader, self._writer

    def fileno(self) -> int:
        """To wait until there is a byte; another may take it first."""
        return self._reader

    def put(self) -> None:
        """About the capacity: two who put at once may exceed it by one."""
        if self.pending < self._capacity:
            with suppress(BlockingIOError):
                os.write(self._writer, b"!")

    def take(self) -> bool:
        """A byte that is ours now, if there is one. It is a duty: look, or put it back."""
        try:
            return bool(os.read(self._reader, 1))
        except BlockingIOError:
            return False

    def drain(self) -> None:
        while self.take():
            pass

    @property
    def pending(self) -> int:
        count = fcntl.ioctl(self._reader, termios.FIONREAD, bytes(_COUNT_BYTES))
        return int.from_bytes(count, sys.byteorder)

    def close(self) -> None:
        """A thread that still uses it gets an OSError, and never the descriptor's next owner."""
        reader, writer = self._reader, self._writer
        self._reader = self._writer = -1
        os.close(reader)
        os.close(writer)


def wait_for(pipes: Iterable[WakePipe], seconds: float) -> None:
    """Until there is a byte on one of them, or the time is over."""
    poll = select.poll()
    for pipe in pipes:
        poll.register(pipe, select.POLLIN)
    poll.poll(None if seconds == float("inf") else max(0.0, seconds) * 1000)
