"""The limits of a handler's transaction: its policy's, and those that it asks for as it runs."""

import threading
import time
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from handlers import handling, run, running

from cmdbus import Command, CommandBus, Context

SHOW = (
    "SELECT current_setting('statement_timeout'),"
    " current_setting('idle_in_transaction_session_timeout')"
)


def limits(connection: psycopg.Connection[Any]) -> tuple[Any, ...] | None:
    return connection.execute(SHOW).fetchone()


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, ("25s", "1min")),
        ({"timeout": 5}, ("25s", "30s")),
        ({"timeout": 300}, ("290s", "325s")),
        ({"statement_timeout": 40}, ("40s", "1min")),
        ({"timeout": 300, "statement_timeout": 2}, ("2s", "325s")),
    ],
)
def test_a_handlers_limits_are_those_of_its_transaction(
    dsn: str, bus: CommandBus, own: dict[str, Any], expected: tuple[str, str]
) -> None:
    [record] = run(dsn, bus, lambda _, context: limits(context.connection), **own)
    assert record.result == list(expected)


def extend_before(context: Context) -> list[object]:
    context.extend(65)
    return [limits(context.connection)]


def extend_open(context: Context) -> list[object]:
    connection = context.connection
    context.extend(65)
    return [limits(connection)]


def extend_in_failing_block(context: Context) -> list[object]:
    connection = context.connection
    inside: list[object] = []
    with suppress(ZeroDivisionError), connection.transaction(), connection.transaction():
        context.extend(65)
        inside.append(limits(connection))
        raise ZeroDivisionError
    return [*inside, limits(connection)]


def extend_after_error(context: Context) -> list[object]:
    connection = context.connection
    with suppress(ZeroDivisionError), connection.transaction():
        with suppress(psycopg.Error):
            connection.execute("SELECT 1/0")
        context.extend(65)
        raise ZeroDivisionError
    return [limits(connection)]


def extend_in_pipeline(context: Context) -> list[object]:
    connection = context.connection
    with connection.pipeline():
        connection.execute("SELECT 1")
        context.extend(65)
    connection.execute("SELECT 1")
    return [limits(connection)]


def extend_elsewhere(context: Context) -> list[object]:
    connection = context.connection
    thread = threading.Thread(target=context.extend, args=(65,))
    thread.start()
    thread.join(10)
    return [limits(connection)]


def extend_beside_statement(context: Context) -> list[object]:
    """While the session is in use: by the thread that uses it, when its statement ends."""
    connection = context.connection
    connection.add_notice_handler(lambda _: context.extend(65))
    connection.execute("DO $$ BEGIN RAISE NOTICE 'inside'; END $$")
    return [limits(connection)]


EXTENSIONS = [
    extend_before,
    extend_open,
    extend_in_failing_block,
    extend_after_error,
    extend_in_pipeline,
    extend_elsewhere,
    extend_beside_statement,
]


def test_extend_moves_both_limits_of_the_transaction(dsn: str, bus: CommandBus) -> None:
    """35 and 65 s are 100 s, of which a statement may take 90; idle 25 s more."""
    registry = handling(lambda command, context: EXTENSIONS[command.data](context))
    with running(dsn, registry, concurrency=1):
        for number, extend in enumerate(EXTENSIONS):
            record = bus.wait("payments", bus.send("payments", "Debit", number))
            assert record.status == "COMPLETED", record
            assert isinstance(record.result, list)
            for found in record.result:
                assert [round(in_seconds(text)) for text in found] == [90, 125], extend.__name__


def test_extend_adds_to_the_time_by_which_a_stall_of_the_process_has_moved_the_deadline(
    dsn: str, bus: CommandBus
) -> None:
    """Otherwise it would take that time away again, and the command could time out immediately."""

    def stall_and_extend(command: Command, context: Context) -> list[float]:
        threads = worker._concurrency.threads
        assert threads is not None
        threads.put_off(1000)
        stalled = context.remaining()
        context.extend(65)
        return [stalled, context.remaining(), threads.next_due() - time.monotonic()]

    with running(dsn, handling(stall_and_extend), concurrency=1) as worker:
        record = bus.wait("payments", bus.send("payments", "Debit"))
    assert record.result == pytest.approx([1035, 1100, 1100], abs=20)


def in_seconds(text: str) -> float:
    for unit, factor in (("ms", 0.001), ("min", 60.0), ("s", 1.0)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    raise AssertionError(text)
