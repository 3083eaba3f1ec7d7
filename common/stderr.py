"""The descriptor that log lines are written to, without a wait for its reader."""

import errno
import fcntl
import os
import select
import socket
import stat

STDERR = 2


#: Bytes that a pipe takes as a whole or not at all.
_CHUNK_BYTES = select.PIPE_BUF


class Stderr:
    """Writes as much as fits at the moment, or raises. Where no write waits, it is one write, so
    that a long line has no line of another process in its middle.

    All processes of a node write to the same pipe and share its flags. So it is opened once more,
    with flags of its own; where that is not possible, its room is checked before each write. It is
    opened at the first write, also after a close: dictConfig closes all handlers.

    A handler may close descriptors, whose numbers the next sessions get: before each line it is
    checked that the number still leads to the same file.
    """

    def __init__(self) -> None:
        self._opened = False
        #: A second descriptor of stderr, and whether writing to it never waits.
        self._own: int | None = None
        self._never_waits = False
        self._socket: socket.socket | None = None
        #: Device and inode.
        self._identity = (0, 0)

    def _open(self) -> None:
        self._opened = True
        try:
            found = os.fstat(STDERR)
            self._identity = (found.st_dev, found.st_ino)
            self._never_waits = stat.S_ISFIFO(found.st_mode)
            if self._never_waits:
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
                self._own = os.open(f"/proc/self/fd/{STDERR}", flags)
            else:
                self._own = fcntl.fcntl(STDERR, fcntl.F_DUPFD_CLOEXEC, STDERR + 1)
            if stat.S_ISSOCK(found.st_mode):
                self._socket = socket.socket(fileno=self._own)
        except OSError:
            pass

    def _leads_to_stderr(self, descriptor: int) -> bool:
        try:
            found = os.fstat(descriptor)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def write(self, data: bytes) -> int:
        if not self._opened:
            self._open()
        if self._own is not None and self._leads_to_stderr(self._own):
            if self._socket is not None:
                return self._socket.send(data, socket.MSG_DONTWAIT)
            if self._never_waits:
                return os.write(self._own, data)
            descriptor = self._own
        elif self._leads_to_stderr(STDERR):
            descriptor = STDERR
        else:
            raise OSError(errno.EBADF, "stderr was closed")
        # Not select(): that knows no descriptor above 1023.
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        if not poll.poll(0):
            raise BlockingIOError
        return os.write(descriptor, data[:_CHUNK_BYTES])

    def close(self) -> None:
        is_ours = self._own is not None and self._leads_to_stderr(self._own)
        if self._socket is not None:
            self._socket.detach()
        if self._own is not None and is_ours:
            os.close(self._own)
        self._own = self._socket = None
        self._opened = False
