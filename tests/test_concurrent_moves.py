"""Workers, stewards, senders and operators move commands at the same time: each command is in one
place in the end, with one reply and the headers that it was sent with, and no statement fails."""

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psycopg
import pytest
from handlers import connect, promote

from cmdbus import CommandBus, CommandNotFoundError, InvalidOperationError, SendRequest
from cmdbus.worker.claims.claim import Claim, ClaimRequest, Finished
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.outcomes import Outcome, OutcomeKind, completed

DOMAINS = ["orders", "payments"]
TYPES = [f"{domain} Work" for domain in DOMAINS]
#: Seconds; short, so that leases end while their claims are settled.
LEASE = 1.5
EVERYWHERE = """
    SELECT command_id FROM cmdbus.ready WHERE type = 'Work'
    UNION ALL SELECT command_id FROM cmdbus.scheduled
    UNION ALL SELECT command_id FROM cmdbus.troubleshooting
    UNION ALL SELECT command_id FROM cmdbus.finished"""


class Traffic:
    def __init__(self, dsn: str, bus: CommandBus) -> None:
        self._dsn = dsn
        self._sent = [bus.send("orders", "Work", 0)]
        self.errors: list[Exception] = []

    @property
    def sent(self) -> int:
        return len(self._sent)

    def run(self, seconds: float) -> None:
        moves = [self.work] * 5 + [self.promote] * 2 + [self.send] + [self.operate] * 3
        until = time.monotonic() + seconds
        threads = [
            threading.Thread(target=self._repeat, args=(move, until, random.Random(number)))
            for number, move in enumerate(moves)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _repeat(self, move: Callable[..., None], until: float, rand: random.Random) -> None:
        statements = ClaimStatements("cmdbus", LEASE)
        with connect(self._dsn) as connection, CommandBus(self._dsn) as bus:
            connection.execute("SET lock_timeout = '20s'")
            statements.register(connection, "tester")
            while time.monotonic() < until and not self.errors:
                try:
                    move(connection, bus, statements, rand)
                except Exception as error:
                    self.errors.append(error)

    def work(
        self,
        connection: psycopg.Connection,
        bus: CommandBus,
        statements: ClaimStatements,
        rand: random.Random,
    ) -> None:
        """Ends each claim in one of all ways, some after their leases."""
        request = ClaimRequest(
            rand.choice([1, 5, 20]), rand.choice([0, 5]), DOMAINS, TYPES, TYPES, {}
        )
        _, claimed = statements.settle_and_claim(connection, [], request)
        ways: tuple[list[Claim], ...] = ([], [], [])
        for claim in claimed:
            ways[
                0 if claim.reply_to is None and rand.random() < 0.5 else rand.choice([1, 2])
            ].append(claim)
        complete, fail, release = (sorted(way, key=lambda claim: claim[:3]) for way in ways)
        if rand.random() < 0.1:
            connection.execute("SELECT pg_sleep(%s)", (rand.random() * LEASE * 1.3,))
        statements.renew(connection, {statements.incarnation: release})
        nothing = ClaimRequest(0, 0, DOMAINS, TYPES, TYPES, {})
        statements.settle_and_claim(
            connection, [Finished(c, completed(None), 3, 0.0) for c in complete], nothing
        )
        kind = rand.choice([OutcomeKind.RETRY, OutcomeKind.TROUBLE, OutcomeKind.FAILED])
        outcome = Outcome(kind=kind, delay=rand.random() * 0.3, code="C", message="", details="{}")
        statements.settle(connection, [Finished(c, outcome, 3, 0.0) for c in fail])
        statements.release(connection, release, [rand.choice([None, 1]) for _ in release], "why")

    def promote(
        self,
        connection: psycopg.Connection,
        bus: CommandBus,
        statements: ClaimStatements,
        rand: random.Random,
    ) -> None:
        promote(statements, connection, rand.choice([1, 10, 1000]))
        statements.renew(connection, {})

    def send(
        self,
        connection: psycopg.Connection,
        bus: CommandBus,
        statements: ClaimStatements,
        rand: random.Random,
    ) -> None:
        numbers = [rand.randrange(100) for _ in range(20)]
        self._sent += bus.send_many(
            SendRequest(
                rand.choice(DOMAINS),
                "Work",
                number,
                priority=rand.randrange(11),
                delay=rand.choice([None, rand.random() / 2]),
                reply_to=rand.choice([None, "replies"]),
                headers={"tenant": str(number)} if number % 2 else None,
            )
            for number in numbers
        )

    def operate(
        self,
        connection: psycopg.Connection,
        bus: CommandBus,
        statements: ClaimStatements,
        rand: random.Random,
    ) -> None:
        domain, id_ = rand.choice(DOMAINS), rand.choice(self._sent[-2000:])
        with suppress(CommandNotFoundError, InvalidOperationError):
            bus.cancel(domain, id_, running=rand.random() < 0.5)
        with suppress(CommandNotFoundError, InvalidOperationError):
            # Due while the statement runs.
            delay, priority = rand.random() * 0.002, rand.randrange(11)
            bus.reschedule(domain, rand.choice(self._sent[-2000:]), delay=delay, priority=priority)
        if rand.random() < 0.03:
            bus.cancel_all(domain)
            bus.troubleshooting.retry_all(operator="ann")


@pytest.mark.parametrize("seconds", [1.0, pytest.param(20.0, marks=pytest.mark.long)])
def test_whatever_moves_commands_at_the_same_time_each_is_in_one_place(
    dsn: str, bus: CommandBus, seconds: float
) -> None:
    traffic = Traffic(dsn, bus)
    traffic.run(seconds)
    assert traffic.errors == []
    with connect(dsn) as connection:
        found = f"SELECT count(*), count(DISTINCT command_id) FROM ({EVERYWHERE}) everywhere"
        assert connection.execute(found.encode()).fetchone() == (traffic.sent, traffic.sent)
        replies = connection.execute(
            "SELECT (SELECT count(*) FROM cmdbus.ready WHERE domain = 'replies'),"
            " (SELECT count(*) FROM cmdbus.finished WHERE reply_to IS NOT NULL)"
        ).fetchone()
        others = connection.execute(
            "SELECT count(*) FROM cmdbus.command WHERE type = 'Work' AND (headers ->> 'tenant')"
            " IS DISTINCT FROM CASE WHEN data::text::int % 2 = 1 THEN data::text END"
        ).fetchone()
        passed_on = connection.execute(
            "SELECT count(*) FROM cmdbus.ready r JOIN cmdbus.finished f"
            " ON f.command_id = (r.data ->> 'command_id')::uuid"
            " WHERE (r.headers ->> 'tenant') IS DISTINCT FROM (f.headers ->> 'tenant')"
        ).fetchone()
    assert replies is not None and replies[0] == replies[1]
    assert (others, passed_on) == ((0,), (0,))
