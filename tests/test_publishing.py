"""What nodes publish in the database: when, for how long, and what it costs if that fails."""

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from math import inf

import psycopg
import pytest
from eventually import eventually
from fleet import Fleet, kill
from handlers import connect, handling, running
from queries import rows, scalar
from roles import refused, role
from shown_boards import worker

from cmdbus import AsyncCommandBus, CommandBus, NodeCounters
from cmdbus.board.board import Board, Node
from cmdbus.board.records import ExitRecord, SupervisorState
from cmdbus.board.wake_pipe import WakePipe
from cmdbus.errors import MissingRightError
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.steward import publish_round
from cmdbus.worker.steward.exits import Exits
from cmdbus.worker.steward.publish_round import (
    EVERY_SECONDS,
    RETRY_SECONDS,
    STARTING_SECONDS,
    PublishRound,
    pause_beside,
)

_TIMES = "SELECT published_at FROM cmdbus.published_node"


@dataclass
class Publishing:
    """A node whose only round is this."""

    connection: psycopg.Connection
    board: Board
    node: Node
    statements: ClaimStatements
    exits: Exits
    watched: threading.Event
    round: PublishRound

    def run(self) -> float:
        return self.round.run(self.connection)

    def crash(self) -> None:
        seat = self.board.seat_view(0)
        self.exits.add(seat, ExitRecord(generation=1, pid=9, signal=11), "a stack", (), 0.0)

    def successor(self, *dead: int) -> PublishRound:
        return PublishRound(self.node, self.statements, Exits(), self.watched, "shop", dead=dead)


@pytest.fixture
def publishing(dsn: str) -> Iterator[Publishing]:
    with ExitStack() as opened:
        board = opened.enter_context(closing(Board.in_memory(1, 2)))
        pipes = [opened.enter_context(closing(WakePipe(1))) for _ in range(2)]
        node = Node(board=board, seat=worker(board, 0), worker_pipe=pipes[0], steward_pipe=pipes[1])
        statements, exits, watched = ClaimStatements("cmdbus", 30), Exits(), threading.Event()
        round_ = PublishRound(node, statements, exits, watched, "shop")
        connection = opened.enter_context(connect(dsn))
        yield Publishing(connection, board, node, statements, exits, watched, round_)


def test_a_node_publishes_each_minute_and_often_only_while_it_is_watched(
    publishing: Publishing, dsn: str, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_round, "WATCHED_SECONDS", often := 20.0)
    assert publishing.run() == EVERY_SECONDS
    before = rows(dsn, _TIMES)
    assert EVERY_SECONDS - 5 < publishing.run() < EVERY_SECONDS
    publishing.watched.set()
    assert 0 < publishing.run() < often, "however often it is notified"
    assert rows(dsn, _TIMES) == before
    bus.watch_fleet()
    assert publishing.successor().run(publishing.connection) == often
    assert rows(dsn, _TIMES) > before
    publishing.connection.execute("UPDATE cmdbus.fleet_watch SET watched_until = now()")
    assert publishing.successor().run(publishing.connection) == EVERY_SECONDS
    [node] = bus.fleet()
    assert (node.name, node.gone, node.node) == ("shop", False, publishing.statements.node)


@pytest.mark.parametrize(
    ("other", "pause"), [(45, 45), (5, 65), (70, 70), (90, 30), (0, 60), (-1, 59), (inf, 60)]
)
def test_it_publishes_when_its_rollup_wakes_it_anyway(other: float, pause: float) -> None:
    assert pause_beside(other) == pause


def test_a_fleet_that_starts_publishes_again_soon(publishing: Publishing) -> None:
    since = time.monotonic_ns()
    publishing.board.supervise(pid=1, state=SupervisorState.STARTING, since=since, due=9, wanted=1)
    assert publishing.run() == STARTING_SECONDS
    publishing.board.supervise(pid=1, state=SupervisorState.RUNNING, since=since, due=9, wanted=1)
    assert publishing.successor().run(publishing.connection) == EVERY_SECONDS


def test_a_watch_is_announced_once_and_lasts_for_a_minute_at_most(
    dsn: str, bus: CommandBus
) -> None:
    left = "SELECT extract(epoch FROM watched_until - clock_timestamp())::float FROM"
    with connect(dsn) as listener:
        listener.execute("LISTEN cmdbus_watch")
        began = time.monotonic()
        bus.watch_fleet(0.001)
        seen = scalar(listener, f"{left} cmdbus.fleet_watch")
        assert 4 - (time.monotonic() - began) < seen <= 5
        began = time.monotonic()
        bus.watch_fleet(1000)
        for _ in range(10):
            bus.watch_fleet()
        seen = scalar(listener, f"{left} cmdbus.fleet_watch")
        assert 59 - (time.monotonic() - began) < seen <= 60
        assert len(list(listener.notifies(timeout=0))) == 1


def test_a_watch_in_an_open_transaction_holds_up_no_node(publishing: Publishing, dsn: str) -> None:
    publishing.connection.execute("SET lock_timeout = 1000")
    watch = "SELECT cmdbus.watch_fleet(5)"
    with psycopg.connect(dsn) as watching:
        watching.execute(watch)
        watching.execute("UPDATE cmdbus.fleet_watch SET watched_until = now()")
        watching.commit()
        watching.execute(watch)
        assert publishing.run() == EVERY_SECONDS, "its first publication removes old watches"
        assert scalar(publishing.connection, "SELECT cmdbus.retain_nodes()") == 0


def test_a_node_that_is_gone_stays_until_one_of_its_name_comes_or_a_day_is_over(
    publishing: Publishing, bus: CommandBus
) -> None:
    connection = publishing.connection
    publishing.crash()
    publishing.run()
    connection.execute("UPDATE cmdbus.published_node SET node = 1")
    publishing.successor().run(connection)
    assert [node.gone for node in bus.fleet()] == [False, False], "two that live"
    age = "UPDATE cmdbus.published_node SET published_at = now() - interval '{}' WHERE node = {}"
    connection.execute(age.format("151 s", 1).encode())
    [living, gone] = bus.fleet()
    assert gone.node == 1 and gone.gone and not gone.stopped and not living.gone
    # The exits are those of the one that was there before.
    successor = publishing.successor()
    connection.execute("DELETE FROM cmdbus.published_node WHERE node <> 1")
    successor.run(connection)
    [node] = bus.fleet()
    assert node.node != 1 and not node.gone
    [crash] = node.exits
    assert bus.stacks(node.node) == {crash.number: "a stack"}
    assert (node.published_at - crash.at).total_seconds() > 150
    connection.execute(age.format("25 hours", node.node).encode())
    assert scalar(connection, "SELECT cmdbus.retain_nodes()") == 1
    assert bus.fleet() == []


def test_a_supervisor_that_has_died_is_succeeded_at_once(
    publishing: Publishing, bus: CommandBus
) -> None:
    publishing.crash()
    publishing.run()
    publishing.connection.execute("UPDATE cmdbus.published_node SET node = 1")
    publishing.successor(1, 2).run(publishing.connection)
    assert len(bus.fleet()) == 2, "another process has the name"
    publishing.connection.execute("DELETE FROM cmdbus.published_node WHERE node <> 1")
    publishing.successor(1, os.getpid()).run(publishing.connection)
    [node] = bus.fleet()
    assert node.node != 1 and len(node.exits) == 1


def test_there_are_at_most_some_hundred_nodes(publishing: Publishing, dsn: str) -> None:
    publishing.connection.execute(
        "INSERT INTO cmdbus.published_node"
        " SELECT n, 'x', 'y', now() - n * interval '1 ms', n % 3 = 0, '{}', '{}', '{}'"
        " FROM generate_series(1, 1200) n"
    )
    publishing.run()
    found = "SELECT count(*), max(node) FROM cmdbus.published_node WHERE name = 'x' AND {}stopped"
    assert rows(dsn, found.format("")) == [(100, 300)]
    assert rows(dsn, found.format("NOT ")) == [(334, 500)]


def test_programs_on_asyncio_read_nodes_too(publishing: Publishing, dsn: str) -> None:
    publishing.crash()
    publishing.run()

    async def read() -> tuple[str, dict[int, str], list[NodeCounters]]:
        async with AsyncCommandBus(dsn) as bus:
            [node] = await bus.fleet()
            return node.name, await bus.stacks(node.node), await bus.fleet_counters()

    assert asyncio.run(read()) == ("shop", {1: "a stack"}, [])


def test_a_node_that_stops_says_so(publishing: Publishing, bus: CommandBus) -> None:
    publishing.run()
    publishing.round.leave(publishing.connection)
    [node] = bus.fleet()
    assert node.gone and node.stopped


def test_stacks_are_written_only_with_a_new_exit(publishing: Publishing, dsn: str) -> None:
    publishing.run()
    publishing.crash()
    publishing.round._due = 0.0
    publishing.run()
    [(stacks,)] = rows(dsn, "SELECT stacks FROM cmdbus.published_node")
    assert "a stack" in stacks
    publishing.connection.execute("UPDATE cmdbus.published_node SET stacks = '{}'")
    publishing.round._due = 0.0
    publishing.run()
    assert rows(dsn, "SELECT stacks FROM cmdbus.published_node") == [("{}",)]


def test_a_node_that_cannot_publish_warns_once_and_goes_on(
    publishing: Publishing, caplog: pytest.LogCaptureFixture
) -> None:
    rename = "ALTER FUNCTION cmdbus.publish_node RENAME TO hidden"
    publishing.connection.execute(rename.encode())
    assert publishing.run() == RETRY_SECONDS
    publishing.round._due = 0.0
    assert publishing.run() == RETRY_SECONDS
    publishing.round.leave(publishing.connection)
    assert len(caplog.messages) == 1 and "cannot publish the state" in caplog.text


def test_a_lost_session_is_left_to_the_steward_and_the_next_one_is_used_at_once(
    publishing: Publishing, dsn: str, bus: CommandBus
) -> None:
    with connect(dsn) as lost:
        lost.close()
        with pytest.raises(psycopg.OperationalError):
            publishing.round.run(lost)
    assert publishing.run() == EVERY_SECONDS
    assert len(bus.fleet()) == 1


def test_operators_read_all_and_monitors_all_but_stacks(publishing: Publishing, dsn: str) -> None:
    publishing.crash()
    publishing.run()
    number = publishing.statements.node
    with CommandBus(dsn) as bus:
        for kind in ("operator", "monitor"):
            with role(dsn, kind) as connection:
                [node] = bus.fleet(connection=connection)
                assert len(node.exits) == 1
                assert bus.fleet_counters(connection=connection) == []
                connection.execute("SELECT cmdbus.watch_fleet(10)")
                assert refused(connection, "SELECT * FROM cmdbus.fleet_watch")
                assert refused(connection, "DELETE FROM cmdbus.published_node")
                if kind == "operator":
                    assert [*bus.stacks(number, connection=connection)] == [1]
                    continue
                with pytest.raises(MissingRightError):
                    bus.stacks(number, connection=connection)
        with role(dsn, "producer") as connection, pytest.raises(MissingRightError):
            bus.fleet(connection=connection)
        with role(dsn, "worker") as connection:
            assert refused(connection, "UPDATE cmdbus.published_node SET host = ''")
            publishing.successor().run(connection)
        assert bus.stacks(5) == {}


def test_a_standalone_worker_is_a_node(
    dsn: str, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_round, "WATCHED_SECONDS", 0.1)
    with running(dsn, handling()):
        [before] = eventually(bus.fleet)
        assert before.state == "running" and before.memory > 10**6
        eventually(lambda: count_listening(dsn))
        bus.wait("payments", bus.send("payments", "Noop"))
        bus.watch_fleet()
        after = eventually(lambda: [n for n in bus.fleet() if n.published_at > before.published_at])
        assert (after[0].published_at - before.published_at).total_seconds() < EVERY_SECONDS / 2
        [counters] = eventually(bus.fleet_counters)  # It counts a command after its settlement.
        assert (counters.type, counters.ended["completed"]) == ("Noop", 1)
    [node] = bus.fleet()
    assert node.stopped and node.seats[0].pid


def count_listening(dsn: str) -> int:
    query = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE query LIKE 'LISTEN%' AND datname = current_database()"
    )
    return int(rows(dsn, query)[0][0])


@pytest.mark.fleet(procs=1)
def test_a_killed_process_is_shown_and_its_exit_outlives_the_steward(
    fleet: Fleet, dsn: str
) -> None:
    with CommandBus(dsn) as bus:
        fleet.start_gates(1)
        (pid,) = eventually(lambda: fleet.executing("Gate"))
        kill(pid)
        fleet.await_successors([pid])
        bus.watch_fleet(60)
        [found] = eventually(lambda: [exit_ for node in bus.fleet() for exit_ in node.exits])
        assert (found.pid, found.signal, found.role) == (pid, "SIGKILL", "worker")
        assert [command.type for command in found.commands] == ["Gate"]
        steward = fleet.steward()
        assert steward is not None
        kill(steward)
        after = fleet.succeeded(steward)
        [node] = eventually(
            lambda: [n for n in bus.fleet() if n.steward and n.steward.pid == after]
        )
        [same] = node.exits
        assert same.pid == pid and abs((same.at - found.at).total_seconds()) < 1
        [seat] = node.seats
        assert seat.memory and seat.health == "HEALTHY" and seat.threads == 4
        fleet.open_gate()
        fleet.stop()
        [node] = bus.fleet()
        assert node.stopped and node.state == "stopping"
