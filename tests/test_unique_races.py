"""Unique keys under concurrent senders, workers, cancels, promotions and retention, at each
isolation level: no two commands hold a key at a time, and none is refused while it is free."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any
from uuid import UUID

import psycopg
import pytest
from claiming import Claimer, ended
from eventually import eventually
from handlers import await_drained, connect, handling, running
from psycopg.conninfo import make_conninfo
from queries import rows, scalar
from senders import race

from cmdbus import (
    BusinessRuleError,
    Command,
    CommandBus,
    Context,
    DuplicateCommandError,
    RetryPolicy,
    SendRequest,
    TransientCommandError,
)
from cmdbus.worker.claims.outcomes import Outcome, OutcomeKind

HELD = psycopg.errors.UniqueViolation
NOT_SERIALIZABLE = psycopg.errors.SerializationFailure
RETRY = Outcome(kind=OutcomeKind.RETRY, delay=0.0, code="LATER", message="later")
FAILED = Outcome(kind=OutcomeKind.FAILED, code="NO", message="no")
ISOLATIONS = ["read\\ committed", "repeatable\\ read", "serializable"]
#: Until when the commands of each key hold it.
KEYS = {"a": "finished", "b": "finished", "c": "started"}
SEND = (
    "SELECT cmdbus.send('payments', 'Debit', %(data)s, p_delay => %(delay)s, p_unique => %(key)s,"
    " p_on_conflict => %(on_conflict)s, p_unique_until => %(until)s)"
)
#: When a command began to hold its key, and when it held it no longer.
HELD_TIMES = (
    "SELECT command_id, unique_key, created_at,"
    " CASE WHEN data ->> 'until' = 'started' THEN least(started_at, finished_at)"
    " ELSE finished_at END FROM cmdbus.command WHERE type = 'Debit' ORDER BY created_at"
)


def check_spans(dsn: str) -> set[UUID]:
    """No two commands have held a key at a time; returns all of them."""
    held: dict[str, list[Any]] = {key: [] for key in KEYS}
    for id_, key, since, until in rows(dsn, HELD_TIMES):
        held[key].append((since, until, id_))
    for spans in held.values():
        for (_, until, first), (since, _, second) in pairwise(spans):
            assert until is not None and until <= since, (first, second, until, since)
    return {id_ for spans in held.values() for _, _, id_ in spans}


@dataclass
class Race:
    """What happened, by the clock of this machine."""

    dsn: str
    rand: random.Random
    isolation: str
    #: Holder, and when the refused send began.
    refused: list[tuple[UUID, float]] = field(default_factory=list)
    #: By command: a time at which it held no longer.
    freed: dict[UUID, float] = field(default_factory=dict)
    accepted: set[UUID] = field(default_factory=set)
    failures: int = 0
    errors: list[BaseException] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def send_some(self, count: int) -> None:
        options = f"-c default_transaction_isolation={self.isolation}"
        with connect(make_conninfo(self.dsn, options=options)) as connection:
            for _ in range(count):
                self._send(connection)

    def _send(self, connection: psycopg.Connection) -> None:
        key = self.rand.choice(list(KEYS))
        given: dict[str, Any] = {
            "key": key,
            "until": KEYS[key],
            "data": f'{{"until": "{KEYS[key]}"}}',
            "delay": self.rand.choice([None, None, "1 millisecond"]),
            "on_conflict": self.rand.choice(["reject", "reject", "existing", "replace"]),
        }
        undone = self.rand.random() < 0.2
        began = time.monotonic()
        try:
            with connection.transaction(force_rollback=undone):
                [row] = connection.execute(SEND.encode(), given).fetchall()
        except HELD as error:
            holder = UUID(str(error).split()[1])
            self.refused.append((holder, began))
        except NOT_SERIALIZABLE:
            self.failures += 1
        else:
            if not undone:
                self.accepted.add(row[0])

    def work(self) -> None:
        """Claims and settles; some of those with a key that is free once they run, later."""
        with connect(self.dsn) as connection:
            claimer = Claimer(connection)
            while not self.over.is_set():
                for claim in claimer.claim(self.rand.choice([1, 3])):
                    starts = '"started"' in claim.data
                    if starts:
                        self.freed.setdefault(claim.command_id, time.monotonic())
                    outcome = self.rand.choice([None, FAILED] if starts else [None, FAILED, RETRY])
                    claimer.settle(ended(claim, outcome))
                    if outcome is not RETRY:
                        self.freed.setdefault(claim.command_id, time.monotonic())

    def cancel(self) -> None:
        find = "SELECT command_id FROM cmdbus.ready UNION SELECT command_id FROM cmdbus.scheduled"
        with connect(self.dsn) as connection:
            while not self.over.is_set():
                for (id_,) in connection.execute(find.encode()).fetchall():
                    query = "SELECT cmdbus.cancel('payments', %s, NULL, false, 'ann')"
                    if scalar(connection, query, id_) == "canceled":
                        self.freed.setdefault(id_, time.monotonic())

    def promote(self) -> None:
        self._repeat("SELECT cmdbus.promote(10, 100000, '{}')")

    def retain(self) -> None:
        self._repeat("SELECT cmdbus.retain_unique(2, '', '')")

    def _repeat(self, query: str) -> None:
        with connect(self.dsn) as connection:
            while not self.over.is_set():
                scalar(connection, query)

    @contextmanager
    def beside(self, work: Callable[[], None]) -> Iterator[threading.Thread]:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield thread
        finally:
            thread.join(60)
            assert not thread.is_alive()

    def run(self, senders: int, sends: int) -> None:
        with ExitStack() as stack:
            stack.callback(self.over.set)
            for work in (self.work, self.work, self.cancel, self.promote, self.retain):
                stack.enter_context(self.beside(work))
            with ExitStack() as sending:
                for _ in range(senders):
                    sending.enter_context(self.beside(lambda: self.send_some(sends)))
            self.over.set()
        assert not self.errors, self.errors

    def check(self) -> None:
        assert check_spans(self.dsn) == self.accepted
        for holder, began in self.refused:
            assert began <= self.freed.get(holder, began), holder
        with connect(self.dsn) as connection:
            for key in KEYS:
                given = {"key": key, "until": "finished", "data": "{}", "delay": None}
                connection.execute(SEND.encode(), {**given, "on_conflict": "existing"})


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_no_two_commands_hold_a_key_and_none_is_refused_for_a_free_one(
    dsn: str, isolation: str
) -> None:
    race = Race(dsn, random.Random(7), isolation)
    race.run(senders=6, sends=30)
    race.check()
    assert race.accepted and race.refused
    if isolation.startswith("read"):
        assert race.failures == 0


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("on_conflict", ["reject", "existing", "replace"])
def test_an_old_snapshot_takes_no_key_that_has_changed_hands_since(
    dsn: str, level: str, on_conflict: str
) -> None:
    """It sees a holder that has ended since, and replaces none."""
    with CommandBus(dsn) as bus:

        def outcome(key: str, change: Callable[[], object]) -> UUID | type[Exception]:
            with psycopg.connect(dsn) as old:
                old.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
                old.execute("SELECT 1 FROM cmdbus.ready")
                change()
                more: dict[str, Any] = {"unique": key, "on_conflict": on_conflict}
                try:
                    return bus.send("payments", "Debit", **more, connection=old)
                except (DuplicateCommandError, NOT_SERIALIZABLE) as error:
                    return type(error)

        send = partial(bus.send, "payments", "Debit", on_conflict="replace")
        assert outcome("new", lambda: send(unique="new")) is NOT_SERIALIZABLE
        assert outcome("new", lambda: send(unique="new")) is NOT_SERIALIZABLE
        ended = send(unique="ended")
        seen = {"reject": DuplicateCommandError, "existing": ended, "replace": NOT_SERIALIZABLE}
        assert outcome("ended", lambda: bus.cancel("payments", ended)) == seen[on_conflict]
        assert isinstance(outcome("ended", lambda: None), UUID)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_the_same_many_times(dsn: str, isolation: str, seed: int) -> None:
    race = Race(dsn, random.Random(seed), isolation)
    race.run(senders=8, sends=800)
    race.check()


def send_some(dsn: str, rand: random.Random, count: int) -> Counter[str]:
    """With a bus, one by one, in bulk and as batches: how often that was done, which is at least
    once, and refused."""
    ends = Counter[str]()

    def request(key: str, on_conflict: str) -> SendRequest:
        until, delay = KEYS[key], rand.choice([None, None, 0.002])
        more: dict[str, Any] = {"unique": key, "unique_until": until, "on_conflict": on_conflict}
        return SendRequest("payments", "Debit", {"until": until}, key=key, delay=delay, **more)

    def send_next(bus: CommandBus) -> int:
        keys = rand.sample(list(KEYS), 2)
        try:
            if rand.random() < 0.2:
                bus.create_batch("payments", [request(key, "reject") for key in keys])
            else:
                ways = ["reject", "existing", "replace"]
                bus.send_many(
                    [request(key, rand.choice(ways)) for key in keys[: rand.choice([1, 2])]]
                )
            ends["sent"] += 1
        except (DuplicateCommandError, NOT_SERIALIZABLE) as error:
            ends[type(error).__name__] += 1
        return ends["sent"]

    with CommandBus(dsn) as bus:
        for _ in range(count):
            send_next(bus)
        # It may have lost all of its races; the others end.
        eventually(lambda: ends["sent"] or send_next(bus))
    return ends


@pytest.mark.parametrize(
    ("isolation", "limited"),
    [
        (ISOLATIONS[0], False),
        (ISOLATIONS[0], True),
        (ISOLATIONS[2], False),
        pytest.param(ISOLATIONS[1], False, marks=pytest.mark.long),
        *(pytest.param(isolation, True, marks=pytest.mark.long) for isolation in ISOLATIONS[1:]),
    ],
)
def test_workers_and_buses_keep_commands_unique(dsn: str, isolation: str, limited: bool) -> None:
    rand = random.Random(11)

    def handle(command: Command, context: Context) -> None:
        if command.data["until"] == "finished" and rand.random() < 0.4:
            raise rand.choice(
                [
                    TransientCommandError("LATER", "later", retry_after=0.001),
                    BusinessRuleError("NO", "no"),
                ]
            )

    registry = handling(handle, retry=RetryPolicy(max_attempts=100, backoff=(0.001,)))
    strict = make_conninfo(dsn, options=f"-c default_transaction_isolation={isolation}")
    with CommandBus(dsn) as bus:
        if limited:
            bus.limits.set("payments", "Debit", concurrency=1, operator="ann")
        with running(dsn, registry, concurrency=4), running(dsn, registry, concurrency=4):
            ends = race([partial(send_some, strict, random.Random(n), 20) for n in range(6)])
            await_drained(bus)
        assert all(isinstance(each, Counter) and each["sent"] for each in ends), ends
        assert {batch.remaining for batch in bus.list_batches()} <= {0}
    check_spans(dsn)
