"""Limits come into force when a fleet or a worker starts."""

import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest
from eventually import eventually
from fleet import Fleet, write_app
from handlers import do_nothing, running
from preflights import checks
from queries import rows

from cmdbus import HandlerRegistry
from cmdbus.database.executor import Executor
from cmdbus.declarations import Declarations
from cmdbus.limits import Declaration, Limit
from cmdbus.readiness import Finding
from cmdbus.settings import Settings
from cmdbus.worker.boot.preflight import preflight
from cmdbus.worker.declaring import declare

LIMITED = """
from fleet_app import registry as registry
registry.limit("stripe", domain="shop", concurrency={concurrency})
"""


def limited(**options: Any) -> HandlerRegistry:
    registry = HandlerRegistry()
    registry.register("payments", "Debit", do_nothing, **options)
    return registry


def as_app(monkeypatch: pytest.MonkeyPatch, registry: HandlerRegistry) -> str:
    """The app that has this registry. That of fleets disables loggers when it is imported."""
    module = ModuleType("declaring_app")
    vars(module)["registry"] = registry
    monkeypatch.setitem(sys.modules, "declaring_app", module)
    return "declaring_app:registry"


def declared(dsn: str) -> list[tuple[Any, ...]]:
    return rows(dsn, "SELECT app, name, concurrency FROM cmdbus.limit_declared ORDER BY app, name")


def test_a_worker_declares_when_it_starts_and_removes_what_it_no_longer_declares(dsn: str) -> None:
    with running(dsn, limited(concurrency=5)):
        eventually(lambda: declared(dsn) == [("worker:payments", "payments Debit", 5)])
    with running(dsn, limited(concurrency=6), name="debits"):
        eventually(lambda: ("worker:debits", "payments Debit", 6) in declared(dsn))
    assert rows(dsn, "SELECT name, concurrency FROM cmdbus.limit_in_force") == [
        ("payments Debit", 6)
    ]
    with running(dsn, limited()):
        eventually(lambda: declared(dsn) == [("worker:debits", "payments Debit", 6)])


def test_an_app_without_limits_and_tags_writes_nothing(
    dsn: str, connection: psycopg.Connection
) -> None:
    """Neither a row nor a lock that another start would wait for."""
    with connection.transaction():
        connection.execute("SELECT cmdbus.begin_limit_change()")
        with psycopg.connect(dsn, autocommit=True) as other:
            other.execute("SET lock_timeout = '100ms'")
            other.execute("SET default_transaction_read_only = on")
            assert declare(other, Executor("cmdbus"), "shop", Declarations()) == []


def test_the_check_shows_limits_and_declares_none(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = limited(ordered=True, limit="stripe")
    registry.limit("stripe", rate="100/min")
    app = as_app(monkeypatch, registry)
    check = checks(dsn, app=app)["limits"]
    assert check.sentence == (
        "payments/Debit: in order (block on trouble), by key; stripe: 100/min, for payments/Debit"
    )
    assert (check.finding, declared(dsn)) == (Finding.OK, [])
    assert "limits" not in checks(dsn)


def test_a_fleet_that_cannot_start_declares_nothing(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = as_app(monkeypatch, limited(concurrency=5))
    settings = Settings(app=app, dsn=dsn, procs=1, threads=2)
    broken = Settings(app=app, dsn=dsn, procs=9999, threads=2)
    assert Finding.FATAL in {check.finding for check in preflight(broken, declares=True)}
    assert declared(dsn) == []
    names = [check.name for check in preflight(settings, declares=True)]
    assert names[-1] == "declaration"
    assert declared(dsn) == [(app, "payments Debit", 5)]


def test_a_start_waits_while_a_change_of_limits_is_not_committed(
    dsn: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = as_app(monkeypatch, limited(concurrency=5))
    settings = Settings(app=app, dsn=dsn, procs=1, threads=2)
    with connection.transaction():
        connection.execute("SELECT cmdbus.begin_limit_change()")
        check = list(preflight(settings, declares=True))[-1]
    assert check.finding is Finding.AWAY
    assert "another session holds a lock that it needs" in check.sentence


def test_a_start_says_which_limits_of_living_nodes_it_changes(
    dsn: str, connection: psycopg.Connection
) -> None:
    def declaring(*limits: Declaration) -> list[str]:
        changes = declare(connection, Executor("cmdbus"), "shop", Declarations(limits=limits))
        return [sentence for _, sentence in changes]

    own = Declaration("payments Debit", Limit(concurrency=5))
    shared = Declaration("stripe", Limit(starts_per_second=2.0), ("payments",))
    other = Declaration("mail Send", Limit(fair=True))
    assert declaring(own, shared, other) == []
    changed = Declaration("payments Debit", Limit(concurrency=1, ordered=True))
    assert declaring(changed, other) == []  # No node lives.
    declaring(own, shared, other)
    with running(dsn, limited(concurrency=5)):
        eventually(lambda: rows(dsn, "SELECT FROM cmdbus.node"))
        assert declaring(own, shared, other) == []
        begin = "the limit {}, which a node that is running has declared, is now:"
        assert declaring(changed) == [
            f"{begin.format('payments/Debit')} in order (block on trouble), by key; it was: "
            f"5 at once, by key",
            f"{begin.format('stripe')} not declared; it was: 2/s, for payments",
        ]


@pytest.mark.fleet(started=False, procs=1)
def test_a_fleet_declares_its_limits_before_its_workers_start_and_at_a_reload(
    fleet: Fleet,
) -> None:
    write_app(fleet.place, LIMITED.format(concurrency=5))
    fleet.start()
    fleet.wait_until_ready()
    in_force = "SELECT name, concurrency FROM cmdbus.limit_in_force"
    assert fleet.query(in_force) == [("stripe", 5)]
    assert fleet.logged("limits:") == []
    # The workers are waiting, so each of their nodes is known to live.
    write_app(fleet.place, LIMITED.format(concurrency=7))
    pids = fleet.pids().values()
    fleet.send_signal(signal.SIGHUP)
    fleet.await_successors(pids)
    assert fleet.query(in_force) == [("stripe", 7)]
    [warning] = fleet.logged("limits:")
    assert "stripe, which a node that is running has declared, is now: 7 at once" in warning
    write_app(fleet.place, LIMITED.format(concurrency=9))
    pids = fleet.pids().values()
    with psycopg.connect(fleet.dsn) as other:
        other.execute("SELECT cmdbus.begin_limit_change()")
        fleet.send_signal(signal.SIGHUP)
        [warning] = fleet.await_saying("the limits of the app are not declared: ")
    assert warning.endswith("; reload again later")
    fleet.await_successors(pids)
    assert fleet.query(in_force) == [("stripe", 7)]
