"""Lines of log about a command name it, in text and in JSON; each execution ends with one line."""

import json
import logging
import threading
from typing import Any
from uuid import UUID, uuid4

import pytest
from eventually import eventually
from handlers import ONCE, SOON, Gate, handling, run, running

from cmdbus import (
    BreakerOpenError,
    BusinessRuleError,
    Command,
    CommandBus,
    Context,
    PermanentCommandError,
    TransientCommandError,
)
from cmdbus.command_log import CommandLogger, fields_of, log_about
from cmdbus.log_formats import JsonFormatter, TextFormatter
from cmdbus.logs import _OtherLoggers

logger = logging.getLogger("cmdbus.test_command_logs")

COMMAND, CORRELATION = UUID(int=1), UUID(int=2)
FIELDS = fields_of(COMMAND, "payments", "Debit", CORRELATION, 2)
IN_TEXT = f"command={COMMAND} type=payments/Debit attempt=2 correlation={CORRELATION}"
TRACE = "Traceback (most recent call last):\n  ...\nValueError: no"
ENDED = {"outcome", "duration_seconds", "queue_wait_seconds"}


@pytest.fixture
def last(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.DEBUG, logger.name)
    return lambda: caplog.records[-1]


def in_text(record: logging.LogRecord) -> str:
    """Without the time, the level and the pid."""
    return TextFormatter().format(record).split(maxsplit=3)[3]


def in_json(record: logging.LogRecord) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(JsonFormatter().format(record))
    return {name: event[name] for name in event if name not in ("time", "pid", "thread", "logger")}


def test_a_line_of_the_bus_has_the_command_behind_its_message(last: Any) -> None:
    """Whatever formats it, and its traceback follows."""
    log_about(logger, logging.WARNING, FIELDS, "command failed: %s", "100%", traceback=TRACE)
    assert logging.Formatter().format(last()) == f"command failed: 100% {IN_TEXT}\n{TRACE}"
    indented = TRACE.replace("\n", "\n    ")
    assert in_text(last()) == f"command failed: 100% {IN_TEXT}\n    {indented}"


def test_json_has_the_command_in_fields_and_not_in_the_message(last: Any) -> None:
    log_about(logger, logging.WARNING, FIELDS, "command failed: %s", "100%", traceback=TRACE)
    shown = {"level": "warning", "message": "command failed: 100%", "traceback": TRACE}
    assert in_json(last()) == {**FIELDS, **shown}


def test_a_line_of_a_handler_has_the_command_behind_its_message(last: Any) -> None:
    """Its record keeps the message as it was given, which a test of its own may expect."""
    CommandLogger(logger, FIELDS).info("charging %s", 5)
    assert last().getMessage() == "charging 5"
    assert in_text(last()) == f"charging 5 {IN_TEXT}"
    assert in_json(last()) == {**FIELDS, "level": "info", "message": "charging 5"}


def test_what_a_handler_adds_does_not_rename_its_command(last: Any) -> None:
    added = {"domain": "example.com", "attempt": 7, "amount": 5, "name": "Ann"}
    CommandLogger(logger, FIELDS).info("charging", extra=added)
    shown = {"domain_": "example.com", "attempt_": 7, "amount": 5, "name_": "Ann"}
    assert in_json(last()) == {**FIELDS, **shown, "level": "info", "message": "charging"}
    assert in_text(last()) == f"charging {IN_TEXT}"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, ""),
        ({"attempt": 2, "domain": "payments"}, ""),
        ({"command_id": 7}, " command=7"),
        ({"command_id": 7, "domain": "payments"}, " command=7 domain=payments"),
        ({"command_id": "7\n8"}, " command=7\n    8"),
    ],
)
def test_a_line_says_what_is_known_of_its_command(
    last: Any, fields: dict[str, object], text: str
) -> None:
    logger.info("line", extra=fields)
    assert in_text(last()) == f"line{text}"


def ends(caplog: pytest.LogCaptureFixture, command_id: UUID) -> list[logging.LogRecord]:
    """The lines with which executions of this command have ended."""
    records = [r for r in caplog.records if vars(r).get("command_id") == str(command_id)]
    return [record for record in records if vars(record).keys() >= ENDED]


IN_TROUBLE = "it is in the troubleshooting queue, where an operator must decide"
ERRORS: dict[str, BaseException] = {
    "any": ValueError("no\nmoney"),
    "transient": TransientCommandError("BUSY", "later"),
    "two lines": TransientCommandError("NO\nWAY", "later"),
    "rule": BusinessRuleError("RULE", "not allowed"),
    "permanent": PermanentCommandError("BROKEN", "never"),
}
#: The level of the line, the outcome, the end of the message and that of the traceback.
FAILURES = {
    "any": ("warning", "retry", "ValueError: no money; again in 0.0 s", "\nValueError: no\nmoney"),
    "transient": ("warning", "retry", "BUSY: later; again in 0.0 s", "Error: BUSY: later"),
    "two lines": ("warning", "retry", "NO WAY: later; again in 0.0 s", "Error: NO\nWAY: later"),
    "rule": ("warning", "failed", "RULE: not allowed; not tried again", "Error: RULE: not allowed"),
    "permanent": ("error", "trouble", f"BROKEN: never; {IN_TROUBLE}", "Error: BROKEN: never"),
}


def test_each_execution_ends_with_one_line(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that leads to troubleshooting."""
    correlation = uuid4()
    caplog.set_level(logging.DEBUG, "cmdbus")

    def debit(command: Command, context: Context) -> None:
        if context.attempt == 1:
            raise ERRORS[command.data]

    with running(dsn, handling(debit, retry=SOON)):
        sent = {
            error: bus.send("payments", "Debit", error, correlation_id=correlation)
            for error in ERRORS
        }
        for command_id in sent.values():
            bus.wait("payments", command_id)
    for error, (level, outcome, problem, trace) in FAILURES.items():
        first, *later = map(in_json, ends(caplog, sent[error]))
        after = f"after {first['duration_seconds']:.3f} s"
        assert first == {
            **fields_of(sent[error], "payments", "Debit", correlation, 1),
            **{name: first[name] for name in ENDED},
            "level": level,
            "message": f"command failed in attempt 1 of 3 {after}: {problem}",
            "outcome": outcome,
            "traceback": first["traceback"],
        }
        assert first["traceback"].endswith(trace)
        levels = [(each["level"], each["attempt"], each["outcome"]) for each in later]
        assert levels == [("debug", 2, "completed")] * (outcome == "retry")


def test_a_completion_is_a_line_at_debug_with_its_times_and_none_at_info(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    caplog.set_level(logging.INFO, "cmdbus")
    with running(dsn, handling(gate), concurrency=1):
        unlogged = bus.send("payments", "Debit", delay=0.0)
        late = bus.send("payments", "Noop", priority="low")
        gate.wait_for(1)
        gate.open.set()
        bus.wait("payments", late)
        assert not ends(caplog, unlogged)
        caplog.set_level(logging.DEBUG, "cmdbus")
        logged = bus.send("payments", "Debit")
        bus.wait("payments", logged)
        eventually(lambda: ends(caplog, logged))
    [record] = ends(caplog, logged)
    shown = in_json(record)
    seconds, waited = shown["duration_seconds"], shown["queue_wait_seconds"]
    assert 0 < seconds < 10 and 0 <= waited < 10
    assert shown["message"] == f"command completed in {seconds:.3f} s; it had waited {waited:.3f} s"
    assert (shown["level"], shown["outcome"], shown["attempt"]) == ("debug", "completed", 1)


def test_an_execution_that_is_not_charged_ends_with_a_line_at_debug(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    ran = list[int]()
    caplog.set_level(logging.DEBUG, "cmdbus")

    def debit(command: Command, context: Context) -> None:
        ran.append(context.attempt)
        if len(ran) == 1:
            context.again()
        if len(ran) == 2:
            raise BreakerOpenError("stripe", 0.0)

    [record] = run(dsn, bus, debit)
    first, second, third = map(in_json, ends(caplog, record.command_id))
    assert [(end["level"], end["attempt"]) for end in (first, second, third)] == [("debug", 1)] * 3
    outcomes = [end["outcome"] for end in (first, second, third)]
    assert outcomes == ["interrupted", "interrupted", "completed"]
    assert first["message"].startswith("command was given back by its handler after ")
    assert second["message"].startswith("command was interrupted after ")
    assert "BREAKER_OPEN: " in second["message"]


def test_a_timeout_is_logged_with_the_stack_of_its_handler(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    over = threading.Event()

    def hang(command: Command, context: Context) -> None:
        over.wait(20)

    with running(dsn, handling(hang, retry=ONCE, timeout=0.4), concurrency=1):
        sent = bus.send("payments", "Debit")
        bus.wait("payments", sent)
        eventually(lambda: ends(caplog, sent))
        over.set()
    [record] = ends(caplog, sent)
    assert "TIMEOUT: gave up after 0.4 s" in record.getMessage()
    assert "in hang\n" in str(record.exc_text)


def test_a_command_that_is_never_called_ends_with_one_line_too(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    def handle(command: Command[int], context: Context) -> None:
        pass

    registry = handling()
    registry.register("payments", "Typed", handle)
    with running(dsn, registry, concurrency=1):
        sent = bus.send("payments", "Typed", "no number")
        bus.wait("payments", sent)
    [record] = ends(caplog, sent)
    assert record.levelname == "ERROR"
    message = in_json(record)["message"]
    assert message.startswith("command is in the troubleshooting queue, where an operator must ")
    assert "PAYLOAD_INVALID" in message


def test_the_lines_of_a_handler_and_of_its_end_name_it_alike(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "cmdbus")

    def debit(command: Command, context: Context) -> None:
        context.log.info("debiting")

    [record] = run(dsn, bus, debit)
    lines = [r for r in caplog.records if vars(r).get("command_id") == str(record.command_id)]
    about = fields_of(record.command_id, "payments", "Debit", record.command_id, 1)
    assert [{name: vars(line)[name] for name in about} for line in lines] == [about] * 2


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def test_a_line_of_a_library_in_a_handlers_thread_names_the_command_on_stderr(
    dsn: str, bus: CommandBus
) -> None:
    library, plain, named = logging.getLogger("library"), Kept(), Kept()
    handlers = plain, _OtherLoggers(named)  # type: ignore[arg-type]  # in place of the lines

    def debit(command: Command, context: Context) -> None:
        library.warning("calling %s", "a bank", extra={"attempt": 7})

    for handler in handlers:
        library.addHandler(handler)
    try:
        [record] = run(dsn, bus, debit)
        library.warning("outside")
    finally:
        for handler in handlers:
            library.removeHandler(handler)
    about = fields_of(record.command_id, "payments", "Debit", record.command_id, 1)
    inside, outside = (in_json(each) for each in named.records)
    shown = {"level": "warning", "message": "calling a bank"}
    assert inside == {**about, **shown, "attempt_": 7}
    assert outside == {"level": "warning", "message": "outside"}
    assert in_json(plain.records[0]) == {**shown, "attempt": 7}
