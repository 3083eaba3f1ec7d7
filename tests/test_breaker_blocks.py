"""Calls of more than one breaker."""

import psycopg
import pytest
from eventually import eventually, stays
from handlers import running
from other_side import LATER, OtherSide
from test_breaker_states import end_cooldown, report

from cmdbus import Breaker, Command, CommandBus, Context, HandlerRegistry


@pytest.fixture
def other() -> OtherSide:
    return OtherSide()


def test_a_probe_that_another_breaker_cuts_short_is_followed_by_a_cooldown(
    dsn: str, bus: CommandBus, other: OtherSide, connection: psycopg.Connection
) -> None:
    def call(command: Command, context: Context) -> None:
        other()
        with context.breaker("mail"):
            pass

    registry = HandlerRegistry()
    for name in ("stripe", "mail"):
        registry.breaker(Breaker(name, cooldown=600))
    registry.register("payments", "Charge", call, breaker="stripe", retry=LATER)
    with running(dsn, registry):
        eventually(lambda: len(bus.breakers.list()) == 2)
        with connection.transaction():
            report(connection, failed_ago=[0] * 5)
            end_cooldown(connection)
        bus.breakers.open("mail")
        for _ in range(5):
            bus.send("payments", "Charge")
        eventually(lambda: len(bus.breakers.audit("stripe")) == 3)
        stays(lambda: len(other.calls) == 1, 0.2)
    [_, half_opened, opened] = bus.breakers.audit("stripe")
    assert (half_opened.kind, opened.kind) == ("HALF_OPENED", "OPENED")
