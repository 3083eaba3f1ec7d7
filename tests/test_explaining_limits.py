"""A sentence that says at which limit a command waits, and which commands are in its way."""

import re

import psycopg
import pytest
from eventually import eventually
from handlers import handling, running
from queries import scalar
from roles import role
from test_lanes import Watched, debit, limit

from cmdbus import (
    Command,
    CommandBus,
    Context,
    PermanentCommandError,
    TransientCommandError,
)

SHARED = """
SELECT cmdbus.declare_limits('test', '[{"name": "stripe", "concurrency": 6,
    "covers": ["payments Debit", "payments Refund"]}]')"""
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+00:00"


def test_a_command_waits_for_the_places_of_its_key(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    limit(connection, concurrency=2)
    held = Watched(holds=True)
    with running(dsn, handling(held), concurrency=8):
        first, second = bus.send_many([debit("a")] * 2)
        eventually(lambda: held.running["a"] == 2)
        third, fourth = (bus.send("payments", "Debit", ["a"], key="a") for _ in range(2))
        places = f"payments/Debit lets 2 run at once of its key, and these do: {first}, {second}"
        assert bus.explain("payments", third) == f"It waits: {places}."
        assert bus.explain("payments", fourth) == (
            f"It waits: {places}, and 1 command of its type and key waits before it."
        )
        bus.pause("payments")
        assert bus.explain("payments", third) == (
            f"It waits: domain payments is paused, and {places}."
        )
        with role(dsn, "monitor") as monitor:
            assert bus.explain("payments", third, connection=monitor).endswith(f"{places}.")
        held.may_end.set()


def test_five_of_many_commands_that_hold_the_places_are_named(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    connection.execute(SHARED)
    held = Watched(holds=True)
    with running(dsn, handling(held), concurrency=8):
        ids = bus.send_many([debit(key) for key in "abcdef"])
        eventually(lambda: sum(held.running.values()) == 6)
        own = bus.send("payments", "Debit", ["g"], key="g")
        found = re.fullmatch(
            r"It waits: limit stripe lets 6 run at once, and these do: (.*) and 1 more\.",
            bus.explain("payments", own),
        )
        held.may_end.set()
    assert found is not None
    named = found[1].split(", ")
    assert len(named) == 5 and set(named) < set(map(str, ids))


def test_a_command_waits_for_the_one_that_holds_its_ordered_key(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    limit(connection, ordered=True)
    held = Watched(holds=True)

    def handle(command: Command, context: Context) -> None:
        if command.data == "later":
            raise TransientCommandError("BUSY", "later", retry_after=3600)
        if command.data == "never":
            raise PermanentCommandError("GONE", "an operator must look")
        held(command, context)

    order = "It waits: payments/Debit keeps the order of its key, in which"
    with running(dsn, handling(handle), concurrency=8):
        first = {
            key: bus.send("payments", "Debit", data, key=key)
            for key, data in (("a", ["a"]), ("b", "later"), ("c", "never"))
        }
        eventually(lambda: held.running["a"] == 1)
        bus.wait("payments", first["c"], 10)
        eventually(lambda: scalar(connection, "SELECT count(*) FROM cmdbus.scheduled") == 1)
        why = {
            key: bus.explain("payments", bus.send("payments", "Debit", [key], key=key))
            for key in first
        }
        held.may_end.set()
    assert why["a"] == f"{order} {first['a']} is in progress."
    assert re.fullmatch(rf"{order} {first['b']} is due again at {TIME}\.", why["b"])
    assert why["c"] == f"{order} {first['c']} waits in the troubleshooting queue."


@pytest.mark.parametrize("shared", [False, True])
def test_a_command_waits_until_its_rate_lets_it_start(
    dsn: str, bus: CommandBus, connection: psycopg.Connection, shared: bool
) -> None:
    if shared:
        rate = SHARED.replace('"concurrency": 6', '"starts_per_second": 0.0002, "burst": 1')
        connection.execute(rate.encode())
    else:
        limit(connection, starts_per_second=0.0002, burst=1)
    with running(dsn, handling(), concurrency=2):
        bus.wait("payments", bus.send("payments", "Debit"), 10)
        own, last = (bus.send("payments", "Debit") for _ in range(2))
        name = "limit stripe" if shared else "payments/Debit"
        sentence = rf"It waits: the rate of {name} lets the next one start at {TIME}\."
        assert re.fullmatch(sentence, bus.explain("payments", own))
        end = ", and 1 command of its type waits before it."
        assert bus.explain("payments", last) == bus.explain("payments", own)[:-1] + end


def test_a_command_whose_limit_has_room_is_the_next_one(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    limit(connection, concurrency=1)
    bus.send("payments", "Debit", key="a")
    own = bus.send("payments", "Debit")
    assert bus.explain("payments", own) == "It waits: no node is alive."
    connection.execute(
        "INSERT INTO cmdbus.node VALUES (1, '30 s', clock_timestamp(), '{payments Debit}')"
    )
    assert bus.explain("payments", own) == "It waits: it is the next one that a free thread claims."
