"""The statements of workers: claim, settle, release, renew, read.

Each settlement, release and renewal names the claim's key, command, token and claimer: no
such row means that the claim was lost, and nothing is written. All four, because a server
that was restored to an earlier point gives ids and tokens again, to other commands.
"""

import copy
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Literal
from uuid import UUID

import psycopg

from cmdbus.arrays import ids, numbers, texts
from cmdbus.board.counters import OutcomeLabel
from cmdbus.database.executor import Executor
from cmdbus.database.session_names import session_name
from cmdbus.selection import ALL_PRIORITIES
from cmdbus.worker.claims.claim import (
    Claim,
    ClaimKey,
    ClaimPart,
    ClaimRef,
    ClaimRequest,
    ClaimResult,
    ClaimScope,
    Connection,
    Finished,
    plain_and_others,
    results_of,
)
from cmdbus.worker.claims.outcomes import completed, with_ascii_texts
from cmdbus.worker.claims.rejections import was_executed
from cmdbus.worker.claims.statement_values import (
    claim_values,
    completion_values,
    lane_values,
    oldest_values,
    outcome_values,
    positioned,
    request_values,
)

#: Where a row is that can be set aside.
Table = Literal["ready", "scheduled", "limited"]

_PRIORITY_AND_ID = itemgetter(1, 2)
_NO_CLAIM = Claim(
    *("", 0, 0, 0, UUID(int=0), "", "", 0, 0, None, UUID(int=0), None),
    created_at=datetime.fromtimestamp(0, UTC),
    waited=0.0,
)


class ClaimStatements(Executor):
    """The statements of one incarnation of a worker."""

    def __init__(self, schema: str, lease: float, scope: ClaimScope = ClaimScope.ANY) -> None:
        super().__init__(schema)
        #: Random, as a restored database would give a number of its own again.
        self.incarnation = secrets.randbelow(2**63 - 1) + 1
        #: The name under which the view `command` shows this worker.
        self.worker = ""
        #: The same for all workers of a supervisor.
        self.node = self.incarnation
        #: The node's command types, as "domain type"; written with each renewal.
        self.types: list[str] = []
        #: The node's tags, and the first and the last priority that it claims; also written then.
        self.tags: list[str] = []
        self.priorities = ALL_PRIORITIES
        #: In seconds alone: PostgreSQL adds days by the calendar of the session's zone.
        self.lease = f"{lease:f} seconds"
        self.lease_seconds = lease
        #: As `Timeouts.renewal`.
        self.renewal_seconds = lease / 3
        self._scope = scope
        self._has_suspect = False

    @property
    def band(self) -> list[int] | None:
        """The first and the last priority; None if they are all."""
        return None if self.priorities == ALL_PRIORITIES else list(self.priorities)

    @property
    def in_quarantine(self) -> bool:
        return self._scope is ClaimScope.SUSPECT

    @property
    def application_name(self) -> str:
        return session_name(self.schema, self.incarnation)

    def register(self, connection: Connection, worker: str | None = None) -> None:
        """Repeated on each new connection: a restored database may have forgotten it."""
        self.worker = worker or self.worker
        values = {
            "incarnation": self.incarnation,
            "worker": self.worker,
            "lease": self.lease,
            "node": self.node,
        }
        self.execute(connection, "register", values)

    def of(self, incarnation: int) -> "ClaimStatements":
        """The same statements for the claims of another incarnation, which is dead."""
        others = copy.copy(self)
        others.incarnation = incarnation
        return others

    def key(self, claim: Claim) -> ClaimKey:
        return ClaimKey(
            claim.domain, claim.priority, claim.id, claim.token, claim.command_id, self.incarnation
        )

    def settle_and_claim(
        self,
        connection: Connection,
        done: Sequence[Finished],
        request: ClaimRequest,
        result: Callable[[ClaimResult], None] = lambda _: None,
    ) -> tuple[list[Claim], list[Claim]]:
        """Settles plain completions and claims the next run; returns lost claims and new ones.
        `result` is called for the result of each claim, but not for suspects."""
        if self.in_quarantine:
            return self.settle(connection, done) if done else [], self._suspect(connection, request)
        settled = [finished.claim for finished in done]
        values = {
            **completion_values(done, self.incarnation),
            **request_values(request),
            "most_losses": self._scope.value[1],
            "lease": self.lease,
        }
        name = "settle_and_claim"
        if request.lanes is not None:
            name = "settle_and_claim_with_lanes"
            values |= lane_values(request.lanes)
            values["node"] = self.node
        elif request.oldest:
            name = "settle_and_claim_with_oldest"
            values |= oldest_values(request)
        cursor = self.execute(connection, name, values, prepare=True, binary=True)
        rows = cursor.fetchall()
        claims: list[Claim] = []
        oldest: Sequence[Claim] = []
        first = ClaimPart.FREE if request.free else ClaimPart.PREFETCH
        for each in results_of(rows, ClaimPart.OLDEST if request.oldest else first):
            result(each)
            if each.part is ClaimPart.OLDEST:
                oldest = each.claims
            else:
                claims += each.claims
        claims.sort(key=_PRIORITY_AND_ID)
        if len(request.domains) > 1:
            turns = {domain: turn for turn, domain in enumerate(request.domains)}
            claims.sort(key=lambda claim: turns[claim.domain])
        return positioned(rows[0][0] or (), settled), [*oldest, *claims]

    def limited_types(self, connection: Connection) -> tuple[int | None, list[str], list[str]]:
        """The number of changes of limits, None while one is being made; those of the node's types
        that have limits, and the names of limits that they share."""
        number = self.value(connection, "committed_limits")
        row = self.row(connection, "read_limited_types", types=self.types)
        assert row is not None
        return number, *row

    def take_places(self, connection: Connection, types: Sequence[str]) -> None:
        """Lets the claims of types that have limits now hold places: a claim may have come after
        the change, and before its worker knew of that. Reads all rows."""
        values = {"claimer": self.incarnation, "types": texts(types)}
        self.execute(connection, "take_places", values)

    def plan(self, connection: Connection) -> None:
        """Lets a new session plan the leaders' statement, which takes 10 ms, by settling a claim
        that does not exist and claiming from no domain."""
        if not self.in_quarantine:
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
            values = {
                "domains": list(request.domains),
                "types": list(request.types),
                "losses": self._scope.value[0],
                "priorities": self.band,
                "claimer": self.incarnation,
                "lease": self.lease,
            }
            rows = self.execute(connection, "claim_suspect", values, binary=True).fetchall()
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
        row = self.execute(connection, "claim_row", values, binary=True).fetchone()
        if row is None:
            return None
        self._has_suspect = self.in_quarantine
        return Claim._make(row)

    def settle(self, connection: Connection, done: Sequence[Finished]) -> list[Claim]:
        """Settles outcomes of any kind; returns the claims that were lost."""
        done = _storable(connection, done)
        values = outcome_values(done, self.incarnation)
        lost = self.value(connection, "settle", **values, marker=None)
        return positioned(lost, [finished.claim for finished in done])

    def settle_within(
        self, connection: Connection, done: Sequence[Finished], marker: str
    ) -> tuple[list[Claim] | None, list[str]]:
        """Settles in a handler's transaction, and returns the claims that were lost; None if that
        transaction has ended. And which statements SQL has prepared in the session."""
        done = _storable(connection, done)
        _, others = plain_and_others(done)
        name, values_of = "complete_within", completion_values
        if others:
            name, values_of = "settle", outcome_values
        values = values_of(done, self.incarnation)
        [(lost, prepared)] = self.rows(connection, name, **values, marker=marker)
        claims = [finished.claim for finished in done]
        return None if lost is None else positioned(lost, claims), prepared or []

    def release(
        self,
        connection: Connection,
        claims: Sequence[Claim],
        losses: Sequence[int | None] | None = None,
        why: str = "",
        reason: str | None = None,
    ) -> list[Claim]:
        """Releases claims, with the losses of each that has begun, and why, in ASCII; `reason`:
        STOPPED if some count none. Returns those that this worker still had, and that no other
        session had locked."""
        released = self.value(
            connection,
            "release",
            **claim_values(claims, self.incarnation),
            losses=numbers(losses or [None] * len(claims)),
            reason=reason,
            why=why,
        )
        return positioned(released, claims)

    def still_held(self, connection: Connection, claims: Sequence[Claim]) -> list[Claim]:
        rows = self.rows(connection, "find_held", **claim_values(claims, self.incarnation))
        return positioned([position for (position,) in rows], claims)

    def set_aside(
        self,
        connection: Connection,
        key: ClaimKey,
        code: str,
        message: str,
        table: Table = "ready",
    ) -> bool:
        """Moves a row to troubleshooting; `code` and `message` are ASCII. False if the row has
        gone, or its claim was lost."""
        values = {**key._asdict(), "table": table, "code": code, "message": message}
        return bool(self.value(connection, "set_aside", **values))

    def renew(
        self, connection: Connection, claims: Mapping[int, Sequence[ClaimRef]]
    ) -> list[ClaimRef]:
        """Renews the leases of claims, by incarnation; returns those that were lost.
        Without claims it shows that this node is there and can renew."""
        held = [(claim, claimer) for claimer, each in claims.items() for claim in each]
        lost = self.value(
            connection,
            "renew",
            command_ids=ids(claim.command_id for claim, _ in held),
            ids=numbers(claim.id for claim, _ in held),
            tokens=numbers(claim.token for claim, _ in held),
            claimers=numbers(claimer for _, claimer in held),
            node=self.incarnation,
            lease=self.lease,
            types=self.types,
            tags=self.tags or None,
            priorities=self.band,
        )
        return positioned(lost, [claim for claim, _ in held])

    def claimed(self, connection: Connection, among: Sequence[UUID] | None = None) -> list[Claim]:
        """This worker's claims in the table, without payloads; reads all rows, or those of these
        commands."""
        values = {"claimer": self.incarnation, "command_ids": among and ids(among)}
        # Planned each time: a plan made on an empty table reads all rows in either case.
        cursor = self.execute(connection, "find_claimed", values, prepare=False, binary=True)
        return [Claim._make(row) for row in cursor.fetchall()]

    def keys_of(self, connection: Connection, incarnation: int) -> list[ClaimKey]:
        """Reads all rows."""
        rows = self.rows(connection, "find_keys", claimer=incarnation)
        return [ClaimKey._make(row) for row in rows]

    def with_payloads(
        self, connection: Connection, claims: Sequence[Claim], most: int
    ) -> list[Claim]:
        """Those that this worker still has, with the payloads that `claimed` left out: the first
        that hold at most `most` bytes together, and at least one."""
        values = claim_values(claims, self.incarnation)
        rows = self.rows(connection, "read_payloads", **values, bytes=most)
        payloads = {(id_, token): data for id_, token, data in rows}
        return [
            claim._replace(data=payloads[claim[2:4]]) for claim in claims if claim[2:4] in payloads
        ]

    def ends(self, connection: Connection, claims: Sequence[Claim]) -> list[OutcomeLabel | None]:
        """The outcomes of claims whose rows are gone; None if one is not known."""
        rows = self.rows(connection, "find_ends", **claim_values(claims, self.incarnation))
        return [None if end is None else OutcomeLabel[end] for (end,) in rows]


def _storable(connection: Connection, done: Sequence[Finished]) -> Sequence[Finished]:
    if connection.info.parameter_status("server_encoding") in (None, "UTF8"):
        return done
    return [finished._replace(outcome=with_ascii_texts(finished.outcome)) for finished in done]
