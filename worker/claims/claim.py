"""The values of claiming: claims, their keys, requests and results. No statements."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum, IntEnum
from math import inf
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from cmdbus.board.views import ClaimView
from cmdbus.command_log import fields_of
from cmdbus.headers import NO_HEADERS, Headers, decode_headers
from cmdbus.retry import SUSPECT_LOSSES
from cmdbus.selection import ALL_PRIORITIES
from cmdbus.settings import CLAIM_BYTES
from cmdbus.worker.claims.outcomes import Outcome, OutcomeKind

Connection = psycopg.Connection[Any]
Row = tuple[Any, ...]
#: Pid and start of the server's process; the start tells it from a later one of the same pid.
Session = tuple[int, int]

#: Why a command that had begun is released without a loss: its worker was ordered to stop.
STOPPED = "STOPPED"

# Looking a member up in its class takes 0.1 microseconds.
_COMPLETED = OutcomeKind.COMPLETED
#: Places of columns in the rows of a round trip.
_ATTEMPTS, _WAITED, _CALLER = 8, 14, 16
#: Ids of rows that are no claims: a floor of a queue; the number of the next part follows; the end
#: of a claim in lanes.
_FLOOR, _NEXT_PART, _LANES_READ = -3, -2, -1
#: The maximum of a smallint.
_MAX_LOSSES = 2**15 - 1


class Claim(NamedTuple):
    """A worker's lease on a command."""

    domain: str
    priority: int
    id: int
    #: Numbers the claims of this command.
    token: int
    command_id: UUID
    type: str
    #: JSON text, which this Python may be unable to decode; empty where only keys were read.
    data: str
    #: Charged so far.
    attempts: int
    losses: int
    #: The sender's; None leaves it to the handler's policy.
    max_attempts: int | None
    #: None if it is the command's own id.
    other_correlation_id: UUID | None
    #: Both in one column; see the schema's function. None for nearly all.
    reply_to_and_headers: str | None
    created_at: datetime
    #: Seconds between being due and being claimed.
    waited: float
    batch_id: UUID | None = None
    #: The bus whose call waits for the command's end, if one does.
    caller: int | None = None
    #: Position of the row when it was claimed, as the server sends it; a renewal moves it.
    ctid: bytes = bytes(6)

    @property
    def correlation_id(self) -> UUID:
        return self.other_correlation_id or self.command_id

    @property
    def reply_to(self) -> str | None:
        both = self.reply_to_and_headers
        return None if both is None else both.partition(" ")[0] or None

    @property
    def headers(self) -> Mapping[str, str]:
        both = self.reply_to_and_headers
        text = None if both is None else both.partition(" ")[2]
        return Headers(decode_headers(text)) if text else NO_HEADERS

    @property
    def log_fields(self) -> dict[str, object]:
        return fields_of(
            self.command_id, self.domain, self.type, self.correlation_id, self.attempts + 1
        )


class ClaimKey(NamedTuple):
    """Names a row of `ready` and its claim."""

    domain: str
    priority: int
    id: int
    token: int
    command_id: UUID
    #: None if no worker has the row.
    claimer: int | None


#: A value that names a claim.
ClaimRef = Claim | ClaimKey | ClaimView


class Finished(NamedTuple):
    """A claim with its outcome, not settled yet."""

    claim: Claim
    outcome: Outcome
    #: The limit that applied to this execution.
    max_attempts: int
    #: Monotonic time.
    at: float
    #: Of the execution; 0 if there was none.
    seconds: float = 0.0
    #: The headers of its reply as JSON text, "{}" for none; None: those that the schema forwards.
    reply_headers: str | None = None


def plain_and_others(done: Sequence[Finished]) -> tuple[list[Finished], list[Finished]]:
    """Plain: completed, without a reply and a caller. Hundreds can be settled together."""
    plain, others = list[Finished](), list[Finished]()
    for each in done:
        claim = each.claim
        both = claim.reply_to_and_headers
        is_plain = (
            each.outcome.kind is _COMPLETED
            and (both is None or both[0] == " ")  # Headers alone.
            and claim.caller is None
        )
        (plain if is_plain else others).append(each)
    return plain, others


class ClaimRequest(NamedTuple):
    """What to claim."""

    #: Number of commands of any type: that of the free slots.
    free: int
    #: Number of further commands, of the types that are known to be quick.
    prefetch: int
    #: In the order of claiming, which rotates.
    domains: Sequence[str]
    #: "domain type", as the schema's claim compares them.
    types: Sequence[str]
    quick_types: Sequence[str]
    #: Ids to begin above, by domain and priority; see floors.py.
    floors: Mapping[tuple[str, int], int]
    #: Payload bytes to claim at most, but for a single command that has more.
    bytes: int = CLAIM_BYTES
    #: Whether to claim from below the floors if nothing is above them.
    below: bool = True
    #: The floors of the quick types.
    quick_floors: Mapping[tuple[str, int], int] = {}
    #: None if no type has a limit.
    lanes: "LaneRequest | None" = None
    #: The first and the last one.
    priorities: tuple[int, int] = ALL_PRIORITIES
    #: How many of `free` are claimed by their age, and where to look for them.
    oldest: int = 0
    oldest_floors: Mapping[tuple[str, int], int] = {}

    @property
    def queues(self) -> list[tuple[str, int]]:
        """Domains and priorities in the order in which a claim reads them."""
        return _queues(self.domains, self.priorities)


class LaneRequest(NamedTuple):
    """What to claim of types that have limits; see 14_lanes.sql."""

    #: "domain type".
    types: Sequence[str]
    quick_types: Sequence[str]
    #: Limits that several types share.
    shared: Sequence[str]
    #: Number of commands in the free slots, and ahead of them.
    free: int
    prefetch: int
    #: Where to look for commands of these types that are not in their lanes.
    floors: Mapping[tuple[str, int], int]
    below: bool
    priorities: tuple[int, int] = ALL_PRIORITIES

    @property
    def queues(self) -> list[tuple[str, int]]:
        """Where these may be."""
        return _queues(dict.fromkeys(name.split(" ")[0] for name in self.types), self.priorities)


def _queues(domains: Iterable[str], priorities: tuple[int, int]) -> list[tuple[str, int]]:
    first, last = priorities
    return [(domain, priority) for domain in domains for priority in range(first, last + 1)]


class ClaimPart(IntEnum):
    """What a claim has read. Numbers of claim_with_lanes."""

    #: Commands with a limit that were not in their lanes.
    STRAYS = 1
    LANES = 2
    FREE = 3
    PREFETCH = 4
    #: Commands by their age.
    OLDEST = 5


class ClaimResult(NamedTuple):
    """How far a claim has read."""

    claims: Sequence[Claim]
    part: ClaimPart
    #: No later command has this id or a lower one, unless it was being sent meanwhile.
    seen_to: int
    #: The domain and priority at which it had enough; None if it has read all.
    stopped_at: tuple[str, int] | None
    #: Pages that it has read.
    pages: int
    #: How often limits had changed.
    limit_changes: int | None
    #: Of a claim in lanes: whether it may have left commands that could start, and the seconds
    #: until a rate lets one start, if that is known.
    has_more: bool = False
    opens_in: float | None = None
    #: Of a claim by age: ids above which the next one may begin.
    floors: Mapping[tuple[str, int], int] = {}


_PREFETCH = ClaimPart.PREFETCH


def results_of(rows: Sequence[Row], part: ClaimPart) -> Iterator[ClaimResult]:
    """The results of a round trip, which begins with this part: the rows of each claim end with
    one that has no token."""
    claims: list[Claim] = []
    floors: dict[tuple[str, int], int] = {}
    new = tuple.__new__  # what Claim._make does, in half the time
    for row in rows:
        if row[4] is not None:
            claims.append(new(Claim, row[1:]))
        elif row[3] is not None:
            if row[3] == _NEXT_PART:
                part = ClaimPart(row[_ATTEMPTS])
                continue
            if row[3] == _FLOOR:
                floors[row[1:3]] = row[_CALLER]
                continue
            result = _result(row, claims, part)
            yield result._replace(floors=floors) if floors else result
            claims, floors, part = [], {}, _PREFETCH
    if claims:
        # Those that were more urgent than any lane, and left no room for another claim.
        yield ClaimResult(claims, ClaimPart.LANES, 0, None, 0, None, has_more=True)


def _result(row: Row, claims: Sequence[Claim], part: ClaimPart) -> ClaimResult:
    """`row` is the last one of a claim."""
    _, domain, priority, id_, *_ = row
    if id_ == _LANES_READ:
        has_more, opens_in = bool(row[_ATTEMPTS]), row[_WAITED]
        return ClaimResult(claims, ClaimPart.LANES, 0, None, 0, None, has_more, opens_in)
    stopped_at = None if domain is None else (domain, priority)
    return ClaimResult(claims, part, id_, stopped_at, int(row[_WAITED]), row[_CALLER])


class TimerReading(NamedTuple):
    #: Seconds until a command is due, and until a lease ends, of other claimers and of own ones;
    #: infinite if none is.
    due: float
    lease_ends: float
    own_lease_ends: float
    #: A command waits that must run in quarantine.
    suspects: bool
    #: Usage of the server's queue of notifications, from 0 to 1.
    queue_usage: float
    #: Pages of `ready` that were read.
    pages: int
    #: Seconds until another command is due, if some are due already.
    next_due: float = inf
    #: Seconds until a command expires and, if some have expired already, another one.
    expires: float = inf
    next_expires: float = inf
    #: Seconds until a rate lets a command start.
    opens: float = inf
    #: Seconds until a schedule needs a steward.
    ticks: float = inf
    #: A number of the bridges that are there; infinite without any.
    bridges: float = inf


class ClaimScope(Enum):
    """Which commands a worker claims: the least and the most losses of their rows, including one
    that the claim itself counts."""

    #: For a worker without a fleet, which has no quarantine.
    ANY = (0, _MAX_LOSSES)
    ORDINARY = (0, SUSPECT_LOSSES - 1)
    #: In quarantine, where only one is claimed.
    SUSPECT = (SUSPECT_LOSSES, _MAX_LOSSES)


#: Id, token and command, which tell a claim from any other: this worker may claim a row again
#: whose lease it has lost, and a server that was restored to an earlier point gives an id and a
#: token again, to another command.
Fence = tuple[int, int, int]


def fence_of(claim: ClaimRef) -> Fence:
    # Not the UUID itself, whose hash is computed in Python.
    return claim.id, claim.token, claim.command_id.int
