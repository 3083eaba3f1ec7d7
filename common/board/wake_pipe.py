"""Pipes shared by a node's processes. Their bytes have no meaning: each byte wakes one reader.

No call blocks but `wait_for`. A full pipe drops a byte: those in it already wake every reader.
A handler may close descriptors, whose numbers other files then get: nothing is waited for on one
of these.
"""

import errno
import fcntl
import os
import select
import sys
import termios
from collections.abc import Iterable
from contextlib import suppress

_COUNT_BYTES = 4


class WakePipe:
    """Made before the fork of the processes that share it."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._status = os.fstat(self._reader)

    def fileno(self) -> int:
        """To wait for a byte, which another process may take first. OSError if one of the numbers
        leads to another file by now."""
        for descriptor in (self._reader, self._writer):
            if not os.path.samestat(os.fstat(descriptor), self._status):
                raise OSError(errno.EBADF, "the descriptor of a pipe was closed and used again")
        return self._reader

    def put(self) -> None:
        """Two calls at the same moment may exceed the capacity by one."""
        if self.pending < self._capacity:
            with suppress(BlockingIOError):
                os.write(self._writer, b"!")

    def take(self) -> bool:
        """Takes a byte, if there is one. The caller must do its work, or put the byte back."""
        if not self.pending:
            return False
        try:
            return bool(os.read(self._reader, 1))
        except BlockingIOError:  # another process has taken it
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
    """Waits for a byte in one of the pipes, at most this long."""
    poll = select.poll()
    for pipe in pipes:
        poll.register(pipe, select.POLLIN)
    poll.poll(None if seconds == float("inf") else max(0.0, seconds) * 1000)
