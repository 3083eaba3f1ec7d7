"""Walks through the tables of commands, whose rows a search merges. Pure.

Each walk has the order of an index, which is that of the sends as far as the index has one: ids
that the bus makes are ordered by time, ids of callers may not be.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from cmdbus.producer.records import Status
from cmdbus.producer.search_cursors import Position

#: Those of one statement at most, so that a search checks its time limit between them.
MAX_ROWS = 5000
#: Index entries that a statement reads where it merges queues.
_MAX_MERGED_ROWS = 50_000
#: Rows of the first statement, if not each row is a match; each may hold a large text.
_FIRST_ROWS, _FIRST_TEXTS = 500, 50
#: Seconds below which the next statement reads more rows, and above which it reads fewer.
_QUICK_SECONDS, _SLOW_SECONDS = 0.05, 0.25

_WAITING = "ready", "scheduled", "limited"
_TABLES: dict[str | None, tuple[str, ...]] = {
    None: (*_WAITING, "troubleshooting", "finished"),
    Status.PENDING: _WAITING,
    Status.IN_PROGRESS: ("ready",),
    Status.IN_TROUBLESHOOTING_QUEUE: ("troubleshooting",),
}
_FINISHED = "finished.completed", "finished.failed", "finished.canceled"
#: Through the history, in the order of the sends.
_SINCE_SENT = {"finished.newest", *_FINISHED}
#: From the oldest to the newest.
_ASCENDING = {"ready.claimed", "finished.oldest"}
KNOWN = {
    *(f"ready.{order}" for order in ("newest", "claimed", "ids", "key", "batch")),
    *(f"scheduled.{order}" for order in ("ids", "due", "key", "batch")),
    *(f"limited.{order}" for order in ("ids", "key", "batch")),
    *(f"troubleshooting.{order}" for order in ("newest", "ids", "batch")),
    *("finished.newest", "finished.oldest", "finished.ids", *_FINISHED),
}


class Conditions(NamedTuple):
    """Of a search; None leaves one out."""

    domain: str | None = None
    type: str | None = None
    status: str | None = None
    error_code: str | None = None
    key: str | None = None
    batch_id: UUID | None = None
    correlation_id: UUID | None = None
    since: datetime | None = None
    until: datetime | None = None
    text: str | None = None


class QueueFacts(NamedTuple):
    """Facts of the queues and the history by which walks are chosen."""

    #: More than one statement can merge.
    many_queues: bool = False
    #: Some commands of the domain wait at limits.
    limited: bool = True
    #: Few of the newest in the history are of the domain.
    rare_domain: bool = False
    #: The correlation id tells since when it occurs.
    dated_correlation: bool = False


def choose(conditions: Conditions, given: QueueFacts) -> list[str]:
    """Names of walks that together meet each command once."""
    tables = _TABLES.get(conditions.status, ("finished",))
    chosen: list[str] = []
    for table in tables:
        if conditions.batch_id is not None:
            if table == "finished":
                status = conditions.status
                chosen += [f"finished.{status.lower()}"] if status else _FINISHED
            else:
                chosen.append(f"{table}.batch")
        elif conditions.key is not None and conditions.domain and table in _WAITING:
            chosen.append(f"{table}.key")
        else:
            chosen.append(f"{table}.{_order(table, conditions, given)}")
    return [name for name in chosen if given.limited or not name.startswith("limited")]


def _order(table: str, conditions: Conditions, given: QueueFacts) -> str:
    match table:
        case "ready" if given.many_queues:
            return "ids"
        case "ready":
            return "claimed" if conditions.status == Status.IN_PROGRESS else "newest"
        case "scheduled":
            return "due" if given.many_queues else "ids"
        case "limited":
            return "ids"
        case "troubleshooting" if conditions.domain is not None:
            return "ids"
        case "finished" if given.dated_correlation:
            return "oldest"
        case "finished" if given.rare_domain:
            return "ids"
    return "newest"


class Walk:
    """One of a search: the matches that it has prefetched, and its position."""

    def __init__(self, name: str, position: Position | None, count: int) -> None:
        self.name = name
        self.table = name.partition(".")[0]
        #: After which the next page goes on.
        self.position = position
        #: Rows that its next statement reads.
        self.count = count
        #: Prefetched matches, each with the time of the latest from there on.
        self.matches: deque[tuple[Position, datetime]] = deque()
        self.has_ended = False
        self._last = position

    def feed(self, rows: Sequence[Sequence[Any]], seconds: float) -> int:
        """Takes the rows of its next statement, and returns how many that has read."""
        latest = datetime.min.replace(tzinfo=UTC)
        for _, is_match, *values in reversed(rows):
            position = Position(*values)
            latest = max(latest, position.created_at)
            if is_match:
                self.matches.appendleft((position, latest))
        read: int = rows[-1][0] if rows else 0
        self.has_ended = read < self.count
        if not self.has_ended:
            self._last = Position(*rows[-1][2:])
        if seconds < _QUICK_SECONDS:
            self.count = min(4 * self.count, MAX_ROWS)
        elif seconds > _SLOW_SECONDS:
            self.count = max(self.count // 4, 10)
        self._pass_by()
        return read

    def take(self) -> Position:
        self.position, _ = self.matches.popleft()
        taken = self.position
        self._pass_by()
        return taken

    def _pass_by(self) -> None:
        """Rows after the last match are not read again."""
        if not self.matches and not self.has_ended:
            self.position = self._last

    @property
    def is_starving(self) -> bool:
        return not self.matches and not self.has_ended

    @property
    def is_over(self) -> bool:
        return not self.matches and self.has_ended


def first_count(conditions: Conditions, limit: int) -> int:
    """Rows of the first statement of a walk."""
    if conditions.text is not None:
        return _FIRST_TEXTS
    served = {"domain", "batch_id", "status"}
    rest = [value for name, value in conditions._asdict().items() if name not in served]
    return max(limit + 1, _FIRST_ROWS if any(rest) else 0)


def merged_count(count: int, queues: int) -> int:
    """Of each of so many queues."""
    return max(10, min(count, _MAX_MERGED_ROWS // max(queues, 1)))


def latest(walks: Iterable[Walk]) -> Walk | None:
    """The walk that has the latest match: in some walks older ones may stand before it."""
    fed = [walk for walk in walks if walk.matches]
    return max(fed, key=lambda walk: walk.matches[0][1]) if fed else None


def positions_left(
    walks: Collection[Walk], taken: Collection[Position]
) -> dict[str, Position | None]:
    """Where the next page goes on. Commands that finish meanwhile are found in the history: so its
    walks, even at their end, go on where the others stand."""
    left = {walk.name: walk.position for walk in walks if not walk.is_over}
    oldest = min(taken, key=lambda position: position.created_at, default=None)
    if left:
        ended = (walk.name for walk in walks if walk.is_over and walk.name in _SINCE_SENT)
        left.update(dict.fromkeys(ended, oldest))
    return left


def reached(walks: Collection[Walk]) -> datetime | None:
    """The time since which all walks have seen what was sent; None if one goes from the oldest to
    the newest, or has read nothing."""
    left = [walk for walk in walks if not walk.is_over]
    if not left or any(walk.name in _ASCENDING or walk.position is None for walk in left):
        return None
    return max(walk.position.created_at for walk in left if walk.position)
