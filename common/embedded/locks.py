"""Locks on files, between processes: the kernel lets go of them should we be killed.

Must never remove the file of a lock: two processes would each hold one of the same name.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cmdbus.clock import time
from cmdbus.errors import EmbeddedError

_POLL_S = 0.02


@contextmanager
def held(path: Path, *, timeout: float) -> Iterator[None]:
    """Hold the exclusive lock on a file."""
    descriptor = open_lock(path)
    try:
        deadline = time.monotonic() + timeout
        while not locked(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise EmbeddedError(
                    f"another process has held {path} for {timeout:g} s: "
                    f"find it with `fuser {path}` and stop it"
                )
            time.sleep(_POLL_S)
        try:
            yield
        finally:
            # Said aloud, since closing is not enough while a forked child has a copy.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def open_lock(path: Path) -> int:
    """A descriptor to lock with; like all of Python's, no program we start inherits it."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def locked(descriptor: int, kind: int) -> bool:
    """Whether the lock could be had at once."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
