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
    """Calls `ask` with the numbers up to `count`, by four threads, and kills all workers once for
    each tenth of them."""
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(ask, number) for number in range(count)]
        for last in asked[count // 10 :: count // 5]:
            last.result()
            pids = fleet.pids().values()
            kill(pids)
            fleet.await_successors(pids)
        for each in asked:
            each.result()
