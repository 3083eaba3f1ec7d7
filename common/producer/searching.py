"""Searches for operators: pages of commands, whose cost does not grow with the tables."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import UUID

from cmdbus.checks import (
    check_id,
    check_key,
    check_name,
    check_seconds,
    check_whole,
)
from cmdbus.clock import time
from cmdbus.database.adapters import Row
from cmdbus.integrations.callers_connection import CallersConnection
from cmdbus.producer import search_cursors
from cmdbus.producer.connections import Connections
from cmdbus.producer.found_commands import CommandPage, FoundCommand, SearchStop
from cmdbus.producer.ids import time_of
from cmdbus.producer.records import Status, check_status, filled
from cmdbus.producer.requests import check_conditions
from cmdbus.producer.search_cursors import Position
from cmdbus.producer.search_walks import (
    KNOWN,
    Conditions,
    QueueFacts,
    Walk,
    choose,
    first_count,
    latest,
    merged_count,
    positions_left,
    reached,
)

_MAX_LIMIT = 1000
#: Pairs of a domain and a priority that one statement merges; with more, another order is taken,
#: which does not give those in progress first.
_MAX_QUEUES, _MAX_CLAIMED_QUEUES = 60, 500
_MAX_DOMAINS = 1000
#: The newest in the history that are looked at, and how many of a domain make it frequent.
_NEWEST_ROWS, _FREQUENT_ROWS = 2000, 100
_EVER = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
#: A transaction that settles commits within this time.
_SETTLING = timedelta(hours=1)
#: By so much the clock of a sender may be ahead of the server's.
_SKEW = timedelta(minutes=1)


class Searching:
    """The methods of CommandBus that search."""

    _connections: Connections

    def search(
        self,
        domain: str | None = None,
        status: Status | str | None = None,
        type: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        *,
        error_code: str | None = None,
        key: str | None = None,
        batch_id: UUID | str | None = None,
        correlation_id: UUID | str | None = None,
        command_id: UUID | str | None = None,
        text: str | None = None,
        after: str | None = None,
        max_rows: int = 20_000,
        max_seconds: float = 1.0,
        connection: CallersConnection | None = None,
    ) -> CommandPage:
        """A page of at most `limit` commands that meet every given condition, the last sent first,
        and a cursor: given as `after` with the same conditions, it continues where the page ends.

        In contrast to `query`, a page costs the same however many commands there are, and however
        many pages come before it. It reads at most about `max_rows` rows and `max_seconds`; then
        it says so in `stopped`, and `next` goes on from there. Each page is sorted. Commands with
        ids of callers that are not ordered by time, and retries, may come on an earlier or later
        page than others that were sent with them; those with a correlation id that the bus has made
        come from the oldest to the newest. A command that moves meanwhile may be seen twice, or
        be missed.

        `domain`, `status` (a Status or its name), `type`, `error_code`, `key`, `batch_id` and
        `correlation_id` are those of the commands; `since` (inclusive) and `until` (exclusive)
        are about when they were sent. `text` occurs in the data's JSON, as it was sent and
        regardless of case, or in the error message; data that takes more than 256 kB is left out.
        `command_id` finds one command, or one in each domain, and goes with `domain` only.
        """
        checked = check_conditions(domain, type, since, until, error_code=error_code, text=text)
        checked |= _check_ids(batch_id=batch_id, correlation_id=correlation_id)
        conditions = _conditions(checked, status, key)
        check_whole("limit", limit, 1, _MAX_LIMIT)
        search = _Search(self._connections, connection, conditions)
        if command_id is not None:
            if after is not None or any(conditions._replace(domain=None)):
                raise ValueError("command_id finds a command without any condition but domain")
            return search.by_id(check_id("command_id", command_id))
        check_whole("max_rows", max_rows, 1)
        return search.page(limit, after, max_rows, check_seconds("max_seconds", max_seconds))

    def find(
        self,
        commands: Iterable[tuple[str, UUID | str]],
        *,
        connection: CallersConnection | None = None,
    ) -> list[FoundCommand]:
        """Those of these `commands`, each a domain and an id, that exist: at most 1000, the last
        sent first."""
        keys = [
            _Key(check_name("domain", domain), check_id("command_id", id_))
            for domain, id_ in commands
        ]
        if len(keys) > _MAX_LIMIT:
            raise ValueError(f"find takes at most {_MAX_LIMIT} commands, not {len(keys)}")
        return _Search(self._connections, connection, Conditions()).find(keys)

    def known_types(self, *, connection: CallersConnection | None = None) -> dict[str, list[str]]:
        """Domains that have commands or settings, in alphabetical order, each with its types as
        far as they are those of recent commands."""
        rows = self._connections.rows
        names = rows(connection, "list_domains", "monitor", count=_MAX_DOMAINS)
        types: dict[str, list[str]] = {domain: [] for (domain,) in names}
        for domain, type_ in rows(connection, "list_types", "monitor"):
            types.setdefault(domain, []).append(type_)
        return types


def _conditions(
    checked: Mapping[str, Any], status: Status | str | None, key: str | None
) -> Conditions:
    known = None if status is None else check_status(status)
    found = Conditions(**checked, status=known, key=check_key("key", key))
    if found.text is not None and not found.text.strip():
        raise ValueError("text must not be blank")
    return found


def _check_ids(**ids: UUID | str | None) -> dict[str, UUID | None]:
    return {name: None if id_ is None else check_id(name, id_) for name, id_ in ids.items()}


def _since(conditions: Conditions) -> datetime | None:
    """A correlation id that the bus has made does not occur before."""
    id_, since = conditions.correlation_id, conditions.since
    made_at = None if id_ is None else time_of(id_)
    if made_at is None or (since is not None and since > made_at - _SKEW):
        return since
    return made_at - _SKEW


class _Key(NamedTuple):
    """A command, and the times in which it has finished if it has."""

    domain: str
    command_id: UUID
    since: datetime = _EVER[0]
    until: datetime = _EVER[1]


class _Begun(NamedTuple):
    """The reply of begin_search."""

    ready_domains: list[str]
    ready_priorities: list[int]
    scheduled_domains: list[str]
    #: Some commands wait at limits.
    limited: bool
    #: Messages and keys, too.
    reads: bool
    present: datetime

    def queues(self, walk: str) -> tuple[list[str], list[int]]:
        """Domains and priorities that a walk merges."""
        if walk in ("ready.newest", "ready.claimed"):
            return self.ready_domains, self.ready_priorities
        return (self.scheduled_domains, []) if walk == "scheduled.ids" else ([], [])

    def key(self, found: Position, table: str) -> _Key:
        if table == "finished" and found.at is not None:
            return _Key(found.domain, found.command_id, found.at, found.at)
        # It may have finished since it was seen.
        times = self.present - _SETTLING, self.present + _SETTLING
        return _Key(found.domain, found.command_id, *times)


class _Search:
    def __init__(
        self,
        connections: Connections,
        connection: CallersConnection | None,
        conditions: Conditions,
    ) -> None:
        self._connections, self._connection = connections, connection
        self._conditions = conditions
        is_private = conditions.key is not None or conditions.text is not None
        #: The kind of role that may do it.
        self._needs = "operator" if is_private else "monitor"
        self._since = _since(conditions)
        self._begun = time.monotonic()
        self._read = 0

    def find(self, keys: Sequence[_Key]) -> list[FoundCommand]:
        return self._commands(keys, not self._begin().reads)

    def by_id(self, command_id: UUID) -> CommandPage:
        begun = self._begin()
        if self._conditions.domain is not None:
            domains = [self._conditions.domain]
        else:
            domains = [name for (name,) in self._rows("list_domains", count=_MAX_DOMAINS)]
        keys = [_Key(domain, command_id) for domain in domains]
        commands = self._commands(keys, not begun.reads)
        return CommandPage(commands=commands, next=None, stopped=None, restricted=not begun.reads)

    def page(self, limit: int, after: str | None, rows: int, seconds: float) -> CommandPage:
        digest = search_cursors.digest(self._conditions._asdict())
        positions = None if after is None else search_cursors.decode(digest, after, KNOWN)
        begun = self._begin()
        if positions is None:
            positions = dict.fromkeys(self._chosen(begun))
        count = first_count(self._conditions, limit)
        walks = [Walk(name, position, count) for name, position in positions.items()]
        taken: dict[_Key, Position] = {}
        is_stopped = False
        while len(taken) < limit:
            starving = [walk for walk in walks if walk.is_starving]
            if starving and not is_stopped:
                is_stopped = self._read >= rows or self._elapsed() >= seconds
                for walk in () if is_stopped else starving:
                    self._feed(walk, begun)
                continue
            fed = latest(walks)
            if fed is None:
                break
            found = fed.take()
            taken[begun.key(found, fed.table)] = found
        left = positions_left(walks, taken.values())
        commands = self._commands([*taken], not begun.reads)
        stopped = None
        if is_stopped and len(taken) < limit:
            stopped = SearchStop(rows=self._read, seconds=self._elapsed(), reached=reached(walks))
        return CommandPage(
            commands=commands,
            next=search_cursors.encode(digest, left) if left else None,
            stopped=stopped,
            restricted=not begun.reads,
        )

    def _begin(self) -> _Begun:
        values = {"domain": self._conditions.domain, "count": _MAX_CLAIMED_QUEUES + 1}
        return _Begun._make(self._rows("begin_search", **values)[0])

    def _chosen(self, begun: _Begun) -> list[str]:
        conditions = self._conditions
        most = _MAX_CLAIMED_QUEUES if conditions.status == Status.IN_PROGRESS else _MAX_QUEUES
        many = max(len(begun.ready_domains), len(begun.scheduled_domains)) > most
        given = QueueFacts(many_queues=many, limited=begun.limited)
        if self._since != conditions.since:
            given = given._replace(dated_correlation=True)
        elif conditions.domain is not None and "finished.newest" in choose(conditions, given):
            values = {"domain": conditions.domain, "count": _NEWEST_ROWS}
            [[number]] = self._rows("count_newest", **values)
            given = given._replace(rare_domain=number < _FREQUENT_ROWS)
        return choose(conditions, given)

    def _feed(self, walk: Walk, begun: _Begun) -> None:
        domains, priorities = begun.queues(walk.name)
        walk.count = merged_count(walk.count, len(domains))
        last = walk.position or Position._make([None] * 5)
        started = self._elapsed()
        rows = self._rows(
            "walk",
            walk=walk.name,
            count=walk.count,
            domains=domains,
            priorities=priorities,
            **{**self._conditions._asdict(), "since": self._since},
            **{f"last_{name}": value for name, value in last._asdict().items()},
        )
        self._read += walk.feed(rows, self._elapsed() - started)

    def _commands(self, keys: Sequence[_Key], restricted: bool) -> list[FoundCommand]:
        """Those that still have the status that is searched."""
        if not keys:
            return []
        names = "domains", "command_ids", "since", "until"
        values = dict(zip(names, map(list, zip(*keys, strict=True)), strict=True))
        rows = self._rows("read_found", **values, restricted=restricted)
        # A role that may send can have written rows with one id.
        found = {row[:2]: filled(FoundCommand, row) for row in rows}.values()
        status = self._conditions.status
        kept = [command for command in found if status is None or command.status == status]
        return sorted(kept, key=attrgetter("created_at", "command_id"), reverse=True)

    def _rows(self, name: str, /, **values: Any) -> list[Row]:
        return self._connections.rows(self._connection, name, self._needs, **values)

    def _elapsed(self) -> float:
        return time.monotonic() - self._begun
