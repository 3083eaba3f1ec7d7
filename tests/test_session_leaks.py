"""Nothing of a handler's session is there for the next command."""

import psycopg
import pytest
from handlers import (
    ONCE,
    handling,
    leave_effect,
    running,
)
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader

from cmdbus import Command, CommandBus, Context, InvalidOperationError

notices: list[object] = []


def dirty(connection: psycopg.Connection) -> None:
    connection.execute("SET work_mem = '77MB'")
    connection.execute("SET search_path = pg_catalog")
    connection.execute("LISTEN gossip")
    connection.execute("SELECT pg_advisory_lock(4711)")
    connection.execute("CREATE TEMP TABLE scratch (a int)")
    connection.execute("CREATE SEQUENCE IF NOT EXISTS public.numbers")
    connection.execute("SELECT nextval('public.numbers')")
    connection.execute("DECLARE c CURSOR WITH HOLD FOR SELECT 1")
    connection.execute("PREPARE twice AS SELECT 2")
    connection.execute('PREPARE "a ""quoted"" näme" AS SELECT 2')
    connection.execute("SET ROLE pg_monitor")
    connection.row_factory = dict_row  # type: ignore[assignment]
    connection.prepare_threshold = None
    connection.prepared_max = 1
    connection.server_cursor_factory = psycopg.ClientCursor  # type: ignore[assignment]
    connection.adapters.register_loader("int4", TextLoader)
    connection.add_notice_handler(notices.append)


def state(connection: psycopg.Connection) -> list[object]:
    before = len(notices)
    connection.execute("DO $$ BEGIN RAISE NOTICE 'heard'; END $$")
    return [
        len(notices) - before,
        connection.prepare_threshold,
        connection.prepared_max,
        connection.server_cursor_factory,
        connection.execute("SELECT 1::int4").fetchone(),
    ] + [
        connection.execute(query).fetchall()
        for query in (
            "SELECT current_setting('work_mem'), current_user, current_setting('search_path')",
            "SELECT pg_listening_channels()",
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
            "SELECT to_regclass('scratch')::text",
            "SELECT name FROM pg_cursors WHERE name = 'c'",
            "SELECT name FROM pg_prepared_statements WHERE from_sql",
        )
    ]


@pytest.mark.parametrize("end", ["returns", "raises", "COMMIT"])
def test_nothing_of_a_session_leaks_to_the_next_command(
    dsn: str, bus: CommandBus, end: str
) -> None:
    states: list[object] = []

    def look(command: Command, context: Context) -> None:
        states.append(state(context.connection))

    def dirty_(command: Command, context: Context) -> None:
        dirty(context.connection)
        if end == "COMMIT":
            context.connection.execute("COMMIT")
        if end == "raises":
            raise ValueError

    registry = handling(look, "Look")
    registry.register("payments", "Dirty", dirty_, retry=ONCE)
    with running(dsn, registry, concurrency=1):
        for type_ in ("Look", "Dirty", "Look"):
            bus.wait("payments", bus.send("payments", type_))
    assert states[0] == states[1]


def test_a_connection_is_not_used_after_its_handler(dsn: str, bus: CommandBus) -> None:
    contexts: list[Context] = []

    def debit(command: Command, context: Context) -> None:
        leave_effect(command, context)
        contexts.append(context)

    with running(dsn, handling(debit)):
        bus.wait("payments", bus.send("payments", "Debit"))
        with pytest.raises(InvalidOperationError, match="was used after the handler returned"):
            _ = contexts[0].connection


def test_a_session_that_a_handler_has_spoilt_is_dropped(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    """The statements that the driver has prepared are gone, which it does not notice."""

    def spoil(command: Command, context: Context) -> None:
        context.connection.execute("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$")

    with running(dsn, handling(spoil, "Spoil", retry=ONCE), concurrency=1):
        for _ in range(10):  # so that the driver prepares the statements of a step
            bus.wait("payments", bus.send("payments", "Noop"))
        spoilt = bus.send("payments", "Spoil")
        later = [bus.send("payments", "Noop") for _ in range(3)]
        assert bus.wait("payments", spoilt).status == "COMPLETED"
        for command_id in later:
            record = bus.wait("payments", command_id)
            assert (record.status, record.attempts) == ("COMPLETED", 1)
    assert caplog.text.count("a round trip failed (prepared statement") == 1
