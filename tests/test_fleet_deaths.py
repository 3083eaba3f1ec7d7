"""A process of a fleet that is killed is replaced immediately, and its claims are released."""

import re
import signal
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from eventually import eventually
from fleet import Fleet, kill, make_effects, supervised, unstarted

from cmdbus import CommandBus
from cmdbus.board.records import ClaimState, Role
from cmdbus.database.schema import install
from cmdbus.database.session_names import session_name

#: No lease ends during a test: a command that runs again was released.
PATIENT: Mapping[str, float] = {
    "statement_timeout": 25,
    "pool_timeout": 30,
    "visibility_timeout": 60,
    "thread_timeout": 70,
    "watchdog_timeout": 90,
}
pytestmark = pytest.mark.fleet(**PATIENT)


def test_a_killed_worker_is_replaced_and_what_it_ran_runs_again(fleet: Fleet, dsn: str) -> None:
    """Nothing is lost, done twice or charged; the neighbour is not touched. Then all
    workers at once."""
    before = fleet.pids()
    ids = fleet.start_gates(8)
    kill(before[0])
    after = fleet.await_successors([before[0]])
    eventually(lambda: fleet.executing("Gate").count(after[0]) == 4)
    assert after[1] == before[1]
    assert fleet.executing("Gate").count(after[1]) == 4
    kill(after.values())
    last = fleet.await_successors(after.values())
    eventually(lambda: len(fleet.executing("Gate")) >= 4)
    fleet.open_gate()
    fleet.await_outcomes(ids, {("COMPLETED", 1): 8})
    assert fleet.effects(ids) == {1: 8}
    assert fleet.pids() == last
    assert sorted(fleet.look().restarts.items())[0] == ("crashed", 3)
    assert len(fleet.logged("memory ran out (OOM); it ran shop/Gate")) == 3
    with CommandBus(dsn) as bus:
        audits = [str(event) for event in bus.audit("shop", ids[0])]
    assert any("was killed by SIGKILL from outside" in text for text in audits)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.fleet(procs=1, drain_timeout=0.2)
def test_a_command_whose_process_is_killed_again_and_again_runs_alone(
    fleet: Fleet, number: signal.Signals
) -> None:
    """The second loss; at the third a person decides. Uncharged. Also by a
    TERM that is no order: a command may send it to its own process."""
    (id,) = ids = fleet.start_gates(1)
    killed: set[int] = set()
    for _ in range(3):
        (pid,) = eventually(lambda: set(fleet.executing("Gate")) - killed)
        kill(pid, number)
        killed.add(pid)
    fleet.await_saying(f"the commands of quarantine, pid {pid}")
    fleet.await_outcomes(ids, {("IN_TROUBLESHOOTING_QUEUE", 0): 1})
    code, message, _ = fleet.trouble(id)
    assert code == "LOST"
    assert "3 of its executions" in message
    eventually(lambda: not fleet.look().with_role(Role.QUARANTINE))
    fleet.wait_until_ready()


def test_an_exit_code_of_a_handler_is_no_failed_start_and_no_signal(fleet: Fleet) -> None:
    """Small codes, as the bus has them for its own processes, from os._exit of a handler."""
    for code in (3, 6, 7):
        fleet.send("Leave", data=code)
    left = "SELECT count(*) FROM cmdbus.command WHERE status <> 'IN_TROUBLESHOOTING_QUEUE'"
    eventually(lambda: fleet.query(left) == [(0,)], 30.0)
    assert all(fleet.logged(f"exited with code {code}") for code in (3, 6, 7))
    for other in ("cannot start", "no thread left for it", "SIGTERM"):
        assert not fleet.logged(other)


@pytest.mark.fleet(procs=1)
def test_a_command_that_crashes_its_process_after_returning_is_attributed(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Its second crash happens in a process of its own, and charges it. Neither is an early
    death, of which the fleet could give up."""
    returns, aborts = tmp_path / "returns", tmp_path / "aborts"
    (id,) = fleet.send("AbortLater", data=[str(returns), str(aborts)], max_attempts=1)
    for _ in range(2):
        crash_before_settlement(fleet, returns, aborts)
    fleet.await_outcomes([id], {("IN_TROUBLESHOOTING_QUEUE", 1): 1})
    code, message, _ = fleet.trouble(id)
    assert code == "CRASHED" and "SIGABRT" in message
    assert not fleet.logged("died early")
    fleet.await_completed(fleet.send("Noop", 10))


@pytest.mark.fleet(procs=1)
def test_a_crash_after_an_order_to_stop_is_logged_with_what_ran(
    fleet: Fleet, tmp_path: Path
) -> None:
    aborts = tmp_path / "aborts"
    fleet.send("AbortLater", data=[str(tmp_path / "returns"), str(aborts)])
    (pid,) = eventually(lambda: fleet.executing("AbortLater"))
    fleet.send_signal(signal.SIGTERM)
    fleet.await_saying("stops: running commands may end")
    aborts.touch()
    assert fleet.wait() == 5
    assert fleet.logged(f"worker 0, pid {pid}, was killed by SIGABRT; it ran shop/AbortLater")


@pytest.mark.fleet(procs=1)
def test_a_steward_that_dies_while_the_fleet_stops_has_a_successor(fleet: Fleet) -> None:
    """Which releases what a worker had claimed that dies meanwhile."""
    fleet.start_gates(1)
    [pid], steward = fleet.executing("Gate"), fleet.steward()
    assert steward is not None
    fleet.send_signal(signal.SIGTERM)
    fleet.await_saying("stops: running commands may end")
    kill([steward, pid])
    assert fleet.wait() == 5
    assert fleet.query("SELECT count(*), count(claimer) FROM cmdbus.ready") == [(1, 0)]


def crash_before_settlement(fleet: Fleet, returns: Path, aborts: Path) -> None:
    (pid,) = eventually(lambda: fleet.executing("AbortLater"), 30.0)
    [name] = [
        session_name("cmdbus", seat.incarnation)
        for seat in fleet.look().seats
        if seat.pid == pid and seat.incarnation
    ]
    sessions = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
    with psycopg.connect(fleet.dsn) as stranger:
        stranger.execute("SELECT FROM cmdbus.ready FOR UPDATE")
        returns.touch()
        eventually(lambda: finished_in(fleet, pid), 20.0)
        aborts.touch()
        # Until they are gone they may settle what is in their sockets.
        eventually(lambda: not fleet.query(sessions, name), 20.0)
    assert pid not in fleet.living()
    returns.unlink()
    aborts.unlink()


def finished_in(fleet: Fleet, pid: int) -> bool:
    """Whether a command has returned there, and is not settled."""
    seats = [seat for seat in fleet.look().seats if seat.pid == pid]
    return any(key.state is ClaimState.FINISHED for seat in seats for key in seat.claims)


@pytest.mark.parametrize("with_children", [False, True], ids=["supervisor", "all"])
@pytest.mark.fleet(procs=1)
def test_a_new_supervisor_hands_back_what_a_killed_one_has_left(
    fleet: Fleet, dsn: str, with_children: bool
) -> None:
    """No worker outlives it, and a new one is not blocked by its pidfile."""
    ids = fleet.start_gates(4) + fleet.send("Debit", 4, delay=1)
    kill([fleet.pid, *(pid for pid in fleet.living() if with_children and pid != fleet.pid)])
    assert fleet.wait() == -signal.SIGKILL
    eventually(lambda: not fleet.living())
    assert fleet.outcomes(ids)["IN_PROGRESS", 1] == 4, fleet.outcomes(ids)
    fleet.open_gate()
    predecessor = fleet.pid
    fleet.start()
    assert fleet.await_saying(f"its predecessor, pid {predecessor}, died")
    fleet.await_completed(ids)
    with CommandBus(dsn) as bus:
        audit = [str(event) for event in bus.audit("shop", ids[0])]
    assert any("ended with its supervisor" in text for text in audit), audit
    assert fleet.effects(ids) == {1: 8}
    assert sorted(fleet.directory.glob("cmdbus.board*")) == [fleet.board_path]


@pytest.mark.parametrize("kills", [2, pytest.param(5, marks=pytest.mark.long)])
@pytest.mark.fleet(started=False, drain=True, procs=1)
def test_nothing_is_lost_or_done_twice_while_workers_are_killed_again_and_again(
    fleet: Fleet, kills: int
) -> None:
    """All workers die in each part of the work; the fleet drains the rest."""

    def send_part(part: int) -> list[UUID]:
        """With a command that keeps the fleet from ending before the test goes on."""
        gate = fleet.send("Gate", data=f"part {part}")
        return gate + fleet.send("Debit", 200, data=0.005)

    ids = send_part(0)
    fleet.start()
    fleet.wait_until_ready()
    for part in range(kills):
        fleet.await_completions(201 * part + 100)
        before = fleet.pids().values()
        kill(before)
        fleet.await_successors(before)
        ids += send_part(part + 1)
        (fleet.place / f"part {part}").touch()
    (fleet.place / f"part {kills}").touch()
    assert fleet.wait(30) == 0
    assert fleet.outcomes(ids) == {("COMPLETED", 1): 201 * (kills + 1)}
    assert fleet.effects(ids) == {1: 201 * (kills + 1)}
    assert len(fleet.logged("was killed by SIGKILL")) == kills
    fleet.assert_nothing_left()


def test_a_board_of_another_database_harms_nobody(dsn: str, empty_dsn: str, tmp_path: Path) -> None:
    """No claim and no session here has the number of an incarnation of another database."""
    install(empty_dsn)
    make_effects(empty_dsn)
    path = tmp_path / "b"
    path.mkdir()
    with (
        supervised(empty_dsn, path, procs=1, name="b", alone=False, **PATIENT) as innocent,
        unstarted(dsn, tmp_path, procs=1, alone=False, **PATIENT) as fleet,
    ):
        fleet.start()
        fleet.await_saying("the fleet is ready")
        kill(fleet.pid)
        fleet.wait()
        eventually(lambda: not fleet.living())
        ids = innocent.start_gates(4)
        fleet.dsn = empty_dsn
        fleet.start()
        fleet.await_saying("the fleet is ready", 2)
        fleet.wait_until_ready()
        innocent.open_gate()
        innocent.await_completed(ids)
        assert innocent.effects(ids) == {1: 4}
        assert innocent.query("SELECT max(token) FROM cmdbus.finished") == [(1,)]
        assert fleet.stop() == 0


@pytest.mark.fleet(procs=1)
def test_a_suspect_that_is_locked_starts_process_after_process_in_longer_and_longer_pauses(
    fleet: Fleet, bus: CommandBus, connection: psycopg.Connection, dsn: str
) -> None:
    """The transaction of another program may stay open for hours."""
    bus.pause("shop")
    ids = fleet.send("Noop")
    connection.execute("UPDATE cmdbus.ready SET losses = 2")
    with psycopg.connect(dsn) as stranger:
        stranger.execute("SELECT FROM cmdbus.ready FOR UPDATE")
        bus.resume("shop")
        bus.send("shop", "Noop", delay=0.1)  # The steward looks for suspects when one is due.
        fleet.await_saying("quarantine has stopped", 4, within=40)
    lives = [
        datetime.fromisoformat(event["time"])
        for event in fleet.events()
        if re.match("quarantine (starts|has stopped)", event["message"])
    ]
    pauses = [(lives[n + 1] - lives[n]).total_seconds() for n in (1, 3, 5)]
    assert pauses[1] > 0.7 and pauses[2] > 1.5, pauses
    fleet.await_completed(ids)
