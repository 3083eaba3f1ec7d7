"""Sessions that end while commands run: which of them may be the cause."""

import os
import select
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from eventually import eventually
from handlers import connect, effects, leave_effect, running

from cmdbus import Command, CommandBus, Context, HandlerRegistry
from cmdbus.database.schema import install
from cmdbus.embedded import EmbeddedPostgres
from cmdbus.worker.claims.outcomes import MAX_LOSSES

pytestmark = [pytest.mark.db, pytest.mark.process]


@pytest.fixture
def own_server() -> Iterator[str]:
    directory = Path(os.environ["TMPDIR"]) / "pg"
    with EmbeddedPostgres(directory) as server:
        install(server.dsn)
        with connect(server.dsn) as connection:
            connection.execute("CREATE TABLE effect (command_id uuid, attempt int)")
        yield server.dsn
    shutil.rmtree(directory)


def losses_of(dsn: str) -> list[int]:
    """Of commands that have ended; none while the server starts."""
    with suppress(psycopg.OperationalError), connect(dsn) as connection:
        rows = connection.execute(
            "SELECT losses FROM cmdbus.finished UNION ALL SELECT losses FROM cmdbus.troubleshooting"
        )
        return [losses for (losses,) in rows]
    return []


def kill_server_process_of(connection: psycopg.Connection) -> None:
    """The server then ends all sessions, and starts again."""
    os.kill(connection.info.backend_pid, signal.SIGKILL)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("guilty", [False, True])
def test_only_the_command_whose_session_crashes_the_server_counts_losses(
    own_server: str, guilty: bool
) -> None:
    """The server ends the others with a notice, and not with an error. (A session that is
    busy may end without it, and counts a loss then.)"""
    registry, begun = HandlerRegistry(), list[int]()

    @registry.handler("payments", "Debit")
    def debit(command: Command, context: Context) -> None:
        leave_effect(command, context)
        begun.append(context.attempt)
        if len(begun) <= MAX_LOSSES:
            with connect(own_server) as another:
                kill_server_process_of(context.connection if guilty else another)
            assert select.select([context.connection.fileno()], [], [], 10)[0], "it has ended"

    with CommandBus(own_server) as bus:
        bus.send("payments", "Debit")
    with running(own_server, registry, concurrency=1):
        eventually(lambda: losses_of(own_server), 30)
    [losses] = losses_of(own_server)
    if guilty:
        assert (losses, effects(own_server)) == (MAX_LOSSES, 0)
    else:
        assert (losses < MAX_LOSSES, effects(own_server)) == (True, 1)
        with connect(own_server) as connection:
            events = connection.execute("SELECT code FROM cmdbus.event").fetchall()
        assert events == [("DATABASE_AWAY",)] * MAX_LOSSES
