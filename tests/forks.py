"""Forked processes of a test."""

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
            os.write(writer, say().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as text:
        result = text.read()
    os.waitpid(pid, 0)
    return result
