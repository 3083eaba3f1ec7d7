"""The collector for prometheus_client, with the real library."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from async_buses import Make, makes
from eventually import eventually
from handlers import ONCE, handling, running
from prometheus_client import CollectorRegistry, generate_latest
from proxy import Proxy
from psycopg.conninfo import make_conninfo
from queries import NOWHERE
from roles import role
from scrapes import read, registered, samples, scraped, values_of

from cmdbus import Command, CommandBus, Context, PermanentCommandError
from cmdbus.prometheus import Collector
from cmdbus.prometheus.collector import _view_of
from cmdbus.worker import Worker
from cmdbus.worker.probes import database
from cmdbus.worker.probes.exposition import render

DEPTH = "cmdbus_queue_depth"
WRONG: Any = "dbname=shop"


def debit(command: Command, context: Context) -> None:
    if command.data:
        raise PermanentCommandError("GONE", "never")


def known(registry: CollectorRegistry) -> bool:
    return bool(samples(registry, DEPTH))


def test_a_registry_says_what_the_page_of_metrics_says(
    dsn: str, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same board and the same counts: each family with its type, its text, and its samples,
    in both formats."""
    monkeypatch.setattr(database, "_FRESH_SECONDS", 60)
    with running(dsn, handling(debit, retry=ONCE)) as worker:
        for data in (None, 1):
            bus.wait("payments", bus.send("payments", "Debit", data), 10)
    bus.send("payments", "Noop")
    collector = Collector(bus, worker, sends=False)
    registry = CollectorRegistry()
    registry.register(collector)
    with ExitStack() as closing:
        closing.callback(collector.close)
        assert eventually(lambda: known(registry))
        [gauge] = collector._gauges.values()
        counters = worker._telemetry.board.counters()
        page = render(_view_of(worker), counters, gauge.read())
        expected = read(page)
        text = generate_latest(registry).decode()
        assert scraped(registry).keys() == expected.keys()
    assert [*read(text)] == [*expected] and len(expected) == 30
    for name, family in read(text).items():
        other = expected[name]
        assert (family.type, family.documentation) == (other.type, other.documentation)
        assert values_of(family) == values_of(other)
    ended = {s.labels["outcome"]: s.value for s in expected["cmdbus_commands"].samples if s.value}
    assert ended == {"completed": 1, "trouble": 1}


def test_openmetrics_have_the_same_samples(dsn: str, bus: CommandBus) -> None:
    with running(dsn, handling(debit)) as worker:
        bus.wait("payments", bus.send("payments", "Debit"), 10)
    with registered(worker=worker, sends=False) as registry:
        plain = read(generate_latest(registry).decode())
        for name, family in scraped(registry).items():
            assert values_of(family) == values_of(plain[name])


def test_only_what_is_given_is_shown(bus: CommandBus) -> None:
    def names(registry: CollectorRegistry) -> list[str]:
        return [metric.name for metric in registry.collect()]

    with registered(sends=True) as registry:
        sends = names(registry)
        assert sends and all(name.startswith("cmdbus_sen") for name in sends)
    worker = Worker(NOWHERE, handling())
    with (
        registered(bus, sends=False) as of_bus,
        registered(worker=worker, sends=False) as of_worker,
    ):
        assert DEPTH in names(of_bus) and "cmdbus_slots" not in names(of_bus)
        assert DEPTH not in names(of_worker) and "cmdbus_slots" in names(of_worker)
        assert len({*names(of_bus), *names(of_worker)}) == 30


def test_a_worker_has_health_and_threads_while_it_runs(dsn: str) -> None:
    def health() -> list[float]:
        return [*samples(registry, "cmdbus_health").values()]

    with ExitStack() as opened:
        with running(dsn, handling(), concurrency=2) as worker:
            registry = opened.enter_context(registered(worker=worker))
            assert eventually(lambda: health() == [0])
            assert samples(registry, "cmdbus_threads") == {(("seat", "0"),): 2}
            assert eventually(lambda: sum(samples(registry, "cmdbus_slots").values()) >= 2)
        assert health() == [4]


def test_a_registration_reads_nothing_and_refuses_a_second_one() -> None:
    threads = threading.active_count()
    with registered(CommandBus(NOWHERE)) as registry:
        with pytest.raises(ValueError, match=r"Duplicated timeseries .*cmdbus_queue_depth"):
            registry.register(Collector(CommandBus(NOWHERE), sends=False))
        assert threading.active_count() == threads
    with registered(worker=Worker(NOWHERE, handling())) as registry:
        page = generate_latest(registry.restricted_registry(["cmdbus_wakeups_total"])).decode()
        assert [*read(page)] == ["cmdbus_wakeups"]


def test_a_database_that_is_away_has_no_samples_and_a_gauge_that_says_so(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def is_up() -> list[float]:
        return [*samples(registry, "cmdbus_database_up").values()]

    monkeypatch.setattr(database, "_FRESH_SECONDS", 0)
    monkeypatch.setattr(database, "_STALE_SECONDS", 0.2)
    with Proxy(dsn) as proxy, CommandBus(proxy.dsn) as bus, registered(bus) as registry:
        bus.send("payments", "Debit")
        assert eventually(lambda: known(registry)) and is_up() == [1]
        with proxy.away():
            assert eventually(lambda: is_up() == [0] and not known(registry))
            assert scraped(registry)[DEPTH].samples == []
        assert eventually(lambda: known(registry) and is_up() == [1])
    assert caplog.text.count("the metrics of the database are not known") <= 2


def test_a_scrape_waits_for_the_database_no_longer_than_it_may(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seconds_of_scrape() -> float:
        began = time.monotonic()
        assert scraped(registry)
        return time.monotonic() - began

    monkeypatch.setattr(database, "_FRESH_SECONDS", 0)
    with Proxy(dsn) as proxy, CommandBus(proxy.dsn) as bus:
        bus.send("payments", "Debit")
        with registered(bus, timeout=0.05) as registry:
            assert eventually(lambda: known(registry))
            proxy.freeze()
            assert any(seconds_of_scrape() < 1 for _ in range(3))
            proxy.cut()  # so that the thread, which waits for a count, ends


def test_a_role_without_the_right_is_told_which_one_it_lacks(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    with role(dsn, "producer") as connection:
        name = connection.execute("SELECT current_user").fetchall()[0][0]
        of_role = make_conninfo(dsn, options=f"-c role={name}")
        with CommandBus(of_role) as bus, registered(bus) as registry:
            up = eventually(lambda: samples(registry, "cmdbus_database_up"))
            assert up == {(): 1} and not known(registry)
    assert f"run cmdbus init --monitor {name}" in caplog.text
    assert caplog.text.count("the metrics of the database are not known") == 1


def test_a_role_of_monitors_may_read_all_of_it(dsn: str, bus: CommandBus) -> None:
    bus.send("payments", "Debit")
    with role(dsn, "monitor") as connection:
        name = connection.execute("SELECT current_user").fetchall()[0][0]
        of_role = make_conninfo(dsn, options=f"-c role={name}")
        with CommandBus(of_role) as monitors, registered(monitors) as registry:
            assert eventually(lambda: known(registry))
            for family in ("batches", "oldest_snapshot_seconds", "nodes", "queue_oldest_seconds"):
                assert samples(registry, f"cmdbus_{family}")


@makes
def test_a_bus_of_asyncio_can_be_given(make: Make, dsn: str) -> None:
    async def main() -> None:
        async with make(dsn) as bus:
            await bus.send("payments", "Debit")
            with registered(bus) as registry:
                assert await asyncio.to_thread(eventually, lambda: known(registry))

    asyncio.run(main())


def test_a_queue_that_becomes_empty_keeps_its_series(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ready() -> float | None:
        labels = ("domain", "payments"), ("state", "ready")
        return samples(registry, DEPTH).get(labels)

    monkeypatch.setattr(database, "_FRESH_SECONDS", 0)
    command_id = bus.send("payments", "Debit")
    with registered(bus) as registry:
        assert eventually(lambda: ready() == 1)
        bus.cancel("payments", command_id)
        assert eventually(lambda: ready() == 0)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Collector(WRONG), "bus must be a CommandBus or an Async.*, not 'd"),
        (lambda: Collector(worker=WRONG), "worker must be a Worker, not 'd"),
        (lambda: Collector(sends=False), "nothing to show: give it a bus or a worker"),
        (lambda: Collector(timeout=-1), "timeout must be"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(
    make: Callable[[], Collector], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()


def test_without_the_library_the_import_names_the_extra() -> None:
    code = "import sys; sys.modules['prometheus_client'] = None; import cmdbus.prometheus"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: cmdbus.prometheus needs the extra prometheus: "
        "pip install 'cmdbus[prometheus]'"
    )
