"""Limits where workers and producers have just the rights of their kinds."""

import pytest
from eventually import eventually
from guarded import Guarded
from handlers import do_nothing, running
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from queries import rows

from cmdbus import CommandBus, HandlerRegistry, SendRequest


@pytest.fixture
def registry() -> HandlerRegistry:
    registry = HandlerRegistry()
    registry.register("payments", "Debit", do_nothing, concurrency=1, fair=True, limit="bank")
    registry.register("payments", "Post", do_nothing, ordered=True)
    registry.limit("bank", rate="200/s", domain="payments")
    registry.limit("node", concurrency=2, domain="payments", per="node")
    return registry


@pytest.mark.parametrize("kind", ["worker", "producer"])
def test_limits_need_no_other_rights(
    guarded: Guarded, registry: HandlerRegistry, kind: str
) -> None:
    """A worker declares them and claims by them; a producer sends to types that have them."""
    with guarded.role(kind) as dsn:
        owner = make_conninfo(guarded.embedded.dsn, dbname=conninfo_to_dict(dsn)["user"])
        workers = dsn if kind == "worker" else owner
        with running(workers, registry), CommandBus(dsn) as sender, CommandBus(owner) as bus:
            eventually(lambda: rows(owner, "SELECT FROM cmdbus.limit_in_force"))
            sender.send_many(
                SendRequest("payments", type_, key=key)
                for type_ in ("Debit", "Post")
                for key in (None, "a", "b")
            )
            sender.send("payments", "Debit", key="a")
            sender.send("payments", "Post", delay=0.1)
            sender.call("payments", "Post")
            eventually(lambda: len(bus.query(status="COMPLETED")) == 9)
