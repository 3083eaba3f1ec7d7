"""Fleets of the example applications in `apps`, which are used, not tested."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from eventually import eventually
from fleet import Fleet, kill

#: As they are by default, not those of the tests of fleets.
TIMEOUTS: dict[str, Any] = {
    "statement_timeout": 25,
    "pool_timeout": 30,
    "visibility_timeout": 30,
    "thread_timeout": 35,
    "watchdog_timeout": 60,
}


def await_ends(fleet: Fleet) -> dict[str, str]:
    """The statuses of all commands, by id, once the last has ended."""
    left = "SELECT count(*) FROM cmdbus.command WHERE status NOT IN ('COMPLETED', 'FAILED')"
    eventually(lambda: fleet.query(left) == [(0,)], 60)
    return dict(fleet.query("SELECT command_id::text, status FROM cmdbus.command"))


def while_workers_are_killed(fleet: Fleet, ask: Callable[[int], object], count: int) -> None:
    """Calls `ask` with the numbers up to `count`, by four threads, and kills workers in the midst
    of each fifth of them."""
    fifth = count // 5
    with ThreadPoolExecutor(4) as threads:
        for first in range(0, count, fifth):
            asked = [threads.submit(ask, number) for number in range(first, first + fifth)]
            asked[fifth // 2].result()
            pids = eventually(lambda: workers_that_have_settled(fleet), 30)
            kill(pids)
            fleet.await_successors(pids)
            for each in asked:
                each.result()


def workers_that_have_settled(fleet: Fleet) -> list[int]:
    """The pids of those that have ended a command. The death of another one counts as early, and
    a few early deaths as a crash loop."""
    claimers = {claimer for (claimer,) in fleet.query("SELECT claimer FROM cmdbus.finished")}
    workers = fleet.workers().values()
    return [seat.pid for seat in workers if seat.pid and seat.incarnation in claimers]
