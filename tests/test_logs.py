"""One event, one line, whole or not at all; and nobody waits for who reads it."""

import errno
import fcntl
import json
import logging
import logging.config
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cmdbus import logs
from cmdbus.exits import ExitStatus
from cmdbus.logs import JsonFormatter, StderrHandler, TextFormatter, let_handlers_wait, set_up
from cmdbus.printable import printable
from cmdbus.supervisor.children import Child, fork, wait

logger = logging.getLogger("cmdbus.test_logs")

_SMALLEST_PIPE = 4096


@contextmanager
def logging_to_stderr(formatter: logging.Formatter) -> Iterator[None]:
    with closing(StderrHandler()) as handler:
        handler.setFormatter(formatter)
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(logging.INFO)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.propagate = True
            logger.setLevel(logging.NOTSET)


def in_json(capfd: pytest.CaptureFixture[str], log: Callable[[], None]) -> list[dict[str, Any]]:
    with logging_to_stderr(JsonFormatter()):
        log()
    return parsed(capfd.readouterr().err)


def parsed(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_line_for_people_has_time_level_process_and_message(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with logging_to_stderr(TextFormatter()):
        logger.warning("worker %s has %s", 3, "left")
    [line] = capfd.readouterr().err.splitlines()
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(rf"{time} WARNING {os.getpid()} worker 3 has left", line)


def test_a_line_for_machines_has_the_same_and_what_was_given_with_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def log() -> None:
        logger.info("%s runs", "Debit", extra={"command_id": 7, "what": object, "attempt": None})

    [event] = in_json(capfd, log)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event.pop("time"))
    assert event == {
        "level": "info",
        "pid": os.getpid(),
        "thread": "MainThread",
        "logger": "cmdbus.test_logs",
        "message": "Debit runs",
        "command_id": 7,
        "what": "<class 'object'>",
        "attempt": None,
    }


def test_what_is_given_with_a_line_does_not_hide_what_every_line_has(
    capfd: pytest.CaptureFixture[str],
) -> None:
    [event] = in_json(capfd, lambda: logger.info("said", extra={"level": 3, "time": 0}))
    assert event["level"] == "info" and event["time"] != 0


def test_a_traceback_is_one_whole_line_in_json(capfd: pytest.CaptureFixture[str]) -> None:
    """Fault row F."""

    def log() -> None:
        try:
            raise ValueError("first\nsecond")
        except ValueError:
            logger.exception("it failed\nbadly")

    [event] = in_json(capfd, log)
    assert event["message"] == "it failed\nbadly"
    assert event["traceback"].startswith("Traceback (most recent call last):\n")
    assert event["traceback"].endswith("ValueError: first\nsecond")


@pytest.mark.parametrize("said", ["grün", "\udc80", "\0\x1b[31m", "😀"])
def test_any_text_can_be_logged(capfd: pytest.CaptureFixture[str], said: str) -> None:
    [event] = in_json(capfd, lambda: logger.info("%s", said))
    assert event["message"] == said
    with logging_to_stderr(TextFormatter()):
        logger.info("%s", said)
    assert capfd.readouterr().err.endswith(f"{printable(said)}\n")


def test_a_line_that_cannot_be_formatted_says_where_it_is(
    capfd: pytest.CaptureFixture[str],
) -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError

    circle: list[object] = []
    circle.append(circle)

    def log() -> None:
        logger.info("%d", "no number")
        logger.info("%s", Broken())
        logger.info("said", extra={"what": Broken()})
        logger.info("said", extra={"what": circle})
        logger.info("and on it goes")

    *broken, last = in_json(capfd, log)
    assert len(broken) == 4
    for event in broken:
        assert event["level"] == "error" and __file__ in event["message"]
    assert last["message"] == "and on it goes"


# Who reads them, and does not.


def with_stderr(run: Callable[[], None], stderr: int, format: str = "json") -> Child:
    def child() -> int:
        os.dup2(stderr, 2)
        set_up(format, "info")
        run()
        return 0

    return fork(child, close=[])


def ended(child: Child, within: float = 20.0) -> ExitStatus:
    """Killed if it has not ended by then: it waits for somebody."""
    wait([child.descriptor], within)
    child.send(signal.SIGKILL)
    wait([child.descriptor], 5)
    exit_status = child.reap()
    assert exit_status is not None
    return exit_status


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    """As narrow as there are, so that it is soon full."""
    ends = os.pipe()
    fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, _SMALLEST_PIPE)
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


@pytest.mark.process
def test_a_pipe_that_nobody_reads_drops_lines_and_later_says_how_many() -> None:
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


@pytest.mark.process
@pytest.mark.parametrize("format", ["json", "text"])
def test_who_reads_may_go_away(format: str) -> None:
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


@pytest.mark.process
def test_a_line_that_was_torn_spoils_no_other() -> None:
    """One is longer than what is left of the pipe."""
    with pipe() as (reader, writer), pipe() as (going_on, go_on):

        def run() -> None:
            logger.info("x" * 3 * _SMALLEST_PIPE)
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


@pytest.mark.process
def test_many_that_write_into_the_last_room_of_a_pipe_do_not_wait_for_each_other() -> None:
    """What has room when one looks may be full when one writes."""
    with pipe() as (reader, writer):

        def run() -> None:
            for _ in range(3_000):
                logger.info("x" * 3_000)

        children = [with_stderr(run, writer) for _ in range(4)]
        for _ in range(300):  # Now and then there is room again, and at last never.
            wait([reader], 10)
            os.read(reader, _SMALLEST_PIPE)
        assert [ended(child, 5) for child in children] == [ExitStatus(0, 0)] * 4


@pytest.mark.process
def test_a_socket_that_nobody_reads_drops_lines_too() -> None:
    """What stderr is under a service manager."""
    ours, theirs = socket.socketpair()

    def run() -> None:
        for _ in range(2_000):
            logger.info("x" * 200)

    with ours, theirs:
        child = with_stderr(run, theirs.fileno())
        assert ended(child) == ExitStatus(0, 0)


@pytest.mark.process
def test_a_full_disk_drops_lines() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(OSError) as caught:
            os.write(full, b"x")
        assert caught.value.errno == errno.ENOSPC
        child = with_stderr(lambda: logger.info("said"), full)
        assert ended(child) == ExitStatus(0, 0)
    finally:
        os.close(full)


@pytest.mark.process
def test_with_stderr_closed_no_other_file_gets_the_log() -> None:
    script = (
        "import os, logging; from cmdbus.logs import set_up;"
        "set_up('text', 'info'); file = os.open('/dev/null', os.O_RDONLY);"
        "logging.info('said'); os._exit(file)"
    )
    command = f'exec "$0" -c "{script}" <&- >&- 2>&-'
    done = subprocess.run(["/bin/sh", "-c", command, sys.executable], timeout=20)
    assert done.returncode > 2, "the first file that is opened is none of the three"


@pytest.mark.process
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
    resolution = [event["message"] for event in parsed(log.read_text())]
    assert resolution == (["before"] if closed == range(2, 100) else ["before", "after"])
    assert not any(file.stat().st_size for file in files)


@pytest.mark.process
@pytest.mark.parametrize(
    "configuration",
    [
        {},
        {"root": {"level": "CRITICAL", "handlers": []}},
        {"loggers": {"cmdbus": {"handlers": []}}},
        {"loggers": {"cmdbus.test_logs": {"handlers": []}}},
    ],
)
def test_an_application_that_configures_logging_does_not_silence_ours(
    configuration: dict[str, Any],
) -> None:
    """Django's default: dictConfig disables all existing loggers and closes all handlers."""

    def run() -> None:
        logging.config.dictConfig({"version": 1, **configuration})
        logger.info("after dictConfig")
        logging.basicConfig(force=True, level="CRITICAL", handlers=[logging.NullHandler()])
        logging.getLogger().handlers.clear()
        logger.info("after basicConfig")
        logger.debug("below the level")

    with pipe() as (reader, writer):
        assert ended(with_stderr(run, writer)) == ExitStatus(0, 0)
        resolution = [event["message"] for event in parsed(read_all(reader))]
    assert resolution == ["after dictConfig", "after basicConfig"]


@pytest.mark.process
def test_a_line_of_ours_also_reaches_the_applications_handlers_and_stderr_once() -> None:
    def run() -> None:
        given = logging.StreamHandler(sys.__stderr__)
        given.setFormatter(JsonFormatter())
        logger.info("before")
        logging.getLogger("theirs").info("also theirs")
        logging.getLogger().addHandler(given)
        logger.info("after")

    with pipe() as (reader, writer):
        assert ended(with_stderr(run, writer)) == ExitStatus(0, 0)
        resolution = [event["message"] for event in parsed(read_all(reader))]
    assert resolution == ["before", "also theirs", "after", "after"]


class Shipping(logging.Handler):
    """To a server that does not answer."""

    def emit(self, record: logging.LogRecord) -> None:
        threading.Event().wait()


@pytest.mark.process
def test_no_thread_waits_for_the_applications_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for ever; that lines are missing there is reported once."""
    monkeypatch.setattr(logs, "_MAX_WAITING", 2)

    def run() -> None:
        let_handlers_wait()
        logging.getLogger().addHandler(Shipping())
        for number in range(5):
            logger.info("%s", number)

    with pipe() as (reader, writer):
        assert ended(with_stderr(run, writer)) == ExitStatus(0, 0)
        messages = [event["message"] for event in parsed(read_all(reader))]
    [report] = [message for message in messages if not message.isdigit()]
    assert "application's logging hangs" in report
    assert [message for message in messages if message.isdigit()] == list("01234")


@pytest.mark.process
def test_the_applications_handlers_get_the_last_lines_of_a_process_too() -> None:
    def run() -> None:
        let_handlers_wait()
        given = logging.StreamHandler(sys.__stderr__)
        given.setFormatter(JsonFormatter())
        logging.getLogger().addHandler(given)
        logging.getLogger("theirs").info("theirs")
        logger.info("ours")

    with pipe() as (reader, writer):
        assert ended(with_stderr(run, writer)) == ExitStatus(0, 0)
        messages = [event["message"] for event in parsed(read_all(reader))]
    assert messages == ["theirs", "theirs", "ours", "ours"]


@pytest.mark.process
def test_a_line_is_written_whatever_number_the_descriptor_has() -> None:
    """Also above those that select() knows."""

    def run() -> None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        logging.config.dictConfig({"version": 1, "root": {"handlers": []}})  # closes ours
        logger.info("from above %s", opened[-1] // 1024)

    with tempfile.TemporaryFile() as stderr:
        assert ended(with_stderr(run, stderr.fileno())) == ExitStatus(0, 0)
        stderr.seek(0)
        assert [event["message"] for event in parsed(stderr.read().decode())] == ["from above 1"]


@pytest.mark.process
def test_setting_up_again_leaves_one_handler_and_no_file() -> None:
    def run() -> None:
        logger.info("first")
        before = len(list(Path("/proc/self/fd").iterdir()))
        set_up("text", "info")
        set_up("json", "warning")
        logger.info("not said")
        logger.warning("said")
        after = len(list(Path("/proc/self/fd").iterdir()))
        logger.warning("%s more files", after - before)

    with pipe() as (reader, writer):
        assert ended(with_stderr(run, writer)) == ExitStatus(0, 0)
        resolution = [event["message"] for event in parsed(read_all(reader))]
    assert resolution == ["first", "said", "0 more files"]


class ShippingDown(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("log shipping is down")


def refuse(record: logging.LogRecord) -> bool:
    raise KeyError(record.name)


def fail_to_make(*arguments: object, **named: object) -> logging.LogRecord:
    raise ZeroDivisionError


@pytest.mark.process
@pytest.mark.parametrize(
    "spoil",
    [
        lambda: logging.getLogger().addHandler(ShippingDown()),
        lambda: logging.getLogger().handlers[0].addFilter(refuse),
        lambda: logging.setLogRecordFactory(fail_to_make),
    ],
    ids=["handler", "filter", "factory"],
)
def test_an_application_whose_logging_raises_does_not_raise_in_ours(
    spoil: Callable[[], None],
) -> None:
    """And an operator reads it once, with the lines themselves."""

    def run() -> None:
        spoil()
        logger.info("first", extra={"command_id": 7})
        logger.info("second")

    with pipe() as (reader, writer):
        assert ended(with_stderr(run, writer)) == ExitStatus(0, 0)
        events = parsed(read_all(reader))
    resolution = [event["message"] for event in events]
    [report] = [each for each in resolution if "the application's logging has failed" in each]
    resolution.remove(report)
    assert resolution == ["first", "second"]
    assert {e.get("command_id") for e in events} == {7, None}


@pytest.mark.process
def test_logging_that_is_disabled_altogether_leaves_ours_enabled() -> None:
    def run() -> None:
        logging.disable(logging.CRITICAL)
        logger.error("said")
        logger.debug("below the level")

    with pipe() as (reader, writer):
        assert ended(with_stderr(run, writer)) == ExitStatus(0, 0)
        assert [event["message"] for event in parsed(read_all(reader))] == ["said"]
