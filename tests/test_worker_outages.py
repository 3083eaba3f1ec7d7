"""A server that stops, and sessions that end while commands run: which may be the cause."""

import logging
import os
import select
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal
from uuid import uuid4

import psycopg
import pytest
from eventually import eventually
from fleet import make_effects
from handlers import SOON, await_drained, connect, effects, handling, leave_effect, running
from own_servers import own_server
from psycopg.conninfo import make_conninfo
from queries import keeping, rows

from cmdbus import Command, CommandBus, Context, SendRequest, Timeouts
from cmdbus.database.schema import install
from cmdbus.embedded import EmbeddedPostgres
from cmdbus.retry import MAX_LOSSES

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def server(memory: Path | None) -> Iterator[EmbeddedPostgres]:
    with own_server(memory, durable=True) as server:
        yield server


@pytest.fixture(scope="module")
def installed(server: EmbeddedPostgres) -> str:
    """A database to be copied, with the table of effects."""
    dsn = created(server, "installed", "template0")
    install(dsn)
    make_effects(dsn)
    return "installed"


@pytest.fixture
def dsn(server: EmbeddedPostgres, installed: str) -> Iterator[str]:
    dsn = created(server, f"test_{uuid4().hex[:8]}", installed)
    with keeping(dsn):
        yield dsn


def created(server: EmbeddedPostgres, name: str, template: str) -> str:
    with connect(server.dsn) as admin:
        admin.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
    return make_conninfo(server.dsn, dbname=name)


def losses_of(dsn: str) -> list[int]:
    """Of commands that have ended; none while the server starts."""
    query = "SELECT losses FROM cmdbus.finished UNION ALL SELECT losses FROM cmdbus.troubleshooting"
    with suppress(psycopg.OperationalError):
        return [losses for (losses,) in rows(dsn, query)]
    return []


def kill_server_process_of(connection: psycopg.Connection) -> None:
    """The server then ends all sessions, and starts again."""
    os.kill(connection.info.backend_pid, signal.SIGKILL)


@pytest.mark.parametrize("guilty", [False, True])
def test_only_the_command_whose_session_crashes_the_server_counts_losses(
    dsn: str, bus: CommandBus, guilty: bool
) -> None:
    """The server ends the others with a notice, and not with an error. (A session that is
    busy may end without it, and counts a loss then.)"""
    begun = list[int]()

    def debit(command: Command, context: Context) -> None:
        leave_effect(command, context)
        begun.append(context.attempt)
        if len(begun) <= MAX_LOSSES:
            with connect(dsn) as another:
                kill_server_process_of(context.connection if guilty else another)
            assert select.select([context.connection.fileno()], [], [], 10)[0], "it has ended"

    bus.send("payments", "Debit")
    with running(dsn, handling(debit), concurrency=1):
        eventually(lambda: losses_of(dsn), 30)
    [losses] = losses_of(dsn)
    if guilty:
        assert (losses, effects(dsn)) == (MAX_LOSSES, 0)
    else:
        assert (losses < MAX_LOSSES, effects(dsn)) == (True, 1)
        assert rows(dsn, "SELECT code FROM cmdbus.event") == [("DATABASE_AWAY",)] * MAX_LOSSES


@pytest.mark.parametrize("chained", [True, False])
def test_an_outage_is_recognised_behind_an_error_that_the_handler_makes_of_it(
    dsn: str, bus: CommandBus, chained: bool
) -> None:
    begun = list[int]()

    def debit(command: Command, context: Context) -> None:
        leave_effect(command, context)
        begun.append(context.attempt)
        if len(begun) > 1:
            return
        with connect(dsn) as another:
            kill_server_process_of(another)
        assert select.select([context.connection.fileno()], [], [], 10)[0], "it has ended"
        try:
            context.connection.execute("SELECT 1")
        except psycopg.Error as error:
            if chained:
                raise LookupError("there is no such account") from error
            raise LookupError("there is no such account")  # noqa: B904

    bus.send("payments", "Debit")
    with running(dsn, handling(debit, retry=SOON), concurrency=1):
        eventually(lambda: losses_of(dsn), 30)
    assert begun == [1, 1]
    assert rows(dsn, "SELECT code FROM cmdbus.event") == [("DATABASE_AWAY",)]


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_work_resumes_when_the_database_is_back_and_nothing_is_charged(
    server: EmbeddedPostgres,
    dsn: str,
    bus: CommandBus,
    caplog: pytest.LogCaptureFixture,
    mode: Literal["fast", "immediate"],
) -> None:
    """Without a flood of log lines."""
    caplog.set_level(logging.WARNING, "cmdbus")
    # What a step had claimed when its reply was lost runs again when its lease ends.
    timeouts = Timeouts(statement=2, pool=3, lease=3, thread=10, watchdog=20)
    with running(dsn, handling(leave_effect), concurrency=4, timeouts=timeouts):
        bus.send_many([SendRequest("payments", "Debit")] * 600)
        eventually(lambda: bus.snapshot("payments")["depth"] < 550)
        server.stop(mode)
        server.start()
        bus.wait("payments", bus.send("payments", "Debit", priority="high"))
        await_drained(bus, 30)
    query = "SELECT count(*), count(DISTINCT command_id), max(attempt) FROM effect"
    assert rows(dsn, query) == [(601, 601, 1)]
    assert len(caplog.records) < 60, "a line for each connection, not for each try"
