"""The statements by which a worker registers and claims."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from uuid import UUID

import psycopg

from cmdbus.database.session_names import session_name
from cmdbus.worker.claims.arrays import ctids, numbers, texts, whole
from cmdbus.worker.claims.claim import (
    Claim,
    ClaimKey,
    ClaimRequest,
    ClaimResult,
    ClaimScope,
    Connection,
    Finished,
    Row,
)
from cmdbus.worker.claims.held import HeldClaims, positioned
from cmdbus.worker.claims.outcomes import completed
from cmdbus.worker.claims.rejections import was_executed

_PRIORITY_AND_ID = itemgetter(1, 2)
_NO_CLAIM = Claim(
    *("", 0, 0, 0, UUID(int=0), "", "", 0, 0, None, UUID(int=0), None),
    created_at=datetime.fromtimestamp(0, UTC),
    waited=0.0,
)


class Claims(HeldClaims):
    """The statements of one incarnation of a worker."""

    def __init__(self, schema: str, lease: float, scope: ClaimScope = ClaimScope.ANY) -> None:
        super().__init__(schema, lease)
        self._scope = scope
        self._has_suspect = False
        #: Its name, under which the view `command` shows its claims.
        self.worker = ""

    @property
    def application_name(self) -> str:
        return session_name(self.schema, self.incarnation)

    def register(self, connection: Connection, worker: str | None = None) -> None:
        """Repeated on each new connection: a restored database may have forgotten it."""
        self.worker = worker or self.worker
        values = {"incarnation": self.incarnation, "worker": self.worker, "lease": self.lease}
        self.execute(connection, "register", values)

    def of(self, incarnation: int) -> "Claims":
        """The same statements for the claims of another incarnation, which is dead."""
        others = copy.copy(self)
        others.incarnation = incarnation
        return others

    def settle_and_claim(
        self,
        connection: Connection,
        done: Sequence[Finished],
        request: ClaimRequest,
        result: Callable[[ClaimResult], None] = lambda _: None,
    ) -> tuple[list[Claim], list[Claim]]:
        """Settles plain completions and claims the next run; returns lost claims and new ones.
        `result` is called for each of the two claims, but not for suspects."""
        if self._scope is ClaimScope.SUSPECT:
            return self.settle(connection, done) if done else [], self._suspect(connection, request)
        settled = [finished.claim for finished in done]
        values = {
            **self.fence(settled),
            **self._limits(request),
            "ctids": ctids([claim.ctid for claim in settled]),
            "attempts": whole([claim.attempts + 1 for claim in settled]),
            "max_attempts": whole([finished.max_attempts for finished in done]),
            "results": texts([finished.outcome.result for finished in done]),
        }
        rows = self.execute(connection, "step", values, prepare=True, binary=True).fetchall()
        claims: list[Claim] = []
        for each in _results(rows, ahead=not request.free):
            result(each)
            claims += each.claims
        claims.sort(key=_PRIORITY_AND_ID)
        if len(request.domains) > 1:
            turns = {domain: turn for turn, domain in enumerate(request.domains)}
            claims.sort(key=lambda claim: turns[claim.domain])
        return positioned(rows[0][0], settled), claims

    def _limits(self, request: ClaimRequest) -> dict[str, object]:
        queues = request.queues
        # Neither of the two claims knows the other's bytes.
        half = request.bytes // 2 if request.prefetch else request.bytes
        return {
            "claim_domains": texts([domain for domain, _ in queues]),
            "claim_priorities": whole([priority for _, priority in queues]),
            "floors": _lows(request.floors, queues),
            "quick_floors": _lows(request.quick_floors, queues if request.prefetch else []),
            "below": request.below,
            "types": texts(request.types),
            "quick_types": texts(request.quick_types if request.prefetch else []),
            "free": request.free,
            "ahead": request.prefetch,
            "bytes": half,
            "bytes_ahead": half,
            "most_losses": self._scope.value[1],
            "lease": self.lease,
        }

    def plan(self, connection: Connection) -> None:
        """Lets a new session plan the leaders' statement, which takes 10 ms, by settling a claim
        that does not exist and claiming from no domain."""
        if self._scope is not ClaimScope.SUSPECT:
            request = ClaimRequest(1, 1, [""], [], [], {})
            self.settle_and_claim(
                connection, [Finished(_NO_CLAIM, completed(None), 1, 0.0)], request
            )

    def _suspect(self, connection: Connection, request: ClaimRequest) -> list[Claim]:
        """Claims one in the life of its process, so that a crash can only be its doing."""
        if self._has_suspect:
            return []
        # Set before the reply, which may be lost: then the next leader adopts the claim.
        self._has_suspect = True
        try:
            rows = self.rows(
                connection,
                "claim_suspect",
                domains=list(request.domains),
                types=list(request.types),
                losses=self._scope.value[0],
                claimer=self.incarnation,
                lease=self.lease,
            )
        except psycopg.Error as error:
            self._has_suspect = connection.closed or was_executed(error)
            raise
        self._has_suspect = bool(rows)
        return [Claim._make(row) for row in rows]

    def claimable(
        self, connection: Connection, request: ClaimRequest, count: int, skipped: Iterable[int]
    ) -> list[ClaimKey]:
        """Keys of the rows that a claim would take; locks none."""
        least, most = self._scope.value
        queues = request.queues
        rows = self.rows(
            connection,
            "find_claimable",
            domains=[domain for domain, _ in queues],
            priorities=numbers(priority for _, priority in queues),
            types=list(request.types),
            least_losses=least,
            most_losses=most,
            skipped=numbers(skipped),
            count=count,
        )
        return [ClaimKey._make(row) for row in rows]

    def claim_row(self, connection: Connection, key: ClaimKey) -> Claim | None:
        """None if the row has changed since its key was read, or is locked."""
        values = {**key._asdict(), "claimer": self.incarnation, "lease": self.lease}
        row = self.row(connection, "claim_row", **values)
        if row is None:
            return None
        self._has_suspect = self._scope is ClaimScope.SUSPECT
        return Claim._make(row)


def _results(rows: Sequence[Row], *, ahead: bool) -> Iterator[ClaimResult]:
    """The results of a round trip: the rows of each claim end with one that has no token."""
    claims: list[Claim] = []
    made = Claim._make
    for row in rows:
        if row[4] is not None:
            claims.append(made(row[1:]))
        elif row[3] is not None:
            _, domain, priority, id_, *_, pages, _ctid = row
            stopped_at = None if domain is None else (domain, priority)
            yield ClaimResult(claims, ahead, id_, stopped_at, int(pages))
            claims, ahead = [], True


def _lows(floors: Mapping[tuple[str, int], int], queues: Sequence[tuple[str, int]]) -> str:
    if not floors:
        return whole([0] * len(queues))
    return whole([floors.get(queue, 0) for queue in queues])
