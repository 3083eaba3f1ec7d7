"""Settings of domains: changed by somebody, for a reason, and read back."""

from datetime import timedelta

import pytest

from cmdbus import CommandBus

pytestmark = pytest.mark.db


def test_pauses_and_changes_say_who_made_them_and_why(dsn: str) -> None:
    with CommandBus(dsn) as bus:
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


def test_what_changes_nothing_and_names_nobody_is_not_recorded(dsn: str) -> None:
    """An application that configures its domains at each start fills no table."""
    with CommandBus(dsn) as bus:
        for _ in range(3):
            bus.configure("payments", max_depth=10, keep=timedelta(days=1), accepting=True)
            bus.resume("payments")
        assert [event.kind for event in bus.domain_audit("payments")] == ["CONFIGURED"]
        bus.configure("payments", max_depth=10, operator="ann")
        assert len(bus.domain_audit("payments")) == 2


def test_how_long_history_is_kept_is_read_back(dsn: str) -> None:
    with CommandBus(dsn) as bus:
        bus.send("payments", "Debit")
        bus.configure("orders", keep=timedelta(hours=36))
        bus.configure("orders", max_depth=5)
        assert {record.domain: record.keep for record in bus.domains()} == {
            "orders": timedelta(hours=36),
            "payments": timedelta(days=7),
        }
