"""Expiry in a fleet whose processes are killed: each command either runs or expires."""

from random import Random

import pytest
from eventually import eventually
from fleet import Fleet, kill

from cmdbus import CommandBus, SendRequest

#: What the fleet has not begun by its expiry has no claim and no effect; what it has begun ends.
ENDS = """
SELECT f.status, f.error_code, f.claimed_at IS NOT NULL OR EXISTS (
        SELECT FROM cmdbus.event e
        WHERE e.command_id = f.command_id AND e.claimed_at IS NOT NULL) AS began,
    (SELECT count(*) FROM effect WHERE effect.command_id = f.command_id) AS effects, count(*)
FROM cmdbus.finished f WHERE f.type = 'Debit' GROUP BY 1, 2, 3, 4"""
LATE = """
SELECT min(late), max(late) FROM (
    SELECT extract(epoch FROM f.finished_at - f.expires_at)::double precision AS late
    FROM cmdbus.finished f WHERE f.error_code = 'EXPIRED') l"""
#: A claim notes its time a moment after it has looked.
BEGUN_LATE = """
SELECT count(*) FROM cmdbus.finished f WHERE f.status = 'COMPLETED' AND f.attempts = 1
    AND f.losses = 0 AND f.claimed_at > f.expires_at + interval '500 ms'"""


def count_of_ended(fleet: Fleet) -> int:
    [(count,)] = fleet.query("SELECT count(*) FROM cmdbus.finished")
    return int(count)


@pytest.mark.parametrize("kills", [2, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.fleet(procs=1)
def test_what_expires_while_processes_are_killed_runs_or_expires(fleet: Fleet, kills: int) -> None:
    random, count = Random(1), 800
    with CommandBus(fleet.dsn) as bus:
        bus.send_many(
            SendRequest("shop", "Debit", 0.01, expires=random.uniform(0.05, 4))
            for _ in range(count)
        )
        fleet.await_completions(1)
        for _ in range(kills):
            before = fleet.pids().values()
            kill(before)
            fleet.await_successors(before)
        eventually(lambda: count_of_ended(fleet) == count, 30)
    ends = {row[:4]: row[4] for row in fleet.query(ENDS)}
    assert set(ends) == {("COMPLETED", None, True, 1), ("CANCELED", "EXPIRED", False, 0)}
    assert sum(ends.values()) == count
    assert fleet.query(BEGUN_LATE) == [(0,)]
    [(least, most)] = fleet.query(LATE)
    assert least >= 0 and most < 3, "a second, on a machine with a core for each process"
