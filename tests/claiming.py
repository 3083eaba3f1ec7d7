"""Claims as a worker makes them, on one session."""

from collections.abc import Sequence
from typing import Any

import psycopg

from cmdbus.worker.claims.claim import Claim, ClaimRef, ClaimRequest, ClaimScope, Finished
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.outcomes import Outcome, completed

TYPES = ("payments Debit", "payments Ship", "orders Ship")


def want(free: int, *domains: str, **more: Any) -> ClaimRequest:
    """`more` are other fields of the request."""
    request = ClaimRequest(free, 0, domains or ("payments",), TYPES, (), floors={})
    return request._replace(**more)


def ended(claim: Claim, outcome: Outcome | None = None) -> Finished:
    """By default it is completed."""
    return Finished(claim, outcome or completed(None), max_attempts=3, at=0.0)


class Claimer:
    """A registered worker."""

    def __init__(
        self,
        connection: psycopg.Connection,
        lease: float = 30,
        scope: ClaimScope = ClaimScope.ANY,
        name: str = "tester",
    ) -> None:
        self.connection = connection
        self.statements = ClaimStatements("cmdbus", lease, scope)
        self.statements.register(connection, name)

    @property
    def incarnation(self) -> int:
        return self.statements.incarnation

    def settle_and_claim(self, done: Sequence[Finished], request: ClaimRequest) -> list[Claim]:
        """Settles all of `done`, and claims in the same round trip."""
        lost, claimed = self.statements.settle_and_claim(self.connection, done, request)
        assert lost == []
        return claimed

    def claim(self, free: int) -> list[Claim]:
        return self.settle_and_claim([], want(free))

    def claim_one(self) -> Claim:
        [claim] = self.claim(1)
        return claim

    def settle(self, *done: Finished) -> list[Claim]:
        """Those that were lost, each outcome by itself."""
        return self.statements.settle(self.connection, done)

    def settle_as_batch(self, *done: Finished) -> list[Claim]:
        """Those that were lost, all in one statement."""
        lost, claimed = self.statements.settle_and_claim(self.connection, done, want(0))
        assert claimed == []
        return lost

    def renew(self, *claims: Claim) -> list[ClaimRef]:
        """Those that were lost."""
        return self.statements.renew(self.connection, {self.incarnation: claims})

    def release(self, *claims: Claim) -> None:
        self.statements.release(self.connection, claims)
