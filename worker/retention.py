"""Removes history that is older than its domain keeps it, a day of a domain at a time: what
fails for one stops no others, and is tried again the next time.

A statement that is canceled is tried again for half of its rows or blocks."""

import logging
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import psycopg

from cmdbus.worker.claim import Connection
from cmdbus.worker.claims import Claims
from cmdbus.worker.rejections import Cause, cause_of, reason

logger = logging.getLogger(__name__)

_DAY = 24 * 3600.0
#: Seconds for which a domain without settings keeps its history.
_DEFAULT_KEEP = 7 * _DAY
#: Commands deleted by one statement, and 8 kB blocks of a day whose ids and events are.
_MAX_ROWS, _MAX_BLOCKS = 1000, 256


class Removal(NamedTuple):
    partition: str
    #: None removes the whole day.
    domain: str | None


def plan(now: float, partitions: Sequence[str], keeps: Mapping[str, float]) -> list[Removal]:
    """What is to be removed, the oldest first. Pure."""
    longest = max([_DEFAULT_KEEP, *keeps.values()])
    removals = []
    for partition in sorted(partitions):
        try:
            began = datetime.strptime(partition[-8:], "%Y%m%d").replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue  # no table of history
        if began + _DAY <= now - longest:
            removals.append(Removal(partition, None))
            continue
        removals += [
            Removal(partition, domain)
            for domain, keep in sorted(keeps.items())
            if keep < longest and began < now - keep
        ]
    return removals


class Retention:
    def __init__(self, claims: Claims, stopping: threading.Event) -> None:
        self._claims = claims
        self._stopping = stopping

    def run(self, connection: Connection) -> int:
        """How many days, and commands of single domains, are removed."""
        now, partitions = self._claims.days(connection)
        removals = plan(now, partitions, self._claims.keeps(connection))
        return sum(self._remove(connection, removal) for removal in removals)

    def _remove(self, connection: Connection, removal: Removal) -> int:
        partition, domain = removal
        try:
            if domain is None:
                return self._remove_day(connection, partition)
            return self._remove_of(connection, partition, domain)
        except psycopg.errors.LockNotAvailable:
            return 0  # A report reads the history: the next time.
        except Exception as error:
            if cause_of(error) is Cause.ELSEWHERE:
                raise
            what = f"{partition} of domain {domain}" if domain else partition
            logger.warning("cannot remove history (%s): %s; trying again", what, reason(error))
            return 0

    def _remove_day(self, connection: Connection, partition: str) -> int:
        block: int | None = 0
        blocks = _MAX_BLOCKS
        while block is not None and not self._stopping.is_set():
            try:
                block = self._claims.retain_day(connection, partition, block, blocks)
            except psycopg.errors.QueryCanceled:
                if blocks == 1:
                    raise
                blocks //= 2
        return int(block is None)

    def _remove_of(self, connection: Connection, partition: str, domain: str) -> int:
        removed, rows = 0, _MAX_ROWS
        while not self._stopping.is_set():
            try:
                some = self._claims.retain_domain(connection, partition, domain, rows)
            except psycopg.errors.QueryCanceled:
                if rows == 1:
                    raise
                rows //= 2
                continue
            if not some:
                break
            removed += some
        return removed
