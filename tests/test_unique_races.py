"""Unique keys under concurrent senders, workers, cancels, promotions and retention, at each
isolation level: no two commands hold a key at a time, and none is refused while it is free."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from uuid import UUID

import psycopg
import pytest
from claiming import Claimer, ended
from handlers import connect
from psycopg.conninfo import make_conninfo
from queries import rows, scalar

from cmdbus.worker.claims.outcomes import Outcome, OutcomeKind

HELD = psycopg.errors.UniqueViolation
NOT_SERIALIZABLE = psycopg.errors.SerializationFailure
RETRY = Outcome(kind=OutcomeKind.RETRY, delay=0.0, code="LATER", message="later")
FAILED = Outcome(kind=OutcomeKind.FAILED, code="NO", message="no")
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
        held: dict[str, list[Any]] = {key: [] for key in KEYS}
        for id_, key, since, until in rows(self.dsn, HELD_TIMES):
            assert id_ in self.accepted
            held[key].append((since, until, id_))
        for spans in held.values():
            for (_, until, first), (since, _, second) in pairwise(spans):
                assert until is not None and until <= since, (first, second, until, since)
        for holder, began in self.refused:
            assert began <= self.freed.get(holder, began), holder
        with connect(self.dsn) as connection:
            for key in KEYS:
                given = {"key": key, "until": "finished", "data": "{}", "delay": None}
                connection.execute(SEND.encode(), {**given, "on_conflict": "existing"})


@pytest.mark.parametrize("isolation", ["read\\ committed", "repeatable\\ read", "serializable"])
def test_no_two_commands_hold_a_key_and_none_is_refused_for_a_free_one(
    dsn: str, isolation: str
) -> None:
    race = Race(dsn, random.Random(7), isolation)
    race.run(senders=6, sends=60)
    race.check()
    assert race.accepted and race.refused
    if isolation.startswith("read"):
        assert race.failures == 0
