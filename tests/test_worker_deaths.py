"""Workers that are killed or frozen: whatever happens, each command's effect lands once."""

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from eventually import eventually
from handlers import await_drained
from queries import rows
from worker_process import WorkerProcess

from cmdbus import CommandBus, SendRequest

pytestmark = pytest.mark.process


@contextmanager
def fleet(dsn: str, count: int) -> Iterator[list[WorkerProcess]]:
    workers = [WorkerProcess(dsn) for _ in range(count)]
    try:
        yield workers
        for worker in workers:
            worker.send(signal.SIGTERM)
        assert {worker.end(signal.SIGTERM) for worker in workers} == {0}
    finally:
        for worker in workers:
            worker.end()


@pytest.mark.timeout(90)
@pytest.mark.parametrize("turns", [5, pytest.param(20, marks=pytest.mark.long)])
def test_effects_land_once_while_workers_are_killed_and_frozen(
    dsn: str, bus: CommandBus, turns: int
) -> None:
    """Kill -9 and SIGSTOP at random, leases of a second."""
    dice = random.Random(4711)
    with fleet(dsn, 3) as workers:
        for _ in range(turns):
            requests = [SendRequest("payments", "Debit", dice.random() < 0.01) for _ in range(150)]
            bus.send_many(requests)
            index = dice.randrange(len(workers))
            if dice.random() < 0.5:
                workers[index].end()
                workers[index] = WorkerProcess(dsn)
            else:
                workers[index].send(dice.choice([signal.SIGSTOP, signal.SIGCONT]))
        for worker in workers:
            worker.send(signal.SIGCONT)
        await_drained(bus, 60)
    once = "SELECT count(*), count(DISTINCT command_id) FROM effect"
    done = "SELECT count(*), count(*) FROM cmdbus.finished WHERE status = 'COMPLETED'"
    assert rows(dsn, once) == rows(dsn, done)
    # Whose claimers were frozen three times, one after the other, is for a person.
    others = "SELECT DISTINCT error_code FROM cmdbus.command WHERE status <> 'COMPLETED'"
    assert rows(dsn, others) in ([], [("LOST",)])
    assert rows(dsn, "SELECT count(*) FROM cmdbus.command") == [(150 * turns,)]


def test_a_frozen_workers_effects_do_not_land_when_it_is_revived(
    dsn: str, bus: CommandBus, tmp_path: Path
) -> None:
    with fleet(dsn, 1) as workers:
        [frozen] = workers
        sent = bus.send("payments", "Debit", str(tmp_path / "goes on"))
        eventually(lambda: bus.snapshot("payments")["in_progress"] == 1)
        active = (
            "SELECT 1 FROM pg_stat_activity WHERE state = 'idle in transaction'"
            " AND datname = current_database()"
        )
        eventually(lambda: rows(dsn, active))
        frozen.send(signal.SIGSTOP)
        workers.append(WorkerProcess(dsn))
        (tmp_path / "goes on").touch()
        bus.wait("payments", sent)
        frozen.send(signal.SIGCONT)
        later = bus.send("payments", "Debit")
        assert bus.wait("payments", later).status == "COMPLETED"
    assert len(rows(dsn, "SELECT FROM effect WHERE command_id = %s", sent)) == 1
