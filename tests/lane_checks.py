"""What must hold in lanes at every moment, whatever sessions do with them."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from typing import Any
from uuid import UUID

import psycopg
from lane_claimer import Limit
from psycopg.rows import dict_row

#: Seconds by which a rate may be exceeded, because times are rounded.
_ROUNDED = 1e-4

Lane = tuple[str, str, str]
SharedPlace = tuple[str, int | None]
Row = dict[str, Any]


class LaneChecks:
    """Reads all commands after each step, in one snapshot."""

    def __init__(
        self, watcher: psycopg.Connection, limits: dict[str, Limit], incarnations: Collection[int]
    ) -> None:
        """`limits` by their names, which the steps change; `incarnations` of the workers."""
        self._watcher, self._limits, self._incarnations = watcher, limits, incarnations
        #: Also those that were there before.
        self._known = dict(limits)
        self._starts = defaultdict[Lane, list[float]](list)
        self._running = Counter[Lane]()
        #: Of ordered lanes.
        self._held = Counter[Lane]()
        #: By limit and, if it holds for each node, by worker.
        self._shared_places = Counter[SharedPlace]()
        self._seen = set[tuple[UUID, int]]()

    def check(self, held_before: Collection[tuple[UUID, int]], *, none_is_open: bool) -> None:
        """`held_before` are the claims before the step; `none_is_open`: no transaction is."""
        rows = self.rows()
        places = [row for row in rows if row["source"] == "ready" and row["claimer"]]
        self._note_starts(places)
        self._check_places(places)
        self._check_order(rows, held_before)
        if none_is_open:
            self._check_turns(rows)

    def rows(self) -> list[Row]:
        columns = (
            "domain, type, coalesce(key, '') AS key, lane_position, claimer, claimed_at, token,"
            " command_id, expires_at"
        )
        query = " UNION ALL ".join(
            f"SELECT '{table}' AS source, {columns} FROM cmdbus.{table}"
            for table in ("ready", "limited", "scheduled", "troubleshooting")
        )
        with self._watcher.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query.encode()).fetchall()

    def _limit_of(self, lane: Lane) -> Limit | None:
        return self._limits.get(f"{lane[0]} {lane[1]}")

    def _check_places(self, places: list[Row]) -> None:
        """Above a limit that was lowered there may be some, but not more than before."""
        running, shared = Counter[Lane](), Counter[SharedPlace]()
        self._known |= self._limits
        for row in places:
            running[_lane(row)] += 1
            for limit in self._known.values():
                place = limit.name, row["claimer"] if limit.per_node else None
                shared[place] += limit.covers_type(row["domain"], row["type"])
        for lane, count in running.items():
            own = self._limit_of(lane)
            if own is not None:
                most = 1 if own.ordered else own.concurrency
                assert most is None or count <= max(most, self._running[lane]), (lane, count)
        for (name, node), count in shared.items():
            concurrency = self._limits[name].concurrency if name in self._limits else None
            if concurrency is not None and " " not in name:
                most = max(concurrency, self._shared_places[name, node])
                assert count <= most, (name, node, count)
        self._running, self._shared_places = running, shared

    def _shared(self) -> Iterator[Limit]:
        return (limit for limit in self._limits.values() if " " not in limit.name)

    def _check_order(self, rows: list[Row], before: Collection[tuple[UUID, int]]) -> None:
        by_lane = defaultdict[Lane, list[Row]](list)
        for row in rows:
            by_lane[_lane(row)].append(row)
        for lane, each in by_lane.items():
            own = self._limit_of(lane)
            if own is None or not own.ordered:
                self._held[lane] = len(each)
                continue
            for row in each:
                is_new = row["claimer"] and (row["command_id"], row["token"]) not in before
                if row["source"] == "ready" and is_new:
                    waits = [
                        other["lane_position"]
                        for other in each
                        if other["source"] == "limited" and not other["expires_at"]
                    ]
                    assert all(p > row["lane_position"] for p in waits), (row, waits)
            held = [
                row
                for row in each
                if row["lane_position"]
                and (
                    row["source"] == "scheduled"
                    or (row["source"] == "ready" and row["claimer"])
                    or (row["source"] == "troubleshooting" and own.on_trouble == "block")
                )
            ]
            assert len(held) <= max(1, self._held[lane]), held
            self._held[lane] = len(held)

    def _note_starts(self, places: list[Row]) -> None:
        for row in places:
            claim = (row["command_id"], row["token"])
            if claim not in self._seen:
                self._seen.add(claim)
                self._starts[_lane(row)].append(row["claimed_at"].timestamp())

    def _check_turns(self, rows: list[Row]) -> None:
        """Each lane in which a command could start has a turn, or waits for a time."""
        turns = {
            row[:3] for row in self._watcher.execute("SELECT domain, type, key FROM cmdbus.turn")
        }
        states = {
            (domain, type, key): (opens_at, waits_for)
            for domain, type, key, opens_at, waits_for in self._watcher.execute(
                "SELECT domain, type, key, opens_at, waits_for FROM cmdbus.lane"
            )
        }
        for lane in {_lane(row) for row in rows if row["source"] == "limited"}:
            if lane in turns:
                continue
            opens_at, waits_for = states.get(lane, (None, None))
            if opens_at is not None:
                continue
            own = self._limit_of(lane)
            if own is not None and self._is_full(lane, own, rows):
                continue
            if waits_for is not None:
                limit = self._limits[waits_for]
                places = self._shared_places[waits_for, None]
                if limit.concurrency is None or limit.per_node or places >= limit.concurrency:
                    continue
                if any(limit.covers_type(domain, type) for domain, type, _ in turns):
                    continue
            assert self._only_strays(lane, rows), ("no turn", lane, states.get(lane))

    def _only_strays(self, lane: Lane, rows: list[Row]) -> bool:
        """A place is held by a row that the next claim moves into the lane."""
        shared = [limit for limit in self._shared() if limit.covers_type(*lane[:2])]
        return any(
            row["source"] == "ready"
            and row["lane_position"]
            and (row["claimer"] is None or row["claimer"] not in self._incarnations)
            and (
                _lane(row) == lane
                or any(limit.covers_type(row["domain"], row["type"]) for limit in shared)
            )
            for row in rows
        )

    def _is_full(self, lane: Lane, own: Limit, rows: list[Row]) -> bool:
        places = [
            row
            for row in rows
            if _lane(row) == lane
            and row["lane_position"]
            and (
                row["source"] == "ready"
                or (own.ordered and row["source"] == "scheduled")
                or (
                    own.ordered and own.on_trouble == "block" and row["source"] == "troubleshooting"
                )
            )
        ]
        most = 1 if own.ordered else own.concurrency
        return most is not None and len(places) >= most

    def check_rates(self) -> None:
        for lane, starts in self._starts.items():
            limit = self._limit_of(lane)
            if limit is not None and limit.starts_per_second is not None:
                _check_rate(limit, sorted(starts))
        for limit in self._shared():
            if limit.starts_per_second is not None:
                starts = [
                    start
                    for (domain, type, _), each in self._starts.items()
                    if limit.covers_type(domain, type)
                    for start in each
                ]
                _check_rate(limit, sorted(starts))


def _check_rate(limit: Limit, starts: list[float]) -> None:
    assert limit.starts_per_second is not None and limit.burst is not None
    for first, since in enumerate(starts):
        for number, until in enumerate(starts[first:], 1):
            allowed = limit.burst + (until - since + _ROUNDED) * limit.starts_per_second * 1.01
            assert number <= allowed, (limit.name, number, until - since)


def _lane(row: Row) -> Lane:
    return row["domain"], row["type"], row["key"]
