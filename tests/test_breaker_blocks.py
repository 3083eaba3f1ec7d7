"""Calls of more than one breaker, and blocks that are entered more than once."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from eventually import eventually, stays
from handlers import running
from other_side import LATER, OtherSide
from test_breaker_states import end_cooldown, report

from cmdbus import Breaker, BreakerOpenError, Command, CommandBus, Context, HandlerRegistry


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


@pytest.mark.parametrize("within", ["the block", "threads"])
def test_one_block_cannot_be_entered_twice_at_a_time(
    dsn: str, bus: CommandBus, other: OtherSide, within: str
) -> None:
    def call(command: Command, context: Context) -> None:
        block = context.breaker("stripe")

        def enter(_: int) -> None:
            with block:
                other()

        with block:
            pass
        with block:
            if within == "threads":
                with ThreadPoolExecutor(1) as threads:
                    list(threads.map(enter, range(1)))
            enter(0)

    registry = HandlerRegistry()
    registry.breaker(Breaker("stripe"))
    registry.register("payments", "Ask", call)
    with running(dsn, registry):
        record = bus.wait("payments", bus.send("payments", "Ask", max_attempts=1), 20)
    assert not other.calls
    assert record.error_code == "InvalidOperationError"
    assert record.error_message == (
        "a block of context.breaker() was entered again before its end: call "
        "context.breaker(name) for each block"
    )


def test_a_block_can_be_tried_again_after_it_was_kept_from_its_call(
    dsn: str, bus: CommandBus
) -> None:
    def call(command: Command, context: Context) -> int:
        block, denied = context.breaker("stripe"), 0
        for _ in range(2):
            try:
                with block:
                    pass
            except BreakerOpenError:
                denied += 1
        return denied

    registry = HandlerRegistry()
    registry.breaker(Breaker("stripe"))
    registry.register("payments", "Ask", call)
    with running(dsn, registry):
        eventually(bus.breakers.list)
        bus.breakers.open("stripe")
        assert bus.call("payments", "Ask") == 2
