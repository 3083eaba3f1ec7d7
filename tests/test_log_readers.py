"""Log lines of a process whose stderr is not read, is full, or is closed: it never waits."""

import errno
import fcntl
import logging
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from log_processes import SMALLEST_PIPE, ended, parsed, pipe, read_all, with_stderr

from cmdbus.exits import ExitStatus
from cmdbus.supervisor.children import wait

logger = logging.getLogger("cmdbus.test_logs")
pytestmark = pytest.mark.process


def test_a_pipe_that_is_not_read_drops_lines_and_later_counts_them() -> None:
    with pipe() as (reader, writer), pipe() as (going_on, go_on):

        def run() -> None:
            for number in range(1_000):
                logger.info("line %s", number)
            os.write(2, b"")
            os.kill(os.getpid(), signal.SIGSTOP)
            os.read(going_on, 1)
            logger.info("the last")

        child = with_stderr(run, writer)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        before = parsed(read_all(reader))
        os.write(go_on, b"!")
        child.send(signal.SIGCONT)
        assert ended(child) == ExitStatus(0, 0)
        notice, last = parsed(read_all(reader))
    assert [event["message"] for event in before] == [f"line {n}" for n in range(len(before))]
    dropped = 1_000 - len(before)
    assert dropped > 900
    assert notice["message"] == f"{dropped} lines of log were dropped before this one"
    assert notice["level"] == "warning"
    assert last["message"] == "the last"


@pytest.mark.parametrize("format", ["json", "text"])
def test_the_reader_of_a_pipe_may_go_away(format: str) -> None:
    """Head -1."""
    reader, writer = os.pipe()

    def run() -> None:
        os.close(reader)
        for number in range(100):
            logger.info("line %s", number)

    child = with_stderr(run, writer, format)
    os.close(reader)
    os.close(writer)
    assert ended(child) == ExitStatus(0, 0)


def test_a_line_that_was_torn_spoils_no_other() -> None:
    """One is longer than what is left of the pipe."""
    with pipe() as (reader, writer), pipe() as (going_on, go_on):

        def run() -> None:
            logger.info("x" * 3 * SMALLEST_PIPE)
            logger.info("dropped")
            os.kill(os.getpid(), signal.SIGSTOP)
            os.read(going_on, 1)
            logger.info("whole")

        child = with_stderr(run, writer)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        beginning = read_all(reader)
        os.write(go_on, b"!")
        child.send(signal.SIGCONT)
        assert ended(child) == ExitStatus(0, 0)
        end, *rest = read_all(reader).split("\n", 1)
    assert "xxx" in beginning and "\n" not in beginning and end == ""
    assert [event["message"] for event in parsed(rest[0])] == [
        "2 lines of log were dropped before this one",
        "whole",
    ]


def test_many_that_write_into_the_last_room_of_a_pipe_do_not_wait_for_each_other() -> None:
    """What has room when one looks may be full when one writes."""
    with pipe() as (reader, writer):

        def run() -> None:
            for _ in range(3_000):
                logger.info("x" * 3_000)

        children = [with_stderr(run, writer) for _ in range(4)]
        os.set_blocking(reader, False)
        with suppress(BlockingIOError):  # All have ended before, while this reader had no CPU.
            for _ in range(300):  # Now and then there is room again, and at last never.
                wait([reader], 1)
                os.read(reader, SMALLEST_PIPE)
        assert [ended(child) for child in children] == [ExitStatus(0, 0)] * 4


def test_long_lines_of_several_processes_do_not_mix() -> None:
    """As tracebacks of a fleet whose database is away: each is more than a pipe takes as a whole
    in any case, and a reader of JSON needs whole lines."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 2**20)
    children = []
    for number in range(4):

        def run(text: str = str(number) * 12 * SMALLEST_PIPE) -> None:
            for _ in range(4):
                logger.warning("%s", text)

        children.append(with_stderr(run, writer))
    assert [ended(child) for child in children] == [ExitStatus(0, 0)] * 4
    os.close(writer)
    with os.fdopen(reader) as lines:
        messages = [event["message"] for event in parsed(lines.read())]
    assert len(messages) == 16 and all(len(set(message)) == 1 for message in messages)


def test_a_socket_that_is_not_read_drops_lines_too() -> None:
    """What stderr is under a service manager."""
    reader, writer = socket.socketpair()

    def run() -> None:
        for _ in range(2_000):
            logger.info("x" * 200)

    with reader, writer:
        child = with_stderr(run, writer.fileno())
        assert ended(child) == ExitStatus(0, 0)


def test_a_full_disk_drops_lines() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(OSError) as caught:
            os.write(full, b"x")
        assert caught.value.errno == errno.ENOSPC
        child = with_stderr(lambda: logger.info("line"), full)
        assert ended(child) == ExitStatus(0, 0)
    finally:
        os.close(full)


def test_with_stderr_closed_no_other_file_gets_the_log() -> None:
    script = (
        "import os, logging; from cmdbus.logs import set_up;"
        "set_up('text', 'info'); file = os.open('/dev/null', os.O_RDONLY);"
        "logging.info('line'); os._exit(file)"
    )
    command = f'exec "$0" -c "{script}" <&- >&- 2>&-'
    done = subprocess.run(["/bin/sh", "-c", command, sys.executable], timeout=20)
    assert done.returncode > 2, "the first file that is opened is none of the three"


@pytest.mark.parametrize("closed", [range(2, 3), range(3, 100), range(2, 100)])
def test_a_number_that_stderr_had_gets_no_line_once_it_is_another_files(
    tmp_path: Path, closed: range
) -> None:
    """A handler may close descriptors, as a daemon does; then sessions get the numbers."""
    log, files = tmp_path / "log", [tmp_path / str(n) for n in range(100)]

    def run() -> None:
        logger.info("before")
        os.closerange(closed.start, closed.stop)
        for file in files:
            os.open(file, os.O_WRONLY | os.O_CREAT)
        logger.info("after")

    with log.open("wb") as stderr:
        assert ended(with_stderr(run, stderr.fileno())) == ExitStatus(0, 0)
    messages = [event["message"] for event in parsed(log.read_text())]
    assert messages == (["before"] if closed == range(2, 100) else ["before", "after"])
    assert not any(file.stat().st_size for file in files)
