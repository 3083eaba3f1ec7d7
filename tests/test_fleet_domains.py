"""A fleet whose app has far more domains than a board has room for names."""

from pathlib import Path

import pytest
from fleet import Fleet, write_app

from cmdbus import CommandBus, SendRequest

pytestmark = [pytest.mark.fleet, pytest.mark.long, pytest.mark.timeout(180)]

DOMAINS = 1000
APP = f"""
import time
from cmdbus import HandlerRegistry
registry = HandlerRegistry()
for number in range({DOMAINS}):
    registry.register(f"domain{{number}}", "Noop", lambda command, context: None)
    registry.register(f"domain{{number}}", "Sleep", lambda command, context: time.sleep(2.5))
"""


@pytest.mark.fleet(started=False, threads=8)
def test_a_thousand_domains_run_and_their_leases_are_renewed(
    fleet: Fleet, tmp_path: Path, bus: CommandBus
) -> None:
    """Each process has seen more domains than it shows before the commands that outlast a lease."""
    write_app(tmp_path, APP)
    fleet.start()
    ids = bus.send_many([SendRequest(f"domain{n}", "Noop") for n in range(DOMAINS)])
    fleet.await_completed(ids, 90)
    ids = bus.send_many([SendRequest(f"domain{n}", "Sleep") for n in range(0, DOMAINS, 31)])
    fleet.await_completed(ids, 60)
    assert fleet.query("SELECT max(token), max(losses) FROM cmdbus.finished") == [(1, 0)]
