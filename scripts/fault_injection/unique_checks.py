"""The invariants of unique keys. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from fault_injection.grouping import by_command, entries, named
from fault_injection.history import History, Move, Row, Time

REPLACED = "REPLACED"
#: Seconds from the move of a holder's end until its transaction is over, at most.
_COMMITTED_S = 10.0
_GIVE_UP = {"finished": ("finished+",), "started": ("claim", "finished+")}


def unique_keys_have_one_holder(history: History) -> Iterator[str]:
    moves, ends = by_command(history.moves), _ends(history)
    holders: dict[str, list[Row]] = defaultdict(list)
    for row in history.rows:
        if row.unique_key is not None and row.command_id in moves:
            holders[_key_of(row)].append(row)
    for key, rows in holders.items():
        rows.sort(key=lambda row: moves[row.command_id][0].number)
        latest: Row | None = None
        until = 0.0
        for row in rows:
            began = moves[row.command_id][0].at
            if latest is not None and began < until:
                yield (
                    f"{named(row)} got the unique key {key} {until - began:.3f} s before "
                    f"{named(latest)} gave it up"
                )
            if latest is None or ends[row.command_id] > until:
                latest, until = row, ends[row.command_id]


def only_held_keys_are_refused(history: History) -> Iterator[str]:
    moves, ends = by_command(history.moves), _ends(history, last=True)
    rows = {row.command_id: row for row in history.rows}
    for call in history.calls:
        if call.held_by is None:
            continue
        row = rows.get(call.held_by)
        if row is None or _key_of(row) != call.unique:
            yield f"call {call.name}: {call.held_by} is said to have the unique key {call.unique}"
            continue
        began, until = moves[row.command_id][0].began, ends[row.command_id]
        if call.ended < began or call.began > until + _COMMITTED_S:
            yield f"call {call.name} was refused, and {named(row)} did not have {call.unique}"


def only_what_waits_is_replaced(history: History) -> Iterator[str]:
    """By one command with the same key, sent in the transaction that cancels the other one."""
    takers: dict[tuple[str, int], set[str]] = defaultdict(set)
    ends: dict[str, Move] = {}
    keys = {row.command_id: _key_of(row) for row in history.rows if row.unique_key is not None}
    for move in history.moves:
        if move.command_id in keys:
            takers[keys[move.command_id], move.xid].add(move.command_id)
        if move.what == "finished+":
            ends[move.command_id] = move
    begun = {mark.command_id: mark.at for mark in reversed(entries(history.marks))}
    for row in history.rows:
        if row.code != REPLACED:
            continue
        end = ends[row.command_id]
        others = takers[keys.get(row.command_id, ""), end.xid] - {row.command_id}
        if len(others) != 1:
            yield f"{named(row)} was replaced by {len(others)} commands"
        # A frozen process may begin it later.
        if begun.get(row.command_id, end.at) < end.at:
            yield f"{named(row)} was replaced after it had begun"


def _key_of(row: Row) -> str:
    return f"{row.domain} {row.unique_key}"


def _ends(history: History, *, last: bool = False) -> Mapping[str, Time]:
    """Until when each command certainly has its key, or may have it (`last`): a release may give
    it back to one that was claimed."""
    moves = by_command(history.moves)
    sent = {call.name: call.began for call in history.calls}
    return {
        row.command_id: _held_until(
            row, moves[row.command_id][:: -1 if last else 1], sent.get(row.call or "", 0.0)
        )
        for row in history.rows
        if row.unique_key is not None and row.command_id in moves
    }


def _held_until(row: Row, moves: Sequence[Move], sent: Time) -> Time:
    whats = _GIVE_UP.get(row.unique_until)
    if whats is not None:
        return next((move.at for move in moves if move.what in whats), float("inf"))
    # From when it took the key, which was before its row was written.
    until = sent + float(row.unique_until)
    if row.status == "CANCELED":
        return min(until, next((m.at for m in moves if m.what == "finished+"), until))
    return until
