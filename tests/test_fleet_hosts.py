"""Fleets on hosts of their own, in network namespaces, against one server."""

import importlib
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from fleet import Fleet, make_effects, seconds_since, unstarted

from cmdbus.board.health import Health

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"

#: Fleets of a busy machine take their time to boot.
pytestmark = [
    pytest.mark.db,
    pytest.mark.fleet,
    pytest.mark.timeout(90),
    pytest.mark.skipif(not SCRIPTS.exists(), reason="needs the checkout's scripts"),
]

#: From the link's end to the last thread that knows, as promised.
NOTICED_S = 10.0


@pytest.fixture
def storms() -> Iterator[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(SCRIPTS)
        before = set(sys.modules)
        yield {name: importlib.import_module(f"storms.{name}") for name in ("hosts", "proxy")}
        for name in set(sys.modules) - before:
            if name.split(".")[0] == "storms":
                del sys.modules[name]


@pytest.fixture
def hosts(storms: dict[str, Any]) -> Iterator[list[Any]]:
    """Two, with what leads from there to the server."""
    module = storms["hosts"]
    try:
        made = module.hosts("xy")
        found = made.__enter__()
    except module.HostsError as error:
        pytest.skip(str(error))
    try:
        yield found
    finally:
        made.__exit__(None, None, None)


def start_on(host: Any, dsn: str, fleet: Fleet) -> None:
    there = " ".join(shlex.quote(word) for word in host.prefix)
    fleet.start(shell=f'export CMDBUS_DSN={shlex.quote(dsn)}; exec {there} "$@"')
    fleet.wait_until_ready()


def test_what_a_host_has_that_is_cut_off_is_run_by_others(
    dsn: str, tmp_path: Path, storms: dict[str, Any], hosts: list[Any]
) -> None:
    """It is noticed in time, nothing of what it still does lands, and it works again
    when the link is there again."""
    make_effects(dsn)
    with (
        tempfile.TemporaryDirectory(prefix="p") as directory,
        unstarted(dsn, tmp_path, alone=False, name="one") as one,
        unstarted(dsn, tmp_path, alone=False, name="other") as other,
    ):
        relay = storms["proxy"].Proxy(dsn, Path(directory))
        try:
            start_on(hosts[0], relay.listen(hosts[0].address), one)
            ids = one.send("Gate", 4, data="open")
            eventually(lambda: len(one.executing("Gate")) == 4)
            start_on(hosts[1], relay.listen(hosts[1].address), other)
            before = one.pids()
            hosts[0].pull_plug()
            began = time.monotonic()
            (tmp_path / "open").touch()
            other.await_completed(ids, NOTICED_S)
            eventually(lambda: not one.executing("Gate"), NOTICED_S)
            eventually(lambda: steward_is_away(one), NOTICED_S)
            assert seconds_since(began) < NOTICED_S
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
