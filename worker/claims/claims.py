"""Every statement that a worker sends to PostgreSQL. Decides nothing.

Each settlement, release and renewal names the claim's key, command, token and claimer: no
such row means that the claim was lost, and nothing is written. All four, because a server
that was restored to an earlier point gives ids and tokens again, to other commands.
"""

import copy
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, Literal, TypeVar
from uuid import UUID

import psycopg

from cmdbus.board.counters import OutcomeLabel
from cmdbus.clock import time
from cmdbus.database.adapters import own_cursor
from cmdbus.database.session_names import PATTERN, incarnation_of, session_name
from cmdbus.database.statements import render, statement
from cmdbus.worker.claims.arrays import ctids, ids, numbers, texts, whole
from cmdbus.worker.claims.claim import (
    Claim,
    ClaimKey,
    ClaimRef,
    ClaimRequest,
    ClaimResult,
    ClaimScope,
    Connection,
    Finished,
    Row,
    Session,
    TimerReading,
)
from cmdbus.worker.claims.encodings import escaped
from cmdbus.worker.claims.outcomes import SUSPECT_LOSSES, completed, storable
from cmdbus.worker.claims.rejections import was_executed

Item = TypeVar("Item")

_PRIORITY_AND_ID = itemgetter(1, 2)
_NO_CLAIM = Claim(
    *("", 0, 0, 0, UUID(int=0), "", "", 0, 0, None, UUID(int=0), None),
    created_at=datetime.fromtimestamp(0, UTC),
    waited=0.0,
)

_MAX_LOSSES = 2**15 - 1
#: What a timeout of PostgreSQL can hold.
_MAX_MS = 2**31 - 1
#: Seconds to wait until terminated sessions are gone; and between two checks, doubling.
_GONE_WITHIN = 5.0
_FIRST_LOOK, _LONGEST_LOOK = 0.002, 0.1


class Claims:
    """The statements of one worker, under its incarnation's number."""

    def __init__(self, schema: str, lease: float, scope: ClaimScope = ClaimScope.ANY) -> None:
        self.schema = schema
        self._scope = scope
        #: What this node handles, as "domain type"; written with each renewal.
        self.types: list[str] = []
        self._has_suspect = False
        #: Random, as a database that was restored would give a number of its own again.
        self.incarnation = secrets.randbelow(2**63 - 1) + 1
        self._worker = ""
        # In seconds alone: PostgreSQL adds days by the calendar of the session's zone.
        self._lease = f"{lease:f} seconds"
        #: Time between two renewals of a lease.
        self.renewal_seconds = lease / 3
        self._opening = render("open_transaction", schema)
        self._limiting = render("limit_transaction", schema)

    @property
    def application_name(self) -> str:
        return session_name(self.schema, self.incarnation)

    def register(self, connection: Connection, worker: str) -> None:
        """Registers the worker under the incarnation of its claims; see the view `command`."""
        self._worker = worker
        self.register_again(connection)

    def register_again(self, connection: Connection) -> None:
        """For each new connection: a restored database may have forgotten this incarnation."""
        values = {
            "incarnation": self.incarnation,
            "worker": self._worker,
            "lease": self._lease,
        }
        self._execute(connection, "register", values)

    def of(self, incarnation: int) -> "Claims":
        """The same statements for the claims of another incarnation, which is dead."""
        theirs = copy.copy(self)
        theirs.incarnation = incarnation
        return theirs

    def settle_and_claim(
        self,
        connection: Connection,
        done: Sequence[Finished],
        request: ClaimRequest,
        result: Callable[[ClaimResult], None] = lambda _: None,
    ) -> tuple[list[Claim], list[Claim]]:
        """Settles plain completions and claims the next run; returns lost claims and new ones.
        `result` is called for each of its claims, but not for suspects."""
        if self._scope is ClaimScope.SUSPECT:
            return self.settle(connection, done) if done else [], self._suspect(connection, request)
        settled = [finished.claim for finished in done]
        queues = request.queues
        # Neither of the two claims knows what the other one takes.
        half = request.bytes // 2 if request.prefetch else request.bytes
        cursor = self._execute(
            connection,
            "step",
            {
                "ctids": ctids([claim.ctid for claim in settled]),
                **_fence(settled),
                "attempts": whole([claim.attempts + 1 for claim in settled]),
                "max_attempts": whole([finished.max_attempts for finished in done]),
                "results": texts([finished.outcome.result for finished in done]),
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
                "most_losses": self._losses[1],
                "claimer": self.incarnation,
                "lease": self._lease,
            },
            prepare=True,
            binary=True,
        )
        rows = cursor.fetchall()
        claims: list[Claim] = []
        for each in _looks(rows, ahead=not request.free):
            result(each)
            claims += each.claims
        claims.sort(key=_PRIORITY_AND_ID)
        if len(request.domains) > 1:
            turns = {domain: turn for turn, domain in enumerate(request.domains)}
            claims.sort(key=lambda claim: turns[claim.domain])
        return _at(rows[0][0], settled), claims

    def plan(self, connection: Connection) -> None:
        """Lets a new session plan the statement of the leaders, by settling a claim that does not
        exist and claiming from no domain: in the first settlement it would take 10 ms."""
        if self._scope is not ClaimScope.SUSPECT:
            request = ClaimRequest(1, 1, [""], [], [], {})
            self.settle_and_claim(
                connection, [Finished(_NO_CLAIM, completed(None), 1, 0.0)], request
            )

    def _suspect(self, connection: Connection, request: ClaimRequest) -> list[Claim]:
        """One in the life of its process: what crashes it later must not be taken for the next
        one's doing."""
        if self._has_suspect:
            return []
        values = {
            "domains": list(request.domains),
            "types": list(request.types),
            "losses": SUSPECT_LOSSES,
            "claimer": self.incarnation,
            "lease": self._lease,
        }
        # Before the reply, which may be lost: then the next leader adopts what was claimed.
        self._has_suspect = True
        try:
            rows = self._execute(connection, "claim_suspect", values).fetchall()
        except psycopg.Error as error:
            self._has_suspect = connection.closed or was_executed(error)
            raise
        self._has_suspect = bool(rows)
        return [Claim._make(row) for row in rows]

    def claimable(
        self, connection: Connection, request: ClaimRequest, count: int, skipped: Iterable[int]
    ) -> list[ClaimKey]:
        """Rows that a claim of any of the wanted types would take; locks none."""
        least, most = self._losses
        queues = request.queues
        values = {
            "domains": [domain for domain, _ in queues],
            "priorities": numbers(priority for _, priority in queues),
            "types": list(request.types),
            "least_losses": least,
            "most_losses": most,
            "skipped": numbers(skipped),
            "count": count,
        }
        rows = self._execute(connection, "find_claimable", values).fetchall()
        return [ClaimKey._make(row) for row in rows]

    def claim_row(self, connection: Connection, key: ClaimKey) -> Claim | None:
        """None if the row has changed since its key was read, or another session has locked it."""
        values = {**key._asdict(), "claimer": self.incarnation, "lease": self._lease}
        row = self._execute(connection, "claim_row", values).fetchone()
        if row is None:
            return None
        self._has_suspect = self._scope is ClaimScope.SUSPECT
        return Claim._make(row)

    def keys_of(self, connection: Connection, incarnation: int) -> list[ClaimKey]:
        """Like claimed_by."""
        rows = self._execute(connection, "find_keys", {"claimer": incarnation}).fetchall()
        return [ClaimKey._make(row) for row in rows]

    def read_claim(self, connection: Connection, key: ClaimKey) -> Claim | None:
        row = self._execute(connection, "read_claim", key._asdict()).fetchone()
        return None if row is None else Claim._make(row)

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
        return bool(self._value(connection, "set_aside", values))

    def key(self, claim: Claim) -> ClaimKey:
        """Of a claim of this worker."""
        return ClaimKey(
            claim.domain, claim.priority, claim.id, claim.token, claim.command_id, self.incarnation
        )

    @property
    def _losses(self) -> tuple[int, int]:
        """Losses that a row has at least and at most, with this claim's."""
        if self._scope is ClaimScope.SUSPECT:
            return SUSPECT_LOSSES, _MAX_LOSSES
        return 0, SUSPECT_LOSSES - 1 if self._scope is ClaimScope.INNOCENT else _MAX_LOSSES

    def suspects_wait(self, connection: Connection, types: Sequence[str]) -> bool:
        values = {"losses": SUSPECT_LOSSES, "types": list(types)}
        return bool(self._value(connection, "find_suspects", values))

    def settle(self, connection: Connection, done: Sequence[Finished]) -> list[Claim]:
        """Settles outcomes of any kind; returns the claims that were lost."""
        values = self._outcomes(_storable(connection, done))
        lost = self._value(connection, "settle", values)
        return _at(lost, [finished.claim for finished in done])

    def settle_within(
        self, connection: Connection, finished: Finished, marker: str
    ) -> tuple[bool | None, list[str]]:
        """Settles in its handler's transaction: None if that transaction has ended, False if the
        claim was lost. And which statements SQL has prepared in the session."""
        values = {**self._outcomes(_storable(connection, [finished])), "marker": marker}
        row = self._execute(connection, "settle_within", values).fetchone()
        assert row is not None
        lost, prepared = row
        return None if lost is None else not lost, prepared or []

    def release(self, connection: Connection, claims: Sequence[Claim]) -> list[Claim]:
        """Releases those of these claims, none of which has begun, that this worker still has;
        returns those that were released, as `hand_back` does."""
        return self.release_dead(connection, claims, [None] * len(claims), "")

    def release_dead(
        self,
        connection: Connection,
        claims: Sequence[Claim],
        losses: Sequence[int | None],
        why: str,
        reason: str | None = None,
    ) -> list[Claim]:
        """The same, with the losses of each that has begun, and why; `reason`: STOPPED if some
        count none. Returns those given back: not those that another session has locked."""
        values = {
            **_keys(claims),
            "claimer": self.incarnation,
            "losses": numbers(losses),
            "reason": reason,
            "why": escaped(why, _encoding(connection)),
        }
        return _at(self._value(connection, "release", values), claims)

    def still_held(self, connection: Connection, claims: Sequence[Claim]) -> list[Claim]:
        """Those that this worker still has."""
        values = {**_keys(claims), "claimer": self.incarnation}
        rows = self._execute(connection, "find_held", values).fetchall()
        return _at([position for (position,) in rows], claims)

    def claimed_by(
        self, connection: Connection, incarnation: int, among: Sequence[UUID] | None = None
    ) -> list[Claim]:
        """What the table says is a worker's, without payloads; reads all rows, or those of these
        commands."""
        values = {"claimer": incarnation, "command_ids": ids(among or ())}
        name = "find_claimed" if among is None else "find_claimed_among"
        # Each time with a new plan: one made on an empty table reads all rows in either case.
        cursor = own_cursor(connection).execute(statement(name, self.schema), values, prepare=False)
        return [Claim._make(row) for row in cursor.fetchall()]

    def with_payloads(
        self, connection: Connection, claims: Sequence[Claim], most: int
    ) -> list[Claim]:
        """Those of these that this worker still has, with what `claimed_by` left out: the first
        that hold at most `most` bytes together, and at least one."""
        values = {**_keys(claims), "claimer": self.incarnation, "bytes": most}
        rows = self._execute(connection, "read_payloads", values).fetchall()
        payloads = {(id_, token): data for id_, token, data in rows}
        return [
            claim._replace(data=payloads[claim[2:4]]) for claim in claims if claim[2:4] in payloads
        ]

    def ends(self, connection: Connection, claims: Sequence[Claim]) -> list[OutcomeLabel | None]:
        """How the executions of claims whose rows are gone ended; None if that is not known."""
        values = {
            "domains": texts(claim.domain for claim in claims),
            "command_ids": ids(claim.command_id for claim in claims),
            "tokens": numbers(claim.token for claim in claims),
            "claimer": self.incarnation,
        }
        rows = self._execute(connection, "find_ends", values).fetchall()
        return [None if end is None else OutcomeLabel[end] for (end,) in rows]

    def depths(self, connection: Connection) -> dict[tuple[str, str], int]:
        """Commands by domain and state."""
        rows = self._execute(connection, "read_depths", {}).fetchall()
        return {(domain, state): count for domain, state, count in rows}

    def unhandled(
        self, connection: Connection, domains: Sequence[str], seconds: float, count: int
    ) -> list[tuple[str, str, int]]:
        """Types of `domains` that neither this node nor another one at work handles, with the
        number of their commands, which have waited for `seconds`; at most `count` of them."""
        values = {"domains": list(domains), "types": self.types, "seconds": seconds}
        return self._execute(connection, "find_unhandled", {**values, "count": count}).fetchall()

    def oldest_snapshot(self, connection: Connection) -> float:
        """Seconds for which a transaction has kept dead rows from being removed."""
        return float(self._value(connection, "read_oldest_snapshot", {}))

    def renew(
        self, connection: Connection, claims: Mapping[int, Sequence[ClaimRef]]
    ) -> list[ClaimRef]:
        """Renews the leases of claims, by incarnation; returns those that were lost.
        Without claims it shows that this node is there and can renew."""
        held = [(claim, claimer) for claimer, each in claims.items() for claim in each]
        values = {
            "command_ids": ids(claim.command_id for claim, _ in held),
            "ids": numbers(claim.id for claim, _ in held),
            "tokens": numbers(claim.token for claim, _ in held),
            "claimers": numbers(claimer for _, claimer in held),
            "node": self.incarnation,
            "lease": self._lease,
            "types": self.types,
        }
        return _at(self._value(connection, "renew", values), [claim for claim, _ in held])

    def promote(
        self,
        connection: Connection,
        rows: int,
        size: int,
        skipped: Iterable[int] = (),
        seconds: float = 0.0,
    ) -> int:
        """Up to `rows` rows and `size` bytes as stored; `seconds` is the statement's timeout, 0
        leaves the session's. Returns the number of promoted commands."""
        values = {"rows": rows, "bytes": size, "skipped": numbers(skipped)}
        if not seconds:
            return int(self._value(connection, "promote", values))
        with connection.transaction():
            self._execute(connection, "limit_statements", {"limit": f"{seconds:g}s"})
            return int(self._value(connection, "promote", values))

    def first_due(self, connection: Connection, skipped: Iterable[int]) -> ClaimKey | None:
        """Of the scheduled commands, the one that is promoted next."""
        values = {"skipped": numbers(skipped)}
        row = self._execute(connection, "find_first_due", values).fetchone()
        return None if row is None else ClaimKey._make(row)

    def days(self, connection: Connection) -> tuple[float, list[str]]:
        """The server's time in seconds since 1970, and the names of the tables of history."""
        rows = self._execute(connection, "find_days", {}).fetchall()
        return (rows[0][1] if rows else 0.0), [row[0] for row in rows]

    def keeps(self, connection: Connection) -> dict[str, tuple[float, float | None]]:
        """For how many seconds domains keep their history, and how many seconds ago the latest
        sweep of each began, None if that is not known."""
        rows = self._execute(connection, "find_keeps", {}).fetchall()
        return {name: (seconds, swept) for name, seconds, swept in rows}

    def begin_sweep(self, connection: Connection, domain: str, seconds: float) -> bool:
        """Whether this process is to sweep a domain: false if a sweep began within `seconds`."""
        values = {"domain": domain, "seconds": seconds}
        return bool(self._value(connection, "begin_sweep", values))

    def retain_day(self, connection: Connection, partition: str, blocks: int) -> bool:
        """Removes a part of a day; whether the day is gone."""
        values = {"partition": partition, "blocks": blocks}
        return bool(self._value(connection, "retain_day", values))

    def retain_domain(self, connection: Connection, partition: str, domain: str, rows: int) -> int:
        """Removes commands of a domain that it does not keep any longer; how many."""
        values = {"partition": partition, "domain": domain, "count": rows}
        return int(self._value(connection, "retain_domain", values))

    def retain_incarnations(self, connection: Connection) -> int:
        """Removes those that nothing refers to any longer; how many."""
        names = self._execute(connection, "find_living", {"node": PATTERN}).fetchall()
        living = (incarnation_of(name) for (name,) in names)
        values = {"living": numbers(number for number in living if number is not None)}
        return int(self._value(connection, "retain_incarnations", values))

    def retain_domain_events(self, connection: Connection) -> int:
        """Removes the oldest events of domains themselves; how many."""
        return int(self._value(connection, "retain_domain_events", {}))

    def timers(
        self,
        connection: Connection,
        domains: Sequence[str],
        types: Sequence[str],
        *,
        leases: bool,
        own: Iterable[int] = (),
    ) -> TimerReading:
        """`leases`: also when the next lease ends, apart for these own incarnations."""
        values = {
            "domains": list(domains),
            "types": list(types),
            "leases": leases,
            "own": numbers(own),
            "losses": SUSPECT_LOSSES,
        }
        row = self._execute(connection, "read_timers", values).fetchone()
        assert row is not None
        return TimerReading._make(row)

    def arm(
        self, connection: Connection, domains: Sequence[str], looks_in: float, lasts: float
    ) -> bool:
        """True says that it was not armed before; see the schema."""
        values = {
            "node": self.incarnation,
            "domains": list(domains),
            "looks_in": looks_in,
            "lasts": lasts,
        }
        return bool(self._value(connection, "arm", values))

    def remove_waiter(self, connection: Connection) -> None:
        """Ends this node's arming."""
        self._value(connection, "leave", {"node": self.incarnation})

    def disarm(self, connection: Connection) -> None:
        self._value(connection, "disarm", {"node": self.incarnation})

    def writers(self, connection: Connection) -> set[str]:
        return set(self._value(connection, "read_writers", {}))

    def listen(self, connection: Connection) -> None:
        connection.execute(statement("listen", self.schema))

    def end_sessions(
        self,
        connection: Connection,
        sessions: Iterable[Session],
        *,
        incarnation: int | None = None,
        within: float = _GONE_WITHIN,
    ) -> bool:
        """Ends sessions, and all others of an incarnation, and waits until they are gone; False
        if they are not in time. Until then they may commit what is in their socket."""
        pairs = list(sessions)
        values = {
            "pids": [pid for pid, _ in pairs],
            "starts": [start for _, start in pairs],
            "name": None if incarnation is None else session_name(self.schema, incarnation),
        }
        deadline = time.monotonic() + within
        pause = _FIRST_LOOK
        while self._value(connection, "end_sessions", values):
            if time.monotonic() > deadline:
                return False
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_LOOK)
        return True

    def ping(self, connection: Connection) -> None:
        """An error if the session has ended."""
        self._execute(connection, "ping", None)

    def missing_rights(self, connection: Connection) -> list[str]:
        """Those of a worker that the session's role lacks."""
        return [right for (right,) in self._execute(connection, "read_missing_rights", None)]

    def error_code(self, connection: Connection, claim: Claim) -> str | None:
        """Of the command's latest execution; None of its first one."""
        values = {"domain": claim.domain, "priority": claim.priority, "id": claim.id}
        row = self._execute(connection, "read_error_code", values).fetchone()
        return None if row is None else row[0]

    def activity_of(self, connection: Connection, pid: int) -> dict[str, object]:
        """For the details of an event: the statement that a handler is executing, or executed
        last in its transaction, and the sessions that block it, the longest first."""
        row = self._execute(connection, "read_session", {"pid": pid}).fetchone()
        statement, blocked_by = row or (None, None)
        details = {"statement": statement, "blocked_by": blocked_by}
        return {name: value for name, value in details.items() if value}

    def begin(self, connection: Connection, *, statement: float, idle: float, marker: str) -> None:
        """Opens a handler's transaction, with its limits in seconds."""
        script = self._opening.format(marker=marker, **_limits(statement, idle))
        connection.execute(script.encode())

    def limit(self, *, statement: float, idle: float) -> bytes:
        """The statement that gives an open transaction of a handler new limits, in seconds."""
        return self._limiting.format(**_limits(statement, idle)).encode()

    def commit(self, connection: Connection, prepared: Sequence[str]) -> None:
        """And deallocates these statements, in the same round trip."""
        script = statement("commit_transaction", self.schema)
        connection.execute(script + self._deallocate(prepared))

    def roll_back(self, connection: Connection) -> None:
        """And deallocates what SQL has prepared, in a round trip of its own if there is any."""
        cursor = self._execute(connection, "rollback_transaction", None)
        while cursor.nextset():
            pass
        (prepared,) = cursor.fetchall()[0]
        if prepared:
            connection.execute(self._deallocate(prepared))

    def _deallocate(self, prepared: Sequence[str]) -> bytes:
        return "".join(
            render("deallocate", self.schema, identifier=name) for name in prepared
        ).encode()

    def _outcomes(self, done: Sequence[Finished]) -> dict[str, object]:
        outcomes = [finished.outcome for finished in done]
        return {
            **_keys([finished.claim for finished in done]),
            "claimer": self.incarnation,
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

    def _execute(
        self,
        connection: Connection,
        name: str,
        values: dict[str, Any] | None,
        *,
        prepare: bool = False,
        binary: bool = False,
    ) -> psycopg.Cursor[Row]:
        # A pool of the caller's may make connections whose cursors are of another kind.
        cursor = own_cursor(connection)
        return cursor.execute(
            statement(name, self.schema), values, prepare=prepare or None, binary=binary
        )

    def _value(self, connection: Connection, name: str, values: dict[str, Any]) -> Any:
        row = self._execute(connection, name, values).fetchone()
        assert row is not None, f"{name} returns exactly one row"
        return row[0]


def _at(positions: Sequence[int], items: Sequence[Item]) -> list[Item]:
    """What SQL says by position, as ids are given again by a server that was restored."""
    return [items[position - 1] for position in positions]


def _limits(statement: float, idle: float) -> dict[str, int]:
    return {
        "statement_ms": min(int(statement * 1000), _MAX_MS),
        "idle_ms": min(int(idle * 1000), _MAX_MS),
    }


def _encoding(connection: Connection) -> str:
    return connection.info.parameter_status("server_encoding") or "UTF8"


def _storable(connection: Connection, done: Sequence[Finished]) -> Sequence[Finished]:
    encoding = _encoding(connection)
    if encoding == "UTF8":
        return done
    return [finished._replace(outcome=storable(finished.outcome, encoding)) for finished in done]


def _looks(rows: Sequence[Row], *, ahead: bool) -> Iterator[ClaimResult]:
    """Of a step's rows: each of its claims ends with one that has no token."""
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


def _keys(claims: Sequence[Claim]) -> dict[str, str]:
    return {
        "domains": texts([claim.domain for claim in claims]),
        "priorities": whole([claim.priority for claim in claims]),
        **_fence(claims),
    }


def _fence(claims: Sequence[Claim]) -> dict[str, str]:
    return {
        "ids": whole([claim.id for claim in claims]),
        "tokens": whole([claim.token for claim in claims]),
        "command_ids": ids([claim.command_id for claim in claims]),
    }
