"""Workers that are killed or frozen: whatever happens, each command's effect lands once."""

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from eventually import eventually
from handlers import await_drained
from queries import rows

from cmdbus import CommandBus, SendRequest

pytestmark = pytest.mark.process


class Fleet:
    """Worker processes of one database."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.workers: list[subprocess.Popen[str]] = []

    def add(self) -> "subprocess.Popen[str]":
        program = str(Path(__file__).with_name("worker_process.py"))
        worker = subprocess.Popen(
            [sys.executable, program, self._dsn], stdout=subprocess.PIPE, text=True
        )
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        self.workers.append(worker)
        return worker

    def kill(self, worker: "subprocess.Popen[str]") -> None:
        worker.send_signal(signal.SIGCONT)
        worker.kill()
        worker.communicate()
        self.workers.remove(worker)


@contextmanager
def fleet(dsn: str, count: int) -> Iterator[Fleet]:
    made = Fleet(dsn)
    try:
        for _ in range(count):
            made.add()
        yield made
        for worker in made.workers:
            worker.send_signal(signal.SIGCONT)
            worker.terminate()
        assert [worker.wait(15) for worker in made.workers] == [0] * len(made.workers)
    finally:
        for worker in list(made.workers):
            made.kill(worker)


@pytest.mark.timeout(90)
def test_effects_land_once_while_workers_are_killed_and_frozen(dsn: str, bus: CommandBus) -> None:
    """Kill -9 and SIGSTOP at random, leases of a second."""
    dice = random.Random(4711)
    with fleet(dsn, 4) as workers:
        for _ in range(20):
            requests = [SendRequest("payments", "Debit", dice.random() < 0.01) for _ in range(150)]
            bus.send_many(requests)
            victim = dice.choice(workers.workers)
            if dice.random() < 0.5:
                workers.kill(victim)
                workers.add()
            else:
                victim.send_signal(dice.choice([signal.SIGSTOP, signal.SIGCONT]))
        for worker in workers.workers:
            worker.send_signal(signal.SIGCONT)
        await_drained(bus, 60)
    once = "SELECT count(*), count(DISTINCT command_id) FROM effect"
    done = "SELECT count(*), count(*) FROM cmdbus.finished WHERE status = 'COMPLETED'"
    assert rows(dsn, once) == rows(dsn, done)
    # Whose claimers were frozen three times, one after the other, is for a person.
    others = "SELECT DISTINCT error_code FROM cmdbus.command WHERE status <> 'COMPLETED'"
    assert rows(dsn, others) in ([], [("LOST",)])
    assert rows(dsn, "SELECT count(*) FROM cmdbus.command") == [(3000,)]


def test_a_frozen_workers_effects_do_not_land_when_it_is_revived(dsn: str, bus: CommandBus) -> None:
    with fleet(dsn, 1) as workers:
        frozen = workers.workers[0]
        sent = bus.send("payments", "Debit", 1.5)
        eventually(lambda: bus.snapshot("payments")["in_progress"] == 1)
        active = (
            "SELECT 1 FROM pg_stat_activity WHERE state = 'idle in transaction'"
            " AND datname = current_database()"
        )
        eventually(lambda: rows(dsn, active))
        frozen.send_signal(signal.SIGSTOP)
        workers.add()
        bus.wait("payments", sent)
        frozen.send_signal(signal.SIGCONT)
        later = bus.send("payments", "Debit")
        assert bus.wait("payments", later).status == "COMPLETED"
    assert len(rows(dsn, "SELECT FROM effect WHERE command_id = %s", sent)) == 1
