"""A fleet stops, whatever it does at the time, and however it is ordered to."""

import signal
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest
from cli import here
from eventually import eventually
from fleet import Fleet, kill, unstarted, write_app
from surroundings import control_group

from cmdbus.board.records import Role

pytestmark = pytest.mark.fleet


def order_again(fleet: Fleet, number: signal.Signals) -> bool:
    """Sends it until it counts as a second order."""
    fleet.send_signal(number)
    return len(fleet.logged("stopping within")) > 1


@pytest.mark.parametrize(
    "signals",
    [
        pytest.param([signal.SIGTERM], id="late", marks=pytest.mark.fleet(drain_timeout=0.5)),
        pytest.param([signal.SIGTERM, signal.SIGINT], id="twice"),
        pytest.param([signal.SIGQUIT], id="quit"),
    ],
)
@pytest.mark.fleet(procs=1, threads=8)
def test_what_does_not_end_in_time_runs_again_uncharged(
    fleet: Fleet, signals: list[signal.Signals]
) -> None:
    """With exit code 5; that a process is killed at once is what the operator has ordered."""
    first, *further = signals
    at_once = further or first is signal.SIGQUIT
    ids = fleet.send("Gate", 12, data="open")
    eventually(lambda: len(fleet.executing("Gate")) == 8)
    fleet.send_signal(first)
    fleet.await_saying("stopping within")
    if further:
        eventually(lambda: order_again(fleet, *further))
    assert fleet.wait() == 5
    assert fleet.logged("has stopped: commands may be left without an outcome: those run again")
    assert fleet.living() == []
    assert fleet.outcomes(ids) == {("PENDING", 0): 12}, "handed back before the steward left"
    assert fleet.effects(ids) == {0: 12}
    late = "it did not stop by its deadline"
    ordered = "it was ordered to stop at once"
    assert not fleet.logged(f"is killed: {late if at_once else ordered}")
    fleet.open_gate()
    fleet.start()
    fleet.await_completed(ids)
    assert fleet.effects(ids) == {1: 12}
    eventually(lambda: not list(fleet.directory.glob("cmdbus.board.*")))


@pytest.mark.fleet(procs=1, threads=1)
def test_a_terminal_and_a_service_manager_that_stop_it_together_hurry_nothing(fleet: Fleet) -> None:
    ids = fleet.start_gates(1)
    for number in (signal.SIGINT, signal.SIGTERM):
        fleet.send_signal(number)
    fleet.await_saying("stopping within")
    fleet.open_gate()
    assert fleet.wait() == 0
    assert fleet.outcomes(ids) == {("COMPLETED", 1): 1}
    assert len(fleet.logged("stopping within")) == 1


@pytest.mark.fleet(procs=1)
def test_a_storm_of_signals_ends_in_one_clean_stop(fleet: Fleet) -> None:
    """Coalesced, never re-entered, and harmless until the process is gone."""
    ids = fleet.send("Noop", 50)
    fleet.await_completed(ids)
    storm = [signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU]
    for number in storm * 160:
        fleet.send_signal(number)
    while fleet.running:
        for number in (signal.SIGTERM, *storm):
            fleet.send_signal(number)
    assert fleet.wait() == 0
    fleet.assert_nothing_left()
    assert len(fleet.logged("the supervisor cmdbus has stopped: all drained")) == 1


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGINT])
@pytest.mark.fleet(procs=1)
def test_a_fleet_without_work_that_is_ended_at_once_has_stopped_well(
    fleet: Fleet, number: signal.Signals
) -> None:
    """Exit code 0, as nothing was killed that will have to run again."""
    assert fleet.stop(number) == 0
    fleet.assert_nothing_left()


def test_a_stop_while_it_starts_leaves_nothing(dsn: str, tmp_path: Path) -> None:
    """In the preflight, while the database is away, and while processes boot."""
    write_app(tmp_path, "import time; time.sleep(0.7)\nfrom fleet_app import registry as registry")
    with unstarted(dsn, tmp_path, procs=1) as fleet:
        fleet.start()
        eventually(lambda: (fleet.directory / "cmdbus.pid").exists(), 30)
        assert fleet.stop() == 0
        fleet.assert_nothing_left()
        fleet.start()
        fleet.await_saying("worker 0 starts")
        assert fleet.stop() == 0
        fleet.assert_nothing_left()
    with unstarted(dsn, tmp_path) as fleet:
        fleet.dsn = f"host={tmp_path} dbname=nobody"
        fleet.start()
        fleet.await_saying("trying again every 2 s")
        shown = here("ps", "--runtime-dir", str(fleet.directory), "--name", fleet.name)
        assert shown.exit_code == 1
        assert f"(pid {fleet.pid}) is starting and has no board yet" in shown.stderr
        fleet.send_signal(signal.SIGTTIN)
        fleet.await_saying("SIGTTIN is ignored until the fleet is started")
        assert fleet.stop() == 0
        assert fleet.logged("stopped by a signal before the fleet was started")
        fleet.assert_nothing_left()
        fleet.dsn = dsn


SLOW_APP = """
import subprocess, time
from pathlib import Path
from fleet_app import registry as registry
if Path("slow").exists():
    subprocess.Popen(["sleep", "1000"])
    Path("imports").touch()
    time.sleep(1000)
"""


@pytest.mark.fleet(procs=1)
@pytest.mark.parametrize("frozen", [False, True])
def test_a_stop_during_a_reload_ends_the_check_of_the_application(
    fleet: Fleet, tmp_path: Path, frozen: bool
) -> None:
    """With what it has started; a check that does not die is not waited for."""
    write_app(tmp_path, SLOW_APP)
    (tmp_path / "slow").touch()
    before = {child.pid for child in psutil.Process(fleet.pid).children()}
    fleet.send_signal(signal.SIGHUP)
    eventually(lambda: (tmp_path / "imports").exists(), 30)
    [check] = {child.pid for child in psutil.Process(fleet.pid).children()} - before
    with control_group("freezer") if frozen else nullcontext() as group:
        if group is not None:
            group.add(check)
            group.freeze()
        assert fleet.stop() == 0
    fleet.assert_nothing_left()


@pytest.mark.fleet(procs=1, threads=1)
def test_orders_to_stop_that_are_repeated_put_nothing_off(fleet: Fleet) -> None:
    """While a session of a dead process does not end, the fleet waits for it until a deadline."""
    [worker] = fleet.workers().values()
    [session] = [slot.backend_pid for slot in worker.slots if slot.backend_pid]
    assert worker.pid is not None and session is not None
    kill(session, signal.SIGSTOP)
    try:
        kill(worker.pid)
        eventually(lambda: fleet.look().with_role(Role.DEAD))

        def stopped() -> bool:
            if fleet.running:
                fleet.send_signal(signal.SIGTERM)
            return not fleet.running

        eventually(stopped, 30)
    finally:
        kill(session, signal.SIGCONT)
