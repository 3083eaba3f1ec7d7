"""The files to which processes write their stacks: opened and read without waiting, and within a
bound, whatever lies at their place: a pipe, or a file that has grown without end."""

import os
import stat
from contextlib import suppress
from pathlib import Path

#: Bytes of a file that are read at most: its end, with the latest stacks. One that has more is
#: emptied before others are written.
MAX_BYTES = 1_000_000


def open_stacks(path: Path) -> int:
    """A descriptor of the emptied file, to write to; OSError if there can be none."""
    # Appends: it may be emptied meanwhile.
    return open_ordinary(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)


def make_room(path: Path) -> None:
    """Before stacks are asked for: else those of months would fill the disk."""
    if size_of(path) > MAX_BYTES:
        with suppress(OSError):
            os.close(open_ordinary(path, os.O_WRONLY | os.O_TRUNC))


def size_of(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def read_stacks(path: Path, since: int = 0) -> str:
    """The text from the byte `since` on; all of it if the file has been emptied meanwhile. Empty if
    the file cannot be read."""
    with suppress(OSError):
        descriptor = open_ordinary(path, os.O_RDONLY)
        try:
            size = os.fstat(descriptor).st_size
            begin = max(since if since <= size else 0, size - MAX_BYTES)
            return os.pread(descriptor, size - begin, begin).decode(errors="replace").strip()
        finally:
            os.close(descriptor)
    return ""


def open_ordinary(path: Path, flags: int) -> int:
    """A descriptor; OSError if the file cannot be opened, or is none."""
    # Without O_NONBLOCK, a pipe of this name would make us wait for its other end.
    quick = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags | quick, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "it is no ordinary file")
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
