"""The statements on the claims of an incarnation: settle, release, renew, read.

Each settlement, release and renewal names the claim's key, command, token and claimer: no
such row means that the claim was lost, and nothing is written. All four, because a server
that was restored to an earlier point gives ids and tokens again, to other commands.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar
from uuid import UUID

from cmdbus.board.counters import OutcomeLabel
from cmdbus.database.executor import Executor
from cmdbus.worker.claims.arrays import ids, numbers, texts, whole
from cmdbus.worker.claims.claim import Claim, ClaimKey, ClaimRef, Connection, Finished
from cmdbus.worker.claims.outcomes import with_ascii_texts

Item = TypeVar("Item")


class HeldClaims(Executor):
    def __init__(self, schema: str, lease: float) -> None:
        super().__init__(schema)
        #: Random, as a restored database would give a number of its own again.
        self.incarnation = secrets.randbelow(2**63 - 1) + 1
        #: The node's command types, as "domain type"; written with each renewal.
        self.types: list[str] = []
        #: In seconds alone: PostgreSQL adds days by the calendar of the session's zone.
        self.lease = f"{lease:f} seconds"
        #: Seconds between two renewals of a lease.
        self.renewal_seconds = lease / 3

    def key(self, claim: Claim) -> ClaimKey:
        return ClaimKey(
            claim.domain, claim.priority, claim.id, claim.token, claim.command_id, self.incarnation
        )

    def settle(self, connection: Connection, done: Sequence[Finished]) -> list[Claim]:
        """Settles outcomes of any kind; returns the claims that were lost."""
        done = _storable(connection, done)
        lost = self.value(connection, "settle", **self._outcomes(done), marker=None)
        return positioned(lost, [finished.claim for finished in done])

    def settle_within(
        self, connection: Connection, finished: Finished, marker: str
    ) -> tuple[bool | None, list[str]]:
        """Settles in its handler's transaction: None if that transaction has ended, False if the
        claim was lost. And which statements SQL has prepared in the session."""
        values = self._outcomes(_storable(connection, [finished]))
        [(lost, prepared)] = self.rows(connection, "settle", **values, marker=marker)
        return None if lost is None else not lost, prepared or []

    def release(self, connection: Connection, claims: Sequence[Claim]) -> list[Claim]:
        """Releases claims that have not begun; returns those that this worker still had."""
        return self.release_dead(connection, claims, [None] * len(claims), "")

    def release_dead(
        self,
        connection: Connection,
        claims: Sequence[Claim],
        losses: Sequence[int | None],
        why: str,
        reason: str | None = None,
    ) -> list[Claim]:
        """The same, with the losses of each that has begun, and why, in ASCII; `reason`: STOPPED
        if some count none. Not those that another session has locked."""
        released = self.value(
            connection,
            "release",
            **self._keys(claims),
            losses=numbers(losses),
            reason=reason,
            why=why,
        )
        return positioned(released, claims)

    def still_held(self, connection: Connection, claims: Sequence[Claim]) -> list[Claim]:
        rows = self.rows(connection, "find_held", **self._keys(claims))
        return positioned([position for (position,) in rows], claims)

    def set_aside(
        self,
        connection: Connection,
        key: ClaimKey,
        code: str,
        message: str,
        table: Literal["ready", "scheduled"] = "ready",
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
        )
        return positioned(lost, [claim for claim, _ in held])

    def claimed(self, connection: Connection, among: Sequence[UUID] | None = None) -> list[Claim]:
        """This worker's claims in the table, without payloads; reads all rows, or those of these
        commands."""
        values = {"claimer": self.incarnation, "command_ids": among and ids(among)}
        # Planned each time: a plan made on an empty table reads all rows in either case.
        cursor = self.execute(connection, "find_claimed", values, prepare=False)
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
        rows = self.rows(connection, "read_payloads", **self._keys(claims), bytes=most)
        payloads = {(id_, token): data for id_, token, data in rows}
        return [
            claim._replace(data=payloads[claim[2:4]]) for claim in claims if claim[2:4] in payloads
        ]

    def ends(self, connection: Connection, claims: Sequence[Claim]) -> list[OutcomeLabel | None]:
        """The outcomes of claims whose rows are gone; None if one is not known."""
        rows = self.rows(connection, "find_ends", **self._keys(claims))
        return [None if end is None else OutcomeLabel[end] for (end,) in rows]

    def _keys(self, claims: Sequence[Claim]) -> dict[str, object]:
        return {
            "domains": texts([claim.domain for claim in claims]),
            "priorities": whole([claim.priority for claim in claims]),
            **self.fence(claims),
        }

    def fence(self, claims: Sequence[Claim]) -> dict[str, object]:
        return {
            "ids": whole([claim.id for claim in claims]),
            "tokens": whole([claim.token for claim in claims]),
            "command_ids": ids([claim.command_id for claim in claims]),
            "claimer": self.incarnation,
        }

    def _outcomes(self, done: Sequence[Finished]) -> dict[str, object]:
        outcomes = [finished.outcome for finished in done]
        return {
            **self._keys([finished.claim for finished in done]),
            "kinds": texts(outcome.kind.value for outcome in outcomes),
            "attempts": numbers(f.claim.attempts + f.outcome.charged for f in done),
            "losses": numbers(
                None if f.outcome.lost is None else f.claim.losses + f.outcome.lost for f in done
            ),
            "max_attempts": numbers(finished.max_attempts for finished in done),
            "results": texts(outcome.result for outcome in outcomes),
            "delays": numbers(outcome.delay for outcome in outcomes),
            "codes": texts(outcome.code for outcome in outcomes),
            "messages": texts(outcome.message for outcome in outcomes),
            "details": texts(outcome.details for outcome in outcomes),
        }


def positioned(positions: Sequence[int], items: Sequence[Item]) -> list[Item]:
    """SQL names items by position, as a restored server gives ids again."""
    return [items[position - 1] for position in positions]


def _storable(connection: Connection, done: Sequence[Finished]) -> Sequence[Finished]:
    if connection.info.parameter_status("server_encoding") in (None, "UTF8"):
        return done
    return [finished._replace(outcome=with_ascii_texts(finished.outcome)) for finished in done]
