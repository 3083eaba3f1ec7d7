"""One event for each failed attempt, with its command and without its data."""

import logging
import re
from typing import Any

import psycopg
import pytest
import sentry_sdk
from dead_workers import dead, rescued
from eventually import eventually
from handlers import ONCE, Function, handling, running
from pydantic import BaseModel
from sentries import sentry
from sqlalchemy import text

from cmdbus import (
    Command,
    CommandBus,
    Context,
    PermanentCommandError,
    RetryPolicy,
    TransientCommandError,
)
from cmdbus.sentry import CmdbusIntegration
from cmdbus.testing import CommandTester

#: Not as they are in the source, of which events show some lines.
SECRET, PASSWORD = "-".join(["4111", "1111"]), "".join(["hunter", "2"])
DATA = {"card": SECRET, "password": PASSWORD, "amounts": [*range(100)], "note": "x" * 9_000}


def fail(command: Command, context: Context) -> None:
    card = command.data["card"]
    try:
        command.data["balance"]
    except KeyError as error:
        raise ValueError(f"refused a card of {len(card)} digits") from error


def failed(
    dsn: str, bus: CommandBus, function: Function = fail, data: Any = DATA, **options: Any
) -> None:
    """Sends a command, and executes it once."""
    bus.send("payments", "Debit", data)
    CommandTester(dsn).run_commands(handling(function, **options), raises=False)


def test_each_failed_attempt_is_one_event_that_describes_it(dsn: str, bus: CommandBus) -> None:
    """With the real log: it says at the level of an error that a command is in troubleshooting."""
    with sentry() as taken, running(dsn, handling(fail, retry=RetryPolicy(2, (0.01,)))):
        correlation_id = bus.send("payments", "Noop", {})
        command_id = bus.send("payments", "Debit", DATA, correlation_id=correlation_id, priority=3)
        eventually(lambda: bus.troubleshooting.count("payments") == 1)
        eventually(lambda: len(taken.events) == 2)
    first, second = taken.events
    assert [first["level"], second["level"]] == ["warning", "error"]
    assert [each["tags"]["outcome"] for each in taken.events] == ["retry", "troubleshooting"]
    assert first["transaction"] == "payments/Debit"
    assert first["fingerprint"] == ["cmdbus", "payments", "Debit", "ValueError"]
    assert first["tags"] == {
        "domain": "payments",
        "command_type": "Debit",
        "command_id": str(command_id),
        "attempt": 1,
        "outcome": "retry",
        "error_code": "ValueError",
    }
    about = second["contexts"]["command"]
    assert about["attempt"] == about["max_attempts"] == 2
    assert about["correlation_id"] == str(correlation_id)
    assert (about["priority"], about["reply_to"]) == (3, None)
    assert re.fullmatch(r".+:\d+", about["worker"])
    cause, error = first["exception"]["values"]
    assert (cause["type"], error["type"]) == ("KeyError", "ValueError")
    assert error["value"] == "refused a card of 9 digits"
    assert error["mechanism"]["type"] == "cmdbus" and not error["mechanism"]["handled"]
    *outer, innermost = error["stacktrace"]["frames"]
    assert (innermost["function"], innermost["in_app"]) == ("fail", True)
    assert outer and not any(frame["in_app"] for frame in outer)


def test_the_code_of_an_error_makes_its_issue(dsn: str, bus: CommandBus) -> None:
    def refuse(command: Command, context: Context) -> None:
        raise PermanentCommandError("NO_ACCOUNT", "there is none")

    with sentry() as taken:
        failed(dsn, bus, refuse)
    [event] = taken.events
    assert event["fingerprint"] == ["cmdbus", "payments", "Debit", "NO_ACCOUNT"]
    assert event["level"] == "error"


class Debit(BaseModel):
    card: int


def read(command: Command[Debit], context: Context) -> None: ...


def validate(command: Command, context: Context) -> None:
    Debit.model_validate(command.data)


def validate_in_a_group(command: Command, context: Context) -> None:
    try:
        validate(command, context)
    except ValueError as error:
        raise ExceptionGroup("two at once", [error, ValueError("another")]) from None


def capture(command: Command, context: Context) -> None:
    """In all the ways in which an application does so."""
    card = command.data["card"]
    sentry_sdk.capture_message("first")
    try:
        len(card) / 0
    except ZeroDivisionError as error:
        sentry_sdk.capture_exception(error)
        logging.getLogger("shop").exception("second")
    logging.getLogger("shop").error("third", stack_info=True)
    fail(command, context)


def send_it_again(command: Command, context: Context) -> None:
    CommandBus("host=/nowhere").send("payments", "Debit", command.data)


def convert(command: Command, context: Context) -> None:
    context.connection.execute("SELECT %s::int", (command.data["card"],))


def insert_twice(command: Command, context: Context) -> None:
    context.connection.execute("CREATE TABLE cards (card text UNIQUE)")
    cards = [command.data["card"]] * 2
    try:
        context.connection.execute("INSERT INTO cards SELECT unnest(%s::text[])", (cards,))
    except psycopg.Error as error:
        raise RuntimeError(f"the card was not kept: {error}") from error


def divide(command: Command, context: Context) -> None:
    context.session.execute(text("SELECT 1 / (length(:card) - 9)"), command.data)


@pytest.mark.parametrize(
    "function",
    [
        *[fail, read, validate, validate_in_a_group, capture, send_it_again, convert],
        *[insert_twice, divide],
    ],
)
def test_nothing_of_the_data_is_in_any_event(function: Function, dsn: str, bus: CommandBus) -> None:
    with sentry(attach_stacktrace=True, traces_sample_rate=1.0) as taken:
        bus.send("payments", "Debit", DATA, headers={"note": SECRET})
        registry = handling(function, retry=ONCE)
        [done] = CommandTester(dsn).run_commands(registry, raises=False)
    assert done.error is not None and taken.events
    assert SECRET not in taken.text and PASSWORD not in taken.text


def test_an_error_of_a_send_elsewhere_shows_nothing_of_its_data(bus: CommandBus) -> None:
    with sentry() as taken:
        try:
            bus.send("payments", "no type", {"card": SECRET})
        except ValueError as error:
            sentry_sdk.capture_exception(error)
    [event] = taken.events
    *_, innermost = event["exception"]["values"][0]["stacktrace"]["frames"]
    assert not innermost["in_app"] and "vars" not in innermost
    assert SECRET not in taken.text


def test_payloads_are_sent_if_asked_for_and_bounded(dsn: str, bus: CommandBus) -> None:
    with sentry(CmdbusIntegration(send_payloads=True)) as taken:
        failed(dsn, bus)
    [event] = taken.events
    data = event["extra"]["data"]
    assert data["card"] == SECRET and data["password"] != PASSWORD
    assert len(data["note"]) < 5_000
    *outer, innermost = event["exception"]["values"][-1]["stacktrace"]["frames"]
    assert innermost["vars"]["card"] == f"'{SECRET}'"
    assert not any("vars" in frame for frame in outer)


def test_a_handler_that_times_out_is_an_event_with_its_stack_and_its_scope(
    dsn: str, bus: CommandBus
) -> None:
    """One hangs until there is an event, and one ends at its timeout."""

    def hang(command: Command, context: Context) -> None:
        sentry_sdk.set_tag("shop", "berlin")
        eventually(lambda: context.canceled and (command.data["ends"] or taken.events), 20)
        raise ConnectionError("the bank has hung up")

    with sentry() as taken, running(dsn, handling(hang, retry=ONCE, timeout=0.4)):
        sent = [bus.send("payments", "Debit", DATA | {"ends": ends}) for ends in (True, False)]
        eventually(lambda: len(taken.events) == 2)
    assert {event["tags"]["command_id"] for event in taken.events} == {*map(str, sent)}
    for event in taken.events:
        [error] = event["exception"]["values"]
        assert (error["type"], event["level"]) == ("TIMEOUT", "error")
        assert "hang" in {frame["function"] for frame in error["stacktrace"]["frames"]}
        assert event["tags"]["shop"] == "berlin"
        assert event["contexts"]["command"]["worker"]
    assert SECRET not in taken.text


def test_what_cannot_be_committed_is_an_event(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    connection.execute("CREATE TABLE once (id text, UNIQUE (id) DEFERRABLE INITIALLY DEFERRED)")

    def insert(command: Command, context: Context) -> None:
        cards = [command.data["card"]] * 2
        context.connection.execute("INSERT INTO once SELECT unnest(%s::text[])", (cards,))

    with sentry() as taken:
        failed(dsn, bus, insert)
    [event] = taken.events
    [error] = event["exception"]["values"]
    assert error["type"] == event["tags"]["error_code"] == "UniqueViolation"
    assert error["value"].endswith('constraint "once_id_key"') and SECRET not in taken.text
    assert event["contexts"]["command"]["max_attempts"] == 3


def test_a_command_that_has_ended_its_process_is_an_event(dsn: str, bus: CommandBus) -> None:
    """Of the steward's."""
    command_id = bus.send("payments", "Debit", DATA)
    with sentry() as taken, dead(dsn) as gone:
        [claim] = gone.claim(1)
        gone.take(claim)
        gone.start(claim)
        gone.run(claim, 0)
        error = TransientCommandError("CRASHED", "signal 11", {"stack": "somewhere"})
        rescued(dsn, gone.death({claim: error}))
    [event] = taken.events
    assert event["fingerprint"] == ["cmdbus", "payments", "Debit", "CRASHED"]
    assert event["tags"]["command_id"] == str(command_id)
    assert (event["level"], event["extra"]) == ("warning", {"stack": "somewhere"})
