"""The invariants of limits: how many run at once, in which order they start, and how many start in
a time, all as the database has seen it. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from fault_injection.fleet_checks import STARTS
from fault_injection.grouping import by_command, named, pid_of
from fault_injection.history import Call, History, LimitChange, Move, Row, Time
from fault_injection.lanes import SHARED, TYPES, shared_limits

#: Seconds for which a claim may still obey a limit after its change.
_CHANGED_S = 10.0
#: What a rate may be exceeded by, and seconds by which times may be rounded.
_TOLERANCE, _ROUNDING_S = 1.01, 0.001
_ORDERED = {f"{one.domain} {name}": one for name, one in TYPES.items() if "ordered" in one.limits}
#: The names of the limits that types share.
_SHARED = {f"{one.domain} {name}": shared_limits(one.domain, one) for name, one in TYPES.items()}
_LOCAL = [name for name, limits in SHARED.items() if limits.get("per") == "node"]


def places_are_never_exceeded(history: History) -> Iterator[str]:
    """A claim leaves no more claims than its limits allow."""
    rows = _limited_rows(history)
    allowed = _Concurrency(history.limit_changes)
    nodes = _nodes(history)
    #: Of each limit, by key or node; and the limits of each command that is claimed.
    holders: dict[tuple[str, str], set[str]] = defaultdict(set)
    held: dict[str, list[tuple[str, str]]] = {}
    for move in history.moves:
        row = rows.get(move.command_id)
        if row is None or move.what not in ("claim", "release", "ready-"):
            continue
        for limit in held.pop(move.command_id, ()):
            holders[limit].discard(move.command_id)
        if move.what != "claim":
            continue
        held[move.command_id] = _limits_of(row, nodes.get(move.claimer or 0))
        for limit in held[move.command_id]:
            running = holders[limit]
            running.add(move.command_id)
            most = allowed.most(limit[0], move.at)
            if len(running) > most:
                yield (
                    f"at {move.at:.3f} {len(running)} commands of {' '.join(limit)} were claimed, "
                    f"and {most} may be: {', '.join(sorted(running))}"
                )


def _limits_of(row: Row, node: str | None) -> list[tuple[str, str]]:
    """With what each counts by."""
    name = str(row.limited)
    shared = _SHARED.get(name, ())
    found = [(name, row.key or ""), *((each, "") for each in shared if each not in _LOCAL)]
    return found + [(each, node) for each in shared if each in _LOCAL and node is not None]


def _nodes(history: History) -> Mapping[int, str]:
    """The supervisors of claimers, where that is known."""
    starts = [(line, STARTS.match(line.message)) for line in history.lines]
    supervisors = {int(match[2]): f"{line.pid}" for line, match in starts if match is not None}
    found = {number: supervisors.get(pid_of(name)) for number, name in history.workers.items()}
    return {number: name for number, name in found.items() if name is not None}


class _Concurrency:
    def __init__(self, changes: Sequence[LimitChange]) -> None:
        self._changes: dict[str, list[LimitChange]] = defaultdict(list)
        for change in changes:
            self._changes[change.name].append(change)

    def most(self, name: str, at: Time) -> float:
        """The highest that was in force lately."""
        changes = self._changes[name]
        if name not in _SHARED and name not in SHARED:
            # Only operators limit it. The others are limited since before their first command.
            changes = [LimitChange(at=0.0, name=name), *changes]
        if not changes:
            return float("inf")
        until = [*(change.at + _CHANGED_S for change in changes[1:]), float("inf")]
        values = [
            float("inf") if change.concurrency is None else float(change.concurrency)
            for change, end in zip(changes, until, strict=True)
            if change.at <= at <= end
        ]
        return max(values, default=float("inf"))


def order_is_kept(history: History) -> Iterator[str]:
    """What was sent first has come to its end before the next one begins, retries included. Sent
    first is what was committed before the other one's send began, or stood before it in one
    call."""
    moves = by_command(history.moves)
    calls = {call.name: call for call in history.calls}
    for (name, _), rows in _lanes(history).items():
        if name in _ORDERED:
            ends: tuple[str, ...] = ("finished+",)
            if _ORDERED[name].limits["on_trouble"] == "skip":
                ends = ("finished+", "troubleshooting+")
            sent = [
                _Sent(calls[row.call], row, moves[row.command_id], ends)
                for row in rows
                # A delayed one joins when it is due.
                if row.call in calls and not row.delay
            ]
            yield from _out_of_order(sent)


class _Sent:
    def __init__(self, call: Call, row: Row, moves: Sequence[Move], ends: Sequence[str]) -> None:
        self.call, self.row = call, row
        self.begins = next((move.number for move in moves if move.what == "claim"), None)
        #: Never, if it has no number; what was canceled before it began keeps no other waiting.
        self.ends = next((float(m.number) for m in moves if m.what in ends), float("inf"))
        if self.begins is None:
            self.ends = 0.0


def _out_of_order(sent: Sequence[_Sent]) -> Iterator[str]:
    certain = sorted(
        (one for one in sent if one.call.outcome == "ok"), key=lambda one: one.call.ended
    )
    place = 0
    #: Of those that were sent for certain before, and by the same call: the one that ends last.
    latest: _Sent | None = None
    siblings: dict[str, _Sent] = {}
    for one in sorted(sent, key=lambda one: (one.call.began, one.row.index or 0)):
        while place < len(certain) and certain[place].call.ended < one.call.began:
            latest = _later(latest, certain[place])
            place += 1
        for before in (latest, siblings.get(one.call.name)):
            if before is not None and one.begins is not None and one.begins < before.ends:
                yield (
                    f"{named(one.row)} began before {named(before.row)} had ended, which was "
                    f"sent first"
                )
        siblings[one.call.name] = _later(siblings.get(one.call.name), one)


def _later(one: _Sent | None, other: _Sent) -> _Sent:
    return other if one is None or other.ends > one.ends else one


def rates_are_kept(history: History) -> Iterator[str]:
    """In each window of claims, the first and the last included."""
    changes: dict[str, list[LimitChange]] = defaultdict(list)
    for change in history.limit_changes:
        changes[change.name].append(change)
    claims: dict[tuple[str, str], list[Time]] = defaultdict(list)
    rows = _limited_rows(history)
    for move in history.moves:
        if move.what == "claim" and (row := rows.get(move.command_id)) is not None:
            for limit in _limits_of(row, None):
                claims[limit].append(move.claimed_at or move.at)
    for (name, key), times in claims.items():
        limits = changes[name]
        if len(limits) != 1 or limits[0].starts_per_second is None:
            continue
        burst = limits[0].burst or 1
        interval = 1 / (limits[0].starts_per_second * _TOLERANCE)
        due = 0.0
        for at in sorted(times):
            due = max(due, at)
            if due - at > (burst - 1) * interval + _ROUNDING_S:
                yield (
                    f"at {at:.3f} a command of {name} {key} was claimed "
                    f"{due - at - (burst - 1) * interval:.3f} s before its rate allows that"
                )
            due += interval


def no_place_is_lost(history: History) -> Iterator[str]:
    for lane in history.turns:
        yield f"the lane {lane} still has a turn"


def _limited_rows(history: History) -> Mapping[str, Row]:
    return {row.command_id: row for row in history.rows if row.limited is not None}


def _lanes(history: History) -> Mapping[tuple[str, str], list[Row]]:
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in history.rows:
        if row.limited is not None:
            found[row.limited, row.key or ""].append(row)
    return found
