"""The order of claims, against a model of it: by domains in the order that is asked for, then by
priority, then as they became ready; nothing before it is due, and nothing is left out."""

import random
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest
from claiming import Claimer, ended, want
from handlers import promote

from cmdbus import CommandBus, SendRequest
from cmdbus.worker.claims.claim import Claim
from cmdbus.worker.claims.outcomes import Outcome, OutcomeKind, completed

DOMAINS = ("mail", "orders", "payments")
TYPES = [f"{domain} Do" for domain in DOMAINS]
#: The clock is moved by whole units, and half of one is longer than a test takes.
UNIT = 1000.0


@dataclass(frozen=True, slots=True)
class Queued:
    domain: str
    priority: int
    command_id: UUID
    #: By the clock of the model.
    due: float = 0.0


class Model:
    """What is ready and what is scheduled, each in its order."""

    def __init__(self) -> None:
        self.clock = 0.0
        self.ready: list[Queued] = []
        self.scheduled: list[Queued] = []

    def add(self, domain: str, priority: int, command_id: UUID, delay: float | None) -> None:
        if delay is None:
            self.ready.append(Queued(domain, priority, command_id))
        else:
            self.scheduled.append(Queued(domain, priority, command_id, self.clock + delay))

    def promote(self) -> int:
        due = sorted((q for q in self.scheduled if q.due <= self.clock), key=lambda q: q.due)
        self.scheduled = [queued for queued in self.scheduled if queued not in due]
        self.ready += due
        return len(due)

    def claim(self, domains: list[str], count: int) -> list[UUID]:
        wanted = [queued for queued in self.ready if queued.domain in domains]
        wanted.sort(key=lambda queued: (domains.index(queued.domain), queued.priority))
        taken = wanted[:count]
        self.ready = [queued for queued in self.ready if queued not in taken]
        return [queued.command_id for queued in taken]


class Scenario:
    """The same steps for the model and for the database."""

    def __init__(self, bus: CommandBus, connection: psycopg.Connection, seed: int) -> None:
        self.rand = random.Random(seed)
        self.bus = bus
        self.connection = connection
        self.model = Model()
        self.claimer = Claimer(connection, lease=3600)
        self.held: list[Claim] = []

    def send(self) -> None:
        requests = [
            SendRequest(
                self.rand.choice(DOMAINS),
                "Do",
                priority=self.rand.choice((0, 3, 5, 5, 5, 9, 10)),
                delay=self._delay(),
            )
            for _ in range(self.rand.randint(1, 6))
        ]
        for request, sent in zip(requests, self.bus.send_many(requests), strict=True):
            assert isinstance(request.priority, int)
            assert not isinstance(request.delay, timedelta)
            self.model.add(request.domain, request.priority, sent, request.delay)

    def _delay(self) -> float | None:
        return self.rand.choice((None, None, (self.rand.randrange(4) + 0.5) * UNIT))

    def wait(self) -> None:
        """The clock is not moved: what is scheduled is moved towards now instead."""
        seconds = self.rand.randint(1, 3) * UNIT
        self.model.clock += seconds
        self.connection.execute(
            "UPDATE cmdbus.scheduled SET due_at = due_at - make_interval(secs => %s)", (seconds,)
        )

    def promote(self) -> None:
        assert promote(self.claimer.statements, self.connection, 1000) == self.model.promote()

    def claim(self) -> None:
        domains = self.rand.sample(DOMAINS, self.rand.randint(1, len(DOMAINS)))
        count = self.rand.randint(1, 8)
        found = self.claimer.settle_and_claim([], want(count, *domains, types=TYPES))
        assert [claim.command_id for claim in found] == self.model.claim(domains, count)
        self.held += found

    def settle(self) -> None:
        """One of them, which may be tried again later."""
        if not self.held:
            return
        claim = self.held.pop(self.rand.randrange(len(self.held)))
        outcome = completed(None)
        if self.rand.random() < 0.4:
            delay = 0.5 * UNIT
            outcome = Outcome(kind=OutcomeKind.RETRY, delay=delay, code="BUSY", message="later")
            self.model.add(claim.domain, claim.priority, claim.command_id, delay)
        assert self.claimer.settle(ended(claim, outcome)) == []

    def run(self, steps: int) -> None:
        actions = [self.send, self.send, self.claim, self.claim, self.settle, self.settle]
        for _ in range(steps):
            self.rand.choice([*actions, self.wait, self.promote])()

    def drain(self) -> None:
        """All that was sent is claimed in the end."""
        self.wait()
        self.wait()
        while self.model.ready or self.model.scheduled:
            self.wait()
            self.promote()
            while self.model.ready:
                self.claim()


@pytest.mark.parametrize("seed", range(5))
def test_claims_are_in_the_order_of_the_model(
    bus: CommandBus, connection: psycopg.Connection, seed: int
) -> None:
    scenario = Scenario(bus, connection, seed)
    scenario.run(80)
    scenario.drain()
    left = connection.execute(
        "SELECT (SELECT count(*) FROM cmdbus.ready WHERE lease_until IS NULL),"
        " (SELECT count(*) FROM cmdbus.scheduled)"
    ).fetchone()
    assert left == (0, 0)
