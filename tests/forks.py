"""Forked processes of a test."""

import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def forked(run: Callable[[], object]) -> Iterator[int]:
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
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def result_of_child(say: Callable[[], str], fork: Callable[[], int] = os.fork) -> str:
    """What it returns in a child."""
    reader, writer = os.pipe()
    pid = fork()
    if pid == 0:
        try:
            answer = say().encode()
            # os.write releases the GIL: in a child that C has forked, that may wait for a thread
            # of the parent.
            ctypes.PyDLL(None).write(writer, answer, len(answer))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as text:
        result = text.read()
    os.waitpid(pid, 0)
    return result
