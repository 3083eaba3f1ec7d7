"""Fleets on hosts of their own, in network namespaces, against one server."""

import shlex
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from eventually import eventually
from fault_injection.hosts import Host, HostsError
from fault_injection.hosts import hosts as make_hosts
from fault_injection.proxy import Proxy
from fleet import Fleet, unstarted

from cmdbus.board.health import Health

pytestmark = pytest.mark.fleet

#: From the link's end until the last thread has noticed it.
NOTICED_S = 10.0


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    """Two, with what leads from there to the server."""
    with ExitStack() as stack:
        try:
            made = stack.enter_context(make_hosts("xy"))
        except HostsError as error:
            pytest.skip(str(error))
        yield made


def start_on(host: Host, dsn: str, fleet: Fleet) -> None:
    there = " ".join(shlex.quote(word) for word in host.prefix)
    fleet.start(shell=f'export CMDBUS_DSN={shlex.quote(dsn)}; exec {there} "$@"')
    fleet.wait_until_ready()


def test_what_a_host_has_that_is_cut_off_is_run_by_others(
    dsn: str, tmp_path: Path, hosts: list[Host]
) -> None:
    """It is noticed in time, nothing of what it still does lands, and it works again
    when the link is there again."""
    with (
        tempfile.TemporaryDirectory(prefix="p") as directory,
        unstarted(dsn, tmp_path, alone=False, procs=1, name="one") as one,
        unstarted(dsn, tmp_path, alone=False, procs=1, name="other") as other,
    ):
        relay = Proxy(dsn, Path(directory))
        try:
            start_on(hosts[0], relay.listen(hosts[0].address), one)
            ids = one.start_gates(4)
            start_on(hosts[1], relay.listen(hosts[1].address), other)
            before = one.pids()
            hosts[0].pull_plug()
            began = time.monotonic()
            one.open_gate()
            other.await_completed(ids, NOTICED_S)
            eventually(lambda: not one.executing("Gate"), NOTICED_S)
            eventually(lambda: steward_is_away(one), NOTICED_S)
            assert time.monotonic() - began < NOTICED_S
            ids += other.send("Debit", 20)
            other.await_completed(ids)
            hosts[0].plug_in()
            eventually(lambda: one.look().listening and not steward_is_away(one), 20)
            other.stop()
            ids += one.send("Debit", 20)
            one.await_completed(ids, 20)
            assert one.effects(ids) == {1: 44}
            assert one.pids() == before
            assert one.stop() == 0
        finally:
            hosts[0].plug_in()
            relay.close()


def steward_is_away(fleet: Fleet) -> bool:
    stewards = [seat for seat in fleet.look().seats if seat.pid == fleet.steward()]
    return stewards[0].health is Health.DATABASE_AWAY
