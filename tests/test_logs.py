"""One event, one line, whole or not at all; and no thread waits for its reader."""

import logging
import logging.config
import os
import re
import resource
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from log_processes import ended, logged, parsed, with_stderr

from cmdbus import logs
from cmdbus.exits import ExitStatus
from cmdbus.log_formats import JsonFormatter, TextFormatter
from cmdbus.logs import StderrHandler, let_handlers_wait, set_up
from cmdbus.printable import printable

logger = logging.getLogger("cmdbus.test_logs")


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
    [event] = in_json(capfd, lambda: logger.info("line", extra={"level": 3, "time": 0}))
    assert event["level"] == "info" and event["time"] != 0


def test_a_traceback_is_one_whole_line_in_json(capfd: pytest.CaptureFixture[str]) -> None:
    def log() -> None:
        try:
            raise ValueError("first\nsecond")
        except ValueError:
            logger.exception("it failed\nbadly")

    [event] = in_json(capfd, log)
    assert event["message"] == "it failed\nbadly"
    assert event["traceback"].startswith("Traceback (most recent call last):\n")
    assert event["traceback"].endswith("ValueError: first\nsecond")


@pytest.mark.parametrize("line", ["grün", "\udc80", "\0\x1b[31m", "😀"])
def test_any_text_can_be_logged(capfd: pytest.CaptureFixture[str], line: str) -> None:
    [event] = in_json(capfd, lambda: logger.info("%s", line))
    assert event["message"] == line
    with logging_to_stderr(TextFormatter()):
        logger.info("%s", line)
    assert capfd.readouterr().err.endswith(f"{printable(line)}\n")


def test_a_stack_that_is_asked_for_is_in_json_too(capfd: pytest.CaptureFixture[str]) -> None:
    [event] = in_json(capfd, lambda: logger.info("line", stack_info=True))
    assert event["stack"].startswith("Stack (most recent call last):\n")


def test_what_json_lacks_is_given_as_text(capfd: pytest.CaptureFixture[str]) -> None:
    circle: list[object] = []
    circle.append(circle)

    def log() -> None:
        for what in (float("nan"), circle, {(1, 2): 3}):
            logger.info("line", extra={"what": what})

    events = in_json(capfd, log)
    assert [event["message"] for event in events] == ["line"] * 3
    assert [event["what"] for event in events] == ["nan", "[[...]]", "{(1, 2): 3}"]


def test_a_line_that_cannot_be_formatted_names_its_place_in_the_code_and_its_command(
    capfd: pytest.CaptureFixture[str],
) -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError

    def log() -> None:
        logger.info("%d", "no number", extra={"command_id": "c1", "attempt": 2})
        logger.info("%s", Broken())
        logger.info("line", extra={"what": Broken()})
        logger.info("and on it goes")

    *broken, last = in_json(capfd, log)
    assert len(broken) == 3
    for event in broken:
        assert event["level"] == "error" and __file__ in event["message"]
    assert (broken[0]["command_id"], broken[0]["attempt"]) == ("c1", 2)
    assert last["message"] == "and on it goes"


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

    assert [event["message"] for event in logged(run)] == ["after dictConfig", "after basicConfig"]


@pytest.mark.process
def test_a_line_of_ours_also_reaches_the_applications_handlers_and_stderr_once() -> None:
    def run() -> None:
        given = logging.StreamHandler(sys.__stderr__)
        given.setFormatter(JsonFormatter())
        logger.info("before")
        logging.getLogger("library").info("of a library")
        logging.getLogger().addHandler(given)
        logger.info("after")

    messages = [event["message"] for event in logged(run)]
    assert messages == ["before", "of a library", "after", "after"]


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

    messages = [event["message"] for event in logged(run)]
    [report] = [message for message in messages if not message.isdigit()]
    assert "application's logging hangs" in report
    assert [message for message in messages if message.isdigit()] == list("01234")


@pytest.mark.process
def test_a_thread_that_keeps_the_lock_of_our_handler_keeps_no_line_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "_LOCK_SECONDS", 0.01)

    def run() -> None:
        own = logging.getLogger("cmdbus").handlers[0]
        keeper = threading.Thread(target=own.acquire)
        keeper.start()
        keeper.join()
        logger.info("first")
        logger.info("second")

    assert [event["message"] for event in logged(run)] == ["first", "second"]


@pytest.mark.process
def test_the_applications_handlers_get_the_last_lines_of_a_process_too() -> None:
    def run() -> None:
        let_handlers_wait()
        given = logging.StreamHandler(sys.__stderr__)
        given.setFormatter(JsonFormatter())
        logging.getLogger().addHandler(given)
        logging.getLogger("library").info("of a library")
        logger.info("of the bus")

    messages = [event["message"] for event in logged(run)]
    assert messages == ["of a library"] * 2 + ["of the bus"] * 2


@pytest.mark.process
def test_a_line_is_written_whatever_number_the_descriptor_has() -> None:
    """Also above those that select() knows."""

    def run() -> None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        logging.config.dictConfig(
            {"version": 1, "root": {"handlers": []}}
        )  # closes that of the bus
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
        logger.info("not line")
        logger.warning("line")
        after = len(list(Path("/proc/self/fd").iterdir()))
        logger.warning("%s more files", after - before)

    assert [event["message"] for event in logged(run)] == ["first", "line", "0 more files"]


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

    events = logged(run)
    reports = [e for e in events if "the application's logging has failed" in e["message"]]
    assert len(reports) == 1
    assert [e["message"] for e in events if e not in reports] == ["first", "second"]
    assert {e.get("command_id") for e in events} == {7, None}


@pytest.mark.process
def test_logging_that_is_disabled_altogether_leaves_ours_enabled() -> None:
    def run() -> None:
        logging.disable(logging.CRITICAL)
        logger.error("line")
        logger.debug("below the level")

    assert [event["message"] for event in logged(run)] == ["line"]
