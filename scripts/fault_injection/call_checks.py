"""The invariants of producers' calls: what becomes of what they send. Pure."""

from collections.abc import Iterator

from fault_injection.bridging import MESSAGES
from fault_injection.grouping import SETTLED, by_call, is_of_process, named
from fault_injection.handlers import UNHANDLED
from fault_injection.history import History


def no_loss(history: History) -> Iterator[str]:
    sent = by_call(history.rows)
    for call in history.calls:
        if call.outcome != "ok" or call.way in ("cancel", MESSAGES):
            continue
        there = {row.index for row in sent.get(call.name, ())}
        if missing := set(range(call.count)) - there:
            yield f"call {call.name} was accepted, and its commands {sorted(missing)} are nowhere"
    for row in history.rows:
        if row.type != UNHANDLED and row.table not in SETTLED:
            yield f"{named(row)} has not ended: it is in {row.table}"


def unhandled_waits(history: History) -> Iterator[str]:
    listed = set(history.pending)
    for row in history.rows:
        if row.type != UNHANDLED:
            continue
        if (row.table, row.token) != ("ready", 0):
            yield f"{named(row)} has no handler: it is in {row.table}, with token {row.token}"
        elif row.command_id not in listed:
            yield f"{named(row)} has no handler, and is not listed as pending"


def no_invention(history: History) -> Iterator[str]:
    calls = {call.name: call for call in history.calls}
    of_ticks = {tick.command_id for tick in history.ticks}
    for row in history.rows:
        if row.answers is not None or row.added_by is not None or is_of_process(row):
            continue
        if row.command_id in of_ticks:
            continue
        call = calls.get(row.call or "")
        if call is None or row.index not in range(call.count):
            yield f"{named(row)} was never sent"


def all_or_nothing(history: History) -> Iterator[str]:
    sent = by_call(history.rows)
    for call in history.calls:
        rows = sent.get(call.name, [])
        ids = {row.command_id for row in rows}
        if call.outcome == "fail" and rows:
            yield f"call {call.name} was refused, and {len(rows)} of its commands are there"
        unknown = call.outcome == "unknown" and call.way != MESSAGES
        if unknown and len(rows) not in (0, call.count):
            yield f"call {call.name} came through by {len(rows)} of {call.count}"
        if call.way != "cancel" and rows and call.ids and ids != set(call.ids):
            yield f"call {call.name} returned {sorted(call.ids)}, and has {sorted(ids)}"


def calls_return_what_their_commands_did(history: History) -> Iterator[str]:
    sent = by_call(history.rows)
    for call in history.calls:
        for row in sent.get(call.name, ()) if call.answer is not None else ():
            code = "CANCELED" if row.status == "CANCELED" else row.code
            outcome = {"run": row.run} if row.status == "COMPLETED" else {"code": code}
            if call.answer != {"status": row.status, **outcome}:
                yield f"call {call.name} returned {call.answer}, and {named(row)} is {outcome}"
