"""Breakers where a worker has just the rights of its kind."""

from eventually import eventually
from guarded import Guarded
from handlers import running
from other_side import OtherSide, bound_to
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from queries import rows

from cmdbus import CommandBus, SendRequest


def test_breakers_need_no_other_rights(guarded: Guarded) -> None:
    """A worker declares them, reports, and takes places."""
    other = OtherSide()
    other.fail()
    with guarded.role("worker") as dsn:
        owner = make_conninfo(guarded.embedded.dsn, dbname=conninfo_to_dict(dsn)["user"])
        with running(dsn, bound_to(other)), CommandBus(owner) as bus:
            bus.send_many([SendRequest("payments", type) for type in ("Charge", "Ask")] * 5)
            states = "SELECT state FROM cmdbus.breaker"
            eventually(lambda: rows(owner, states) == [("OPEN",)])
            other.error = None
            eventually(lambda: rows(owner, states) == [("CLOSED",)])
            eventually(lambda: rows(owner, "SELECT count(*) FROM cmdbus.ready") == [(0,)])
