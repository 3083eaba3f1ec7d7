"""What a node publishes of itself: its board as a value for JSON, in bounds. Pure.

Times are seconds before the publication (`since`, `ago`, `started`) and after it (`due`): readers
add them to the database's time of it, as no other process shares the node's clock.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cmdbus.board.counters import CountersView, HistogramView, OutcomeLabel
from cmdbus.board.records import Role
from cmdbus.board.views import BoardView

#: Bytes of each text, within what the table takes.
MAX_BYTES = 512 * 1024
_UNUSED = (None, Role.SPARE, Role.DEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What the board does not show, and does not change."""

    name: str
    host: str
    #: The process that the node is known by: the supervisor, or a standalone worker.
    pid: int
    #: Versions of cmdbus and of Python.
    version: str
    python: str
    #: Of the schema.
    schema: int


def state_text(
    facts: NodeFacts,
    view: BoardView,
    now: int,
    *,
    server: int,
    memory: int,
    exits: Sequence[Mapping[str, object]],
    most: int = MAX_BYTES,
) -> str:
    """`now` is monotonic, in nanoseconds; `server` is PostgreSQL's version, `memory` the bytes of
    the process of `facts`, and `most` those of the text."""
    state = view.to_dict(now)
    state |= asdict(facts)
    started = view.since
    if view.pid is None:  # No supervisor: its only process.
        started = next((seat.since for seat in view.seats if seat.pid == facts.pid), None)
        state["state"] = "running"
    used = [seat.rss_bytes or 0 for seat in view.seats if seat.role not in _UNUSED]
    state |= {
        "postgresql": server,
        "started": None if started is None else round((now - started) / 1e9, 3),
        "wanted": view.wanted,
        "memory": memory + sum(used),
        "restarts": {reason: n for reason, n in view.restarts.items() if n},
        "undead": view.undead,
        "exits": list(exits),
    }
    return _bounded(state, most)


def counters_text(counters: CountersView) -> str:
    """By "domain type": the number of executions that ended in each of OutcomeLabel, and how long
    they waited and ran: the number in each of the board's BUCKETS, and the sum in seconds."""
    ends: dict[tuple[str, str], list[int]] = {}
    for (domain, type_, end), count in counters.commands.items():
        row = ends.setdefault((domain, type_), [0] * len(OutcomeLabel))
        row[OutcomeLabel[end.upper()]] = count
    shown: dict[str, dict[str, Any]] = {
        " ".join(name): {
            "ended": row,
            "waited": _histogram(counters.dequeue_latency.get(name)),
            "ran": _histogram(counters.handler_duration.get(name)),
        }
        for name, row in ends.items()
    }
    text = _text(shown)
    while len(text) > MAX_BYTES:  # The types that ran least are left out.
        most = sorted(shown, key=lambda name: -sum(shown[name]["ended"]))
        shown = {name: shown[name] for name in most[: len(most) // 2]}
        text = _text(shown)
    return text


def stacks_text(stacks: Mapping[int, str]) -> str:
    """Of the latest, as many as fit."""
    shown = dict(sorted(stacks.items()))
    while len(text := _text(shown)) > MAX_BYTES:
        del shown[min(shown)]
    return text


def _bounded(state: dict[str, Any], most: int) -> str:
    """Threads that have no command are left out first, then all threads."""
    for seat in [*state["seats"], state["quarantine"] or {}]:
        seat["slots"] = [_without_none(slot) for slot in seat.get("slots", ())]
    text = _text(state)
    for busy in (True, False):
        if len(text) <= most:
            break
        for seat in state["seats"]:
            seat["slots"] = [s for s in seat["slots"] if busy and "command_id" in s]
        state["cut"] = True
        text = _text(state)
    return text


def _without_none(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in value.items() if each is not None}


def _histogram(view: HistogramView | None) -> dict[str, object]:
    if view is None:
        return {"buckets": [], "sum": 0}
    return {"buckets": view.by_bucket, "sum": round(view.sum, 3)}


def _text(value: object) -> str:
    """ASCII: a name on a damaged board may hold what is no text for PostgreSQL."""
    return json.dumps(value, separators=(",", ":"))
