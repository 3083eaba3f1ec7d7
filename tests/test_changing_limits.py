"""Limits that change while commands wait and run."""

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

import psycopg
import pytest
from eventually import eventually, stays
from handlers import handling, running
from queries import count
from test_limits_in_force import declare

from cmdbus import Command, CommandBus, Context, InvalidOperationError, SendRequest

_WITHIN_S = 20
_CHANGES = 60


class Stepped:
    """A handler of which the test ends as many executions as it wants."""

    def __init__(self) -> None:
        self._ends = threading.Semaphore(0)
        self._lock = threading.Lock()
        self.running = self.ended = 0

    def __call__(self, command: Command, context: Context) -> None:
        with self._lock:
            self.running += 1
        assert self._ends.acquire(timeout=_WITHIN_S)
        with self._lock:
            self.running -= 1
            self.ended += 1

    def end(self, count: int) -> None:
        wanted = self.ended + count
        self._ends.release(count)
        eventually(lambda: self.ended == wanted, _WITHIN_S)

    def settles_at(self, count: int) -> None:
        eventually(lambda: self.running == count, _WITHIN_S)
        stays(lambda: self.running == count, 0.3)


def test_each_change_holds_for_the_next_claims(dsn: str, bus: CommandBus) -> None:
    handler = Stepped()
    bus.send_many([SendRequest("payments", "Debit")] * 40)
    with running(dsn, handling(handler, concurrency=3), concurrency=6):
        handler.settles_at(3)
        bus.limits.set("payments", "Debit", concurrency=1)
        handler.settles_at(3)
        handler.end(2)
        handler.settles_at(1)
        bus.limits.set("payments", "Debit", concurrency=None)
        handler.settles_at(6)
        bus.limits.clear("payments", "Debit")
        handler.end(3)
        handler.settles_at(3)
        handler.end(1)
        handler.settles_at(3)
        bus.limits.set("payments", "Debit", ordered=True)
        handler.end(3)
        handler.settles_at(1)
        handler.end(40 - handler.ended)
    assert len(bus.query(status="COMPLETED")) == 40


def test_a_limit_on_a_type_that_had_none_counts_what_runs(dsn: str, bus: CommandBus) -> None:
    """The claim from which the worker learns of it may still take a command as before."""
    handler = Stepped()
    bus.send_many([SendRequest("payments", "Debit")] * 20)
    with running(dsn, handling(handler), concurrency=4):
        handler.settles_at(4)
        bus.limits.set("payments", "Debit", concurrency=2)
        for _ in range(5):
            handler.end(1)
        handler.settles_at(2)
        handler.end(20 - handler.ended)
    assert len(bus.query(status="COMPLETED")) == 20


def change(bus: CommandBus, connection: psycopg.Connection, chance: random.Random) -> None:
    type_, most = chance.choice(["Debit", "Noop"]), chance.choice([1, 3, 8])
    covers = chance.choice([["payments"], ["payments Debit"], ["payments Noop", "payments Debit"]])
    shared = {"name": "bank", "concurrency": most, "covers": covers}
    changes: list[Callable[[], object]] = [
        lambda: bus.limits.set("payments", type_, concurrency=most, ordered=False),
        lambda: bus.limits.set("payments", type_, concurrency=None, ordered=False),
        lambda: bus.limits.set("payments", type_, rate=chance.choice([None, "200/s", "50/s"])),
        lambda: bus.limits.set("payments", type_, ordered=True, concurrency=1),
        lambda: bus.limits.set("payments", type_, fair=chance.random() < 0.5),
        lambda: bus.limits.clear("payments", type_),
        lambda: declare(connection, "shop", shared),
        lambda: declare(connection, "shop"),
    ]
    with suppress(InvalidOperationError):  # Nothing is set.
        chance.choice(changes)()


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_each_command_runs_once_whatever_limits_change_meanwhile(
    dsn: str, bus: CommandBus, connection: psycopg.Connection, seed: int
) -> None:
    chance, ids, ran = random.Random(seed), list[UUID](), list[UUID]()
    registry = handling(lambda command, context: ran.append(command.command_id))
    with (
        running(dsn, registry, name="a", concurrency=4),
        running(dsn, registry, name="b", concurrency=4),
    ):
        for _ in range(_CHANGES):
            ids += bus.send_many(
                SendRequest(
                    "payments",
                    "Debit",
                    key=chance.choice([None, "x", "y"]),
                    delay=chance.choice([None, None, 0.05]),
                )
                for _ in range(chance.randint(1, 30))
            )
            change(bus, connection, chance)
        bus.limits.set("payments", "Debit", rate=None)
        tables = ("cmdbus.ready", "cmdbus.limited", "cmdbus.scheduled")
        eventually(lambda: not any(count(connection, each) for each in tables), _WITHIN_S)
    assert sorted(ran) == sorted(ids)
