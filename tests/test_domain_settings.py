"""Settings of domains: changed by an operator, for a reason, and read back."""

from datetime import timedelta
from threading import Event

import psycopg
import pytest
from roles import role

from cmdbus import CommandBus
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.steward.retention import Retention


def test_pauses_and_changes_say_who_made_them_and_why(bus: CommandBus) -> None:
    bus.pause("payments", operator="ann", reason="wrong prices")
    bus.resume("payments", operator="bob")
    bus.configure("payments", max_depth=10, operator="ann", reason="slow provider")
    bus.pause("orders")
    audit = bus.domain_audit("payments")
    assert [(event.kind, event.operator, event.message) for event in audit] == [
        ("PAUSED", "ann", "wrong prices"),
        ("RESUMED", "bob", None),
        ("CONFIGURED", "ann", "slow provider"),
    ]
    assert audit[-1].details == {"before": {"max_depth": None}, "after": {"max_depth": 10}}
    assert [event.kind for event in bus.domain_audit("orders")] == ["PAUSED"]


def test_what_changes_nothing_and_names_nobody_is_not_recorded(bus: CommandBus) -> None:
    """An application that configures its domains at each start fills no table."""
    for _ in range(3):
        bus.configure("payments", max_depth=10, keep=timedelta(days=1), accepting=True)
        bus.resume("payments")
    assert [event.kind for event in bus.domain_audit("payments")] == ["CONFIGURED"]
    bus.configure("payments", max_depth=10, operator="ann")
    assert len(bus.domain_audit("payments")) == 2


def test_how_long_history_is_kept_is_read_back(bus: CommandBus) -> None:
    bus.send("payments", "Debit")
    bus.configure("orders", keep=timedelta(hours=36))
    bus.configure("orders", max_depth=5)
    assert {record.domain: record.keep for record in bus.domains()} == {
        "orders": timedelta(hours=36),
        "payments": timedelta(days=7),
    }


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("keep", "'-1 day'"),
        ("keep", "'-1 month 1 day'"),
        ("keep", "'300000 years'"),
        ("keep", "'36525 days 1 second'"),
        ("keep", "NULL"),
        ("max_depth", "0"),
        ("warn_depth", "-1"),
    ],
)
def test_an_operators_role_can_set_nothing_that_stops_or_empties_retention(
    dsn: str, setting: str, value: str
) -> None:
    """A negative time would remove what has not been kept at all, a long one is no date."""
    call = (
        f"SELECT cmdbus.configure_domain('payments', ARRAY['{setting}'], 'ann', NULL,"
        f" p_{setting} => {value})"
    )
    with role(dsn, "operator") as operator:
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=f"p_{setting} must be"):
            operator.execute(call.encode())
        assert operator.execute("SELECT count(*) FROM cmdbus.domain").fetchone() == (0,)
    with psycopg.connect(dsn) as owner, pytest.raises(psycopg.IntegrityError):
        row = f"INSERT INTO cmdbus.domain (name, {setting}) VALUES ('payments', {value})"
        owner.execute(row.encode())


def test_the_longest_and_the_shortest_time_to_keep_history_work(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    for days in (0, 36525):
        bus.configure("payments", keep=timedelta(days=days))
        retention = Retention(ClaimStatements("cmdbus", 30), Event())
        retention.remove_days(connection)
        retention.sweep(connection)
