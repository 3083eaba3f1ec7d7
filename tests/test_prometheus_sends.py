"""What the collector counts of a program that sends."""

import threading
from collections.abc import Iterator

import psycopg
import pytest
from eventually import eventually
from forks import result_of_child
from prometheus_client import CollectorRegistry
from queries import NOWHERE
from scrapes import registered, samples

from cmdbus import (
    CommandBus,
    DatabaseUnavailableError,
    DuplicateCommandError,
    QueueFullError,
    SendRefusedError,
    SendRequest,
    ShutdownError,
    instruments,
)
from cmdbus.prometheus import Collector, send_counters

DEBIT = SendRequest("payments", "Debit")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[CollectorRegistry]:
    """Of a process that has sent nothing."""
    monkeypatch.setattr(send_counters.SEND_COUNTERS, "_counts", {})
    with registered() as registry:
        yield registry


def counted(registry: CollectorRegistry, name: str) -> dict[tuple[str, ...], float]:
    found = samples(registry, f"cmdbus_{name}").items()
    return {tuple(value for _, value in labels): count for labels, count in found}


def test_each_sent_command_counts_whatever_has_sent_it(
    bus: CommandBus, registry: CollectorRegistry
) -> None:
    bus.send("payments", "Debit")
    bus.send_many([DEBIT, DEBIT, SendRequest("orders", "Place")])
    bus.create_batch("payments", [DEBIT])
    bus.create_batch("payments", iter([DEBIT, DEBIT]))
    assert counted(registry, "sent_commands") == {
        ("orders", "Place"): 1,
        ("other", "other"): 2,
        ("payments", "Debit"): 4,
    }
    calls = samples(registry, "cmdbus_send_seconds", "_count")
    assert {labels[0][1]: count for labels, count in calls.items()} == {
        "send": 1,
        "send_many": 1,
        "create_batch": 2,
    }
    assert all(samples(registry, "cmdbus_send_seconds", "_sum").values())


def test_refusals_count_by_reason_and_domain(
    bus: CommandBus, dsn: str, registry: CollectorRegistry
) -> None:
    def refuse(request: SendRequest) -> SendRequest:
        raise SendRefusedError("NO_MORE", "today")

    command_id = bus.send("payments", "Debit")
    bus.configure("orders", max_depth=1)
    bus.configure("closed", accepting=False)
    with pytest.raises(DuplicateCommandError):
        bus.send("payments", "Debit", command_id=command_id)
    with pytest.raises(QueueFullError):
        bus.send_many([SendRequest("orders", "Place")] * 2)
    with pytest.raises(ShutdownError):
        bus.send("closed", "Place")
    with pytest.raises(ValueError):
        bus.send("pay ments", "Debit")
    with CommandBus(dsn, on_send=refuse) as refusing, pytest.raises(SendRefusedError):
        refusing.send("payments", "Debit")
    assert counted(registry, "send_refusals") == {
        ("", "argument"): 1,
        ("", "hook"): 1,
        ("closed", "closed"): 1,
        ("orders", "full"): 1,
        ("payments", "duplicate"): 1,
    }
    assert counted(registry, "send_failures") == {}
    assert counted(registry, "sent_commands") == {("payments", "Debit"): 1}


def test_failures_count_by_error(registry: CollectorRegistry) -> None:
    with CommandBus(NOWHERE) as bus, pytest.raises(DatabaseUnavailableError):
        bus.send("payments", "Debit")
    assert counted(registry, "send_failures") == {("DatabaseUnavailableError",): 1}
    assert counted(registry, "send_refusals") == {}


def test_series_are_bounded(bus: CommandBus, registry: CollectorRegistry) -> None:
    bus.send_many([SendRequest("payments", f"Type{n}") for n in range(1100)])
    found = counted(registry, "sent_commands")
    assert len(found) == 1001 and found["other", "other"] == 100


def test_nothing_is_counted_before_the_first_collector_and_after_the_last(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_counters.SEND_COUNTERS, "_counts", {})
    bus.send("payments", "Debit")
    with registered() as first, registered() as second:
        bus.send("payments", "Debit")
        assert counted(first, "sent_commands") == counted(second, "sent_commands")
    assert instruments.installed == ()
    bus.send("payments", "Debit")
    assert counted(first, "sent_commands") == {("payments", "Debit"): 1}


@pytest.mark.parametrize("closes", [True, False])
def test_a_collector_that_is_closed_or_forgotten_leaves_nothing(
    bus: CommandBus, closes: bool
) -> None:
    threads = threading.active_count()
    collector = Collector(bus)
    assert [*collector.collect()] and threading.active_count() == threads + 1
    if closes:
        collector.close()
        assert [*collector.collect()]
    else:
        del collector
    assert instruments.installed == ()
    # A second is waited for the thread, which may still close its session.
    eventually(lambda: threading.active_count() == threads)


@pytest.mark.process
def test_a_fork_counts_what_it_sends_itself_on_sessions_of_its_own(
    bus: CommandBus, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As gunicorn's workers, whose application was loaded before."""

    def child() -> str:
        with CommandBus(dsn) as own:
            own.send("orders", "Place")
        eventually(lambda: samples(registry, "cmdbus_queue_depth"))
        sent = counted(registry, "sent_commands")
        return f"{sent} {len(pids() - before)}"

    def pids() -> set[int]:
        query = (
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'cmdbus:metrics'"
            " AND datname = current_database()"
        )
        with psycopg.connect(dsn) as connection:
            return {pid for (pid,) in connection.execute(query.encode())}

    monkeypatch.setattr(send_counters.SEND_COUNTERS, "_counts", {})
    with registered(bus) as registry:
        bus.send("payments", "Debit")
        assert eventually(lambda: samples(registry, "cmdbus_queue_depth"))
        before = pids()
        assert len(before) == 1
        assert result_of_child(child) == "{('orders', 'Place'): 1} 1"
        assert counted(registry, "sent_commands") == {("payments", "Debit"): 1}
        assert eventually(lambda: pids() == before)
