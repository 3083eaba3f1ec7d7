"""A worker that claims in lanes, on one session, whose transaction may stay open."""

import json
from typing import NamedTuple

import psycopg
from handlers import connect

from cmdbus.selection import ALL_PRIORITIES
from cmdbus.worker.claims.claim import (
    Claim,
    ClaimPart,
    ClaimRequest,
    ClaimResult,
    ClaimScope,
    Finished,
    LaneRequest,
)
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.outcomes import Outcome, completed

#: A lane or a row that other sessions have locked is left alone for at most this time.
_LOCKED_S = 0.05


class Limit(NamedTuple):
    """With the columns of limit_declared."""

    name: str
    concurrency: int | None = None
    starts_per_second: float | None = None
    burst: int | None = None
    ordered: bool = False
    on_trouble: str = "block"
    covers: tuple[str, ...] = ()
    per_node: bool = False

    def covers_type(self, domain: str, type: str) -> bool:
        return f"{domain} {type}" in (self.name, *self.covers) or domain in self.covers


def declare(connection: psycopg.Connection, *limits: Limit) -> None:
    values = [limit._asdict() for limit in limits]
    connection.execute("SELECT cmdbus.declare_limits('test', %s)", (json.dumps(values),))


class LaneClaimer:
    """A worker of these types, "domain type". Its transaction may stay open for several steps."""

    def __init__(self, dsn: str, types: list[str], scope: ClaimScope = ClaimScope.ANY) -> None:
        self._dsn = dsn
        self.connection = self._connect()
        self.types = types
        self.priorities = ALL_PRIORITIES
        self.statements = ClaimStatements("cmdbus", 1000, scope)
        self.statements.types = types
        self.statements.register(self.connection, "tester")
        self.held: list[Claim] = []
        #: What the open transaction has claimed, and settled.
        self.taken: list[Claim] = []
        self.settled: list[Claim] = []
        self.is_open = False
        self.has_more, self.opens_in = False, float("inf")

    def _connect(self) -> psycopg.Connection:
        return connect(self._dsn, options=f"-c lock_timeout={_LOCKED_S}s")

    def begin(self) -> None:
        self.connection.execute("BEGIN")
        self.is_open = True

    def end(self, how: str) -> None:
        if how == "kill":
            with connect(self._dsn) as other:
                pid = self.connection.info.backend_pid
                other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
            self.connection.close()
            self.connection = self._connect()
        else:
            self.connection.execute(how.encode())
        if how == "COMMIT":
            self.held += self.taken
        else:
            self.held += self.settled
        self.taken, self.settled, self.is_open = [], [], False

    def claim(
        self,
        free: int,
        bytes_: int = 10**6,
        done: tuple[Claim, ...] = (),
        known: tuple[int | None, list[str], list[str]] | None = None,
    ) -> list[Claim]:
        """What of `done` it settles at the same time is completed. `known` are the limits, if they
        are not read now."""
        self.has_more, self.opens_in = False, float("inf")
        _, limited, shared = known or self.statements.limited_types(self.connection)
        domains = sorted({name.split(" ")[0] for name in self.types})
        plain = [name for name in self.types if name not in limited]
        lanes = LaneRequest(limited, [], shared, free, 0, {}, True, self.priorities)
        request = ClaimRequest(free, 0, domains, plain, [], floors={}, bytes=bytes_, lanes=lanes)
        request = request._replace(priorities=self.priorities)
        finished = [Finished(claim, completed(None), 3, 0.0) for claim in done]
        _, claims = self.statements.settle_and_claim(
            self.connection, finished, request, self._looked
        )
        self._take(claims, done)
        return claims

    def claim_nothing(self, free: int, done: tuple[Claim, ...] = ()) -> None:
        """Again if a claim says that it may have left something, as one that took long does."""
        assert self.claim(free, done=done) == []
        while self.has_more:
            assert self.claim(free) == []

    def _looked(self, result: ClaimResult) -> None:
        if result.part is ClaimPart.LANES:
            self.has_more = result.has_more
            self.opens_in = float("inf") if result.opens_in is None else result.opens_in

    def claim_suspect(self) -> list[Claim]:
        statements = ClaimStatements("cmdbus", 1000, ClaimScope.SUSPECT)
        statements.incarnation = self.statements.incarnation
        domains = sorted({name.split(" ")[0] for name in self.types})
        request = ClaimRequest(1, 0, domains, self.types, [], floors={})
        _, claims = statements.settle_and_claim(self.connection, [], request)
        self._take(claims, ())
        return claims

    def settle(self, claim: Claim, outcome: Outcome | None = None) -> None:
        self.statements.settle(
            self.connection, [Finished(claim, outcome or completed(None), 3, 0.0)]
        )
        self._take([], (claim,))

    def release(self, claim: Claim, losses: int | None) -> None:
        """Stays, if another session has locked it."""
        released = self.statements.release(self.connection, [claim], [losses])
        self._take([], tuple(released))

    def _take(self, claims: list[Claim], done: tuple[Claim, ...]) -> None:
        for claim in done:
            self.held.remove(claim)
        if self.is_open:
            self.taken += claims
            self.settled += done
        else:
            self.held += claims
