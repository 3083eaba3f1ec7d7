"""Sessions that use lanes in a random order, and what must hold after each of their steps."""

import json
import random
from contextlib import suppress
from uuid import UUID

from eventually import eventually
from handlers import connect
from lane_checks import LaneChecks
from lane_claimer import LaneClaimer, Limit, declare
from psycopg import errors
from queries import scalar

from cmdbus.clock import time
from cmdbus.worker.claims.claim import Claim
from cmdbus.worker.claims.outcomes import completed, interrupted, troubled


class LaneWorld:
    """`steps` are made in a random order; the first failure shows the latest of them."""

    def __init__(
        self, dsn: str, seed: int, limits: list[Limit], types: list[list[str]], keys: int = 3
    ) -> None:
        """`types` are those of each claimer."""
        self.random = random.Random(seed)
        self.dsn = dsn
        self.watcher = connect(dsn)
        self.sender, self.operator = connect(dsn), connect(dsn, options="-c lock_timeout=50ms")
        declare(self.watcher, *limits)
        self.claimers = [LaneClaimer(dsn, each) for each in types]
        self.types = sorted({name for each in types for name in each})
        self.keys: list[str | None] = [None, *"abcdefgh"[: keys - 1]]
        self.operator_is_open = self.sender_is_open = False
        self.limits = {limit.name: limit for limit in limits}
        self._all = dict(self.limits)
        incarnations = {claimer.statements.incarnation for claimer in self.claimers}
        self._checks = LaneChecks(self.watcher, self.limits, incarnations)
        self.log: list[str] = []

    def close(self) -> None:
        for claimer in self.claimers:
            claimer.connection.close()
        for connection in (self.watcher, self.sender, self.operator):
            connection.close()

    # Steps.

    def send(self) -> None:
        """At times in a transaction that stays open."""
        if self.sender_is_open:
            self.sender.execute(self.random.choice(["COMMIT", "ROLLBACK"]))
            self.sender_is_open = False
            return
        if self.random.random() < 0.2:
            self.sender.execute("BEGIN")
            self.sender_is_open = True
        for _ in range(self.random.choice([1, 1, 2, 8])):
            domain, type = self.random.choice(self.types).split(" ")
            self.sender.execute(
                "SELECT cmdbus.send(%s, %s, p_key => %s, p_priority => %s, p_data => %s)",
                (
                    domain,
                    type,
                    self.random.choice(self.keys),
                    self.random.choice([5, 5, 5, 0, 9]),
                    json.dumps("x" * self.random.choice([1, 1, 3000])),
                ),
            )

    def claim(self) -> None:
        claimer = self.random.choice(self.claimers)
        if claimer.is_open:
            claimer.end(self.random.choice(["COMMIT", "ROLLBACK", "kill", "COMMIT"]))
            return
        if self.random.random() < 0.25:
            claimer.begin()
        done = tuple(claim for claim in claimer.held if self.random.random() < 0.3)
        self._claim(claimer, self.random.choice([1, 2, 5, 20]), done)

    def _claim(self, claimer: LaneClaimer, free: int, done: tuple[Claim, ...] = ()) -> list[Claim]:
        """Nothing, if another session keeps it waiting."""
        try:
            return claimer.claim(free, self.random.choice([10**6, 4000]), done)
        except errors.LockNotAvailable:
            if claimer.is_open:
                claimer.end("ROLLBACK")
            return []

    def settle(self) -> None:
        claimer = self.random.choice(self.claimers)
        if not claimer.held:
            return
        claim = self.random.choice(claimer.held)
        what = self.random.choice(["end", "end", "end", "retry", "trouble", "release", "lose"])
        self.log.append(f"{what} {claim.id}")
        try:
            if what == "end":
                claimer.settle(claim, completed(None))
            elif what == "retry":
                claimer.settle(claim, interrupted("X", "x", 0.0, lost=False))
            elif what == "trouble":
                claimer.settle(claim, troubled("X", "x"))
            elif what == "release":
                claimer.release(claim, self.random.choice([None, 1]))
            elif not (claimer.is_open or self.operator_is_open):
                self.operator.execute(
                    "UPDATE cmdbus.ready SET lease_until = clock_timestamp() - interval '1s'"
                    " WHERE id = %s",
                    (claim.id,),
                )
                claimer.held.remove(claim)
        except errors.LockNotAvailable:
            if claimer.is_open:
                claimer.end("ROLLBACK")

    def promote(self) -> None:
        self.operator.execute("SELECT cmdbus.promote(100, 1000000, '{}')")

    def claim_suspect(self) -> None:
        claimer = self.random.choice(self.claimers)
        if not claimer.is_open:
            claimer.claim_suspect()

    def cancel(self) -> None:
        """Leaves rows locked at times, before it cancels them or not."""
        if self.operator_is_open:
            self.operator.execute(self.random.choice(["COMMIT", "ROLLBACK"]))
            self.operator_is_open = False
            return
        table = self.random.choice(["ready", "limited", "limited"])
        rows = self.watcher.execute(
            f"SELECT domain, command_id FROM cmdbus.{table} ORDER BY lane_position LIMIT 3".encode()
        ).fetchall()
        if not rows:
            return
        domain, command_id = self.random.choice(rows)
        if self.random.random() < 0.4:
            self.operator.execute("BEGIN")
            self.operator_is_open = True
        try:
            self.operator.execute(
                "SELECT cmdbus.cancel(%s, %s, 'r', %s, 'ann')",
                (domain, command_id, self.random.random() < 0.5),
            )
        except errors.LockNotAvailable:
            self._rollback_operator()

    def _rollback_operator(self) -> None:
        if self.operator_is_open:
            self.operator.execute("ROLLBACK")
            self.operator_is_open = False

    def retry_trouble(self) -> None:
        with suppress(errors.LockNotAvailable):
            self.watcher.execute(
                "SELECT cmdbus.resolve('RETRY', domain, command_id, 'ann', 'r', NULL, NULL)"
                " FROM (SELECT * FROM cmdbus.troubleshooting ORDER BY failed_at LIMIT 1) t"
            )

    def pause(self) -> None:
        for domain in {name.split(" ")[0] for name in self.types}:
            paused = self.random.random() < 0.3
            if not self.operator_is_open:
                self.operator.execute(
                    "INSERT INTO cmdbus.domain (name, paused) VALUES (%s, %s)"
                    " ON CONFLICT (name) DO UPDATE SET paused = EXCLUDED.paused",
                    (domain, paused),
                )

    def change(self) -> None:
        """Another concurrency, if it is not ordered."""
        if not self.limits or self.operator_is_open:
            return
        limit = self.random.choice([*self.limits.values()])
        if limit.ordered:
            return
        changed = limit._replace(concurrency=self.random.choice([1, 2, 3]))
        with suppress(errors.LockNotAvailable):
            self.operator.execute(
                "SELECT cmdbus.set_limit(%s, '{concurrency}', 'ann', 'r', p_concurrency => %s)",
                (limit.name, changed.concurrency),
            )
            self.limits[limit.name] = changed

    def toggle(self) -> None:
        """An application that declares one limit less, or again all of them."""
        if self.operator_is_open or any(claimer.is_open for claimer in self.claimers):
            return
        gone = {*self._all} - {*self.limits} or {self.random.choice([*self._all])}
        with suppress(errors.LockNotAvailable):
            if {*self._all} - {*self.limits}:
                declare(self.operator, *self._all.values())
                self.limits.update({name: self._all[name] for name in gone})
            else:
                declare(self.operator, *[v for n, v in self._all.items() if n not in gone])
                for name in gone:
                    self.operator.execute("SELECT cmdbus.clear_limit(%s, 'ann', 'r')", (name,))
                    del self.limits[name]

    def expire(self) -> None:
        """Half of them are not canceled yet."""
        self.watcher.execute(
            "UPDATE cmdbus.limited SET expires_at = clock_timestamp() WHERE ctid IN ("
            " SELECT ctid FROM cmdbus.limited WHERE claimed_at IS NULL ORDER BY lane_position"
            " LIMIT 1 FOR UPDATE SKIP LOCKED)"
        )
        if self.random.random() < 0.5:
            self.watcher.execute("SELECT cmdbus.expire(100, 1000000, '{}')")

    # What happens.

    def run(self, steps: int, **weights: int) -> None:
        names, shares = [*weights], [*weights.values()]
        for _ in range(steps):
            [name] = self.random.choices(names, shares)
            before = self._held()
            self.log.append(name)
            getattr(self, name)()
            self._check(before)
        self.drain()

    def _held(self) -> set[tuple[UUID, int]]:
        return {(c.command_id, c.token) for claimer in self.claimers for c in claimer.held}

    def _check(self, held_before: set[tuple[UUID, int]]) -> None:
        try:
            self._checks.check(held_before, none_is_open=self._nothing_is_open)
        except AssertionError as error:
            error.add_note(", ".join(self.log[-30:]))
            raise

    @property
    def _nothing_is_open(self) -> bool:
        return not (
            self.operator_is_open
            or self.sender_is_open
            or any(claimer.is_open for claimer in self.claimers)
        )

    def drain(self) -> None:
        """Nothing is stuck: claims until nothing comes any more end everything."""
        self._rollback_operator()
        if self.sender_is_open:
            self.sender.execute("COMMIT")
        for claimer in self.claimers:
            if claimer.is_open:
                claimer.end("COMMIT")
        self.watcher.execute("UPDATE cmdbus.domain SET paused = false")
        self.log.append("drain")
        ends_at = time.monotonic() + 30
        while self._drain_once():
            assert time.monotonic() < ends_at, "it goes on for ever"
        self.watcher.execute("SELECT cmdbus.retain_lanes(1000)")
        left = {
            table: scalar(self.watcher, f"SELECT count(*) FROM cmdbus.{table}")
            for table in ("ready", "limited", "scheduled", "turn")
        }
        assert not any(left.values()), (left, self._checks.rows(), self.log[-30:])
        self._checks.check_rates()

    def _drain_once(self) -> bool:
        """False if nothing will happen any more without another event."""
        before = self._held()
        self.watcher.execute("SELECT cmdbus.expire(100, 1000000, '{}')")
        while scalar(self.watcher, "SELECT count(*) FROM cmdbus.troubleshooting"):
            self.retry_trouble()
        self.promote()
        went_on = False
        opens = float("inf")
        for claimer in self.claimers:
            done = tuple(claimer.held)
            if self._claim(claimer, 20, done) or done or claimer.has_more:
                went_on = True
            if claimer.claim_suspect():
                went_on = True
            opens = min(opens, claimer.opens_in)
            self._check(before)
        if not went_on and opens < 2:
            ends_at = time.monotonic() + opens
            eventually(lambda: time.monotonic() >= ends_at, 3)
            return True
        return went_on
