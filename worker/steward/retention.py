"""Removes history that is older than its domain keeps it, a day of a domain at a time: a failure
for one stops no others, and is tried again the next time.

Whole days are removed every hour. Domains that keep their history for a shorter time than others
are swept, at an interval that depends on that time, by one of many stewards.

A statement that is canceled is tried again for half of its rows or blocks."""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import psycopg

from cmdbus.arrays import numbers
from cmdbus.database.session_names import PATTERN, incarnation_of
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.rejections import Cause, cause_of, reason

logger = logging.getLogger(__name__)

_DAY = 24 * 3600.0
#: Seconds for which a domain without settings keeps its history.
_DEFAULT_KEEP = 7 * _DAY
#: Seconds between two sweeps of a domain: a share of the time for which it keeps its history,
#: within bounds. So history of `keep` 0, which stays for a minute, is gone within about two.
SWEEP_SHARE, MIN_SWEEP_SECONDS, MAX_SWEEP_SECONDS = 0.1, 60.0, 3600.0
#: Commands deleted by one statement, and 8 kB blocks of a day whose ids and events are.
_MAX_ROWS, _MAX_BLOCKS = 1000, 256


class Keep(NamedTuple):
    """For how long a domain keeps its history, and how long ago it was swept, in seconds."""

    seconds: float
    swept: float | None = None

    @property
    def sweep_in(self) -> float:
        """Seconds until the next sweep; 0 if it is due. Pure."""
        every = sweep_seconds(self.seconds)
        return 0.0 if self.swept is None else max(0.0, every - self.swept)


def sweep_seconds(keep: float) -> float:
    """Between two sweeps of a domain that keeps its history for `keep` seconds. Pure."""
    return min(max(keep * SWEEP_SHARE, MIN_SWEEP_SECONDS), MAX_SWEEP_SECONDS)


def plan_days(now: float, partitions: Sequence[str], keeps: Mapping[str, Keep]) -> list[str]:
    """The days that no domain keeps any longer, the oldest first. Pure."""
    oldest = now - _longest(keeps)
    return [name for name, began in _days(partitions) if began + _DAY <= oldest]


def due_sweeps(keeps: Mapping[str, Keep]) -> list[str]:
    """The domains that are to be swept; of those that keep the longest whole days go. Pure."""
    longest = _longest(keeps)
    return [
        domain
        for domain, keep in sorted(keeps.items())
        if keep.seconds < longest and keep.sweep_in <= 0
    ]


def plan_sweeps(
    now: float, partitions: Sequence[str], keeps: Mapping[str, Keep], domains: Set[str]
) -> list[tuple[str, str]]:
    """The days that stay, with the `domains` that do not keep them, the oldest first. Pure."""
    oldest = now - _longest(keeps)
    return [
        (name, domain)
        for name, began in _days(partitions)
        for domain in sorted(domains)
        if began + _DAY > oldest and began < now - keeps[domain].seconds
    ]


def _longest(keeps: Mapping[str, Keep]) -> float:
    return max([_DEFAULT_KEEP, *(keep.seconds for keep in keeps.values())])


def _days(partitions: Sequence[str]) -> Iterator[tuple[str, float]]:
    """The tables of history, and when the day of each began."""
    for name in sorted(partitions):
        with suppress(ValueError):  # no table of history
            began = datetime.strptime(name[-8:], "%Y%m%d").replace(tzinfo=UTC)
            yield name, began.timestamp()


class Retention:
    def __init__(self, statements: ClaimStatements, stopping: threading.Event) -> None:
        self._statements = statements
        self._stopping = stopping

    def remove_days(self, connection: Connection) -> int:
        """Returns how many days are removed."""
        now, partitions = self._read_days(connection)
        days = plan_days(now, partitions, self._keeps(connection))
        return sum(self._remove_day(connection, day) for day in days)

    def remove_unique_keys(self, connection: Connection) -> int:
        """Rows of those that no command holds; returns how many. Called before history is removed,
        which says that a canceled command holds no key."""
        removed, domain, key = 0, "", ""

        def remove(size: int) -> bool:
            """Of the next rows; true at the end of the table."""
            nonlocal removed, domain, key
            [(count, domain, key)] = self._statements.rows(
                connection, "retain_unique", size=size, domain=domain, unique_key=key
            )
            removed += count
            return domain is None

        self._attempt("unique keys", partial(self._repeat, remove, _MAX_ROWS, until=True))
        return removed

    def remove_records(self, connection: Connection) -> int:
        """Of workers, nodes and processes that ended long ago, of changes to domains, and of lanes
        that are empty; returns how many."""
        remove_workers = partial(self._remove_incarnations, connection)
        retain = partial(self._statements.value, connection, "retain_processes")
        remove_processes = partial(self._repeat, retain, _MAX_ROWS, until=0)
        remove_events = partial(self._statements.value, connection, "retain_domain_events")
        remove_nodes = partial(self._statements.value, connection, "retain_nodes")
        retain_lanes = partial(self._statements.value, connection, "retain_lanes")
        remove_lanes = partial(self._repeat, retain_lanes, _MAX_ROWS, until=0)
        removed = self._attempt("old incarnations", remove_workers)
        removed += self._attempt("old processes", remove_processes)
        removed += self._attempt("lanes", remove_lanes)
        removed += self._attempt("nodes that are gone", remove_nodes)
        return removed + self._attempt("old events of domains", remove_events)

    def sweep(self, connection: Connection) -> int:
        """Returns how many commands of domains whose sweep is due are removed."""
        keeps = self._keeps(connection)
        # A domain whose sweep another steward has begun in the meantime is left to that one.
        begun = {domain for domain in due_sweeps(keeps) if self._begins(connection, domain, keeps)}
        if not begun:
            return 0
        self.remove_unique_keys(connection)
        now, partitions = self._read_days(connection)
        sweeps = plan_sweeps(now, partitions, keeps, begun)
        return sum(self._remove_rows(connection, day, domain) for day, domain in sweeps)

    def remove_batches(self, connection: Connection) -> int:
        """Those that are over and that their domains do not keep; returns how many."""
        remove = partial(self._statements.value, connection, "retain_batches")
        work = partial(self._repeat, remove, _MAX_ROWS, until=0)
        return self._attempt("batches", work)

    def remove_checkpoints(self, connection: Connection) -> int:
        """Those of commands that have ended; returns how many."""
        remove = partial(self._statements.value, connection, "retain_checkpoints")
        return self._attempt("checkpoints", partial(self._repeat, remove, _MAX_ROWS, until=0))

    def sweep_in(self, connection: Connection) -> float:
        """Seconds until the next sweep; at most MIN_SWEEP_SECONDS, as settings may change."""
        waits = [keep.sweep_in for keep in self._keeps(connection).values()]
        return min([MIN_SWEEP_SECONDS, *(seconds for seconds in waits if seconds > 0)])

    def _begins(self, connection: Connection, domain: str, keeps: Mapping[str, Keep]) -> bool:
        seconds = sweep_seconds(keeps[domain].seconds)
        return bool(
            self._statements.value(connection, "begin_sweep", domain=domain, seconds=seconds)
        )

    def _keeps(self, connection: Connection) -> dict[str, Keep]:
        rows = self._statements.rows(connection, "find_keeps")
        return {name: Keep(seconds, swept) for name, seconds, swept in rows}

    def _read_days(self, connection: Connection) -> tuple[float, list[str]]:
        """The server's time in seconds since 1970, and the names of the tables of history."""
        rows = self._statements.rows(connection, "find_days")
        return (rows[0][1] if rows else 0.0), [row[0] for row in rows]

    def _remove_incarnations(self, connection: Connection) -> int:
        """Those that nothing refers to any longer."""
        names = self._statements.rows(connection, "find_living", node=PATTERN)
        living = (incarnation_of(name) for (name,) in names)
        numbered = numbers(number for number in living if number is not None)
        return int(self._statements.value(connection, "retain_incarnations", living=numbered))

    def _remove_day(self, connection: Connection, day: str) -> int:
        remove = partial(self._statements.value, connection, "retain_day", partition=day)
        work = partial(self._repeat, remove, _MAX_BLOCKS, until=True)
        return self._attempt(f"history ({day})", work)

    def _remove_rows(self, connection: Connection, day: str, domain: str) -> int:
        values = {"partition": day, "domain": domain}
        remove = partial(self._statements.value, connection, "retain_domain", **values)
        work = partial(self._repeat, remove, _MAX_ROWS, until=0)
        return self._attempt(f"history ({day} of domain {domain})", work)

    def _attempt(self, what: str, remove: Callable[[], int]) -> int:
        try:
            return remove()
        except psycopg.errors.LockNotAvailable:
            return 0  # A report reads it: the next time.
        except Exception as error:
            if cause_of(error) is Cause.ELSEWHERE:
                raise
            logger.warning("cannot remove %s: %s; trying again", what, reason(error))
            return 0

    def _repeat(self, remove: Callable[..., int], size: int, until: int) -> int:
        """Removes portions of at most `size` until `remove` returns `until`; returns the sum."""
        total = 0
        while not self._stopping.is_set():
            try:
                removed = remove(size=size)
            except psycopg.errors.QueryCanceled:
                if size == 1:
                    raise
                size //= 2
                continue
            total += removed
            if removed == until:
                break
        return total
