"""Child processes that log to a stderr of their own, and what arrives there."""

import fcntl
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cmdbus.exits import ExitStatus
from cmdbus.logs import set_up
from cmdbus.supervisor.children import Child, fork, wait

SMALLEST_PIPE = 4096


def parsed(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def with_stderr(run: Callable[[], None], stderr: int, format: str = "json") -> Child:
    def child() -> int:
        os.dup2(stderr, 2)
        set_up(format, "info")
        run()
        return 0

    return fork(child, close=[])


def ended(child: Child, within: float = 20.0) -> ExitStatus:
    """It is killed if it has not ended by then."""
    wait([child.descriptor], within)
    child.send(signal.SIGKILL)
    wait([child.descriptor], 5)
    exit_status = child.reap()
    assert exit_status is not None
    return exit_status


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    """Of the smallest capacity that there is."""
    ends = os.pipe()
    fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, SMALLEST_PIPE)
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


def read_all(reader: int) -> str:
    """What is in a pipe now."""
    os.set_blocking(reader, False)
    found = b""
    while True:
        try:
            found += os.read(reader, 65536)
        except BlockingIOError:
            return found.decode()


def logged(run: Callable[[], None]) -> list[dict[str, Any]]:
    """What a child logs whose lines are all read."""
    with pipe() as (reader, writer):
        assert ended(with_stderr(run, writer)) == ExitStatus(0, 0)
        return parsed(read_all(reader))
