"""The answers to probes: a function of the board's state, and the time. Pure.

    live     the supervisor looks after its processes, whatever state these are in
    ready    at least one worker can run commands

Times are monotonic nanoseconds.
"""

import json
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from cmdbus.board.counters import CountersView
from cmdbus.board.health import Health
from cmdbus.board.records import Role, SupervisorState
from cmdbus.board.views import BoardView, SeatView

_NS = 1_000_000_000
#: Commands by domain and state.
Depths = Mapping[tuple[str, str], int]
#: States of nodes in the database: `lost` ones have not published for some minutes.
NODE_STATES = ("running", "stopped", "lost")


class Gauges(NamedTuple):
    """What is read from the database; None if it is unknown."""

    depths: Depths | None = None
    #: Seconds.
    oldest_snapshot: float | None = None
    #: By status.
    batches: Mapping[str, int] | None = None
    #: Those of managers that are not over, by type and status.
    processes: Mapping[tuple[str, str], int] | None = None
    #: Commands that wait and that no living node claims, by domain, type and reason.
    unreachable: Mapping[tuple[str, str, str], int] | None = None
    #: The states of circuit breakers, as the page of metrics numbers them.
    breakers: Mapping[str, int] | None = None
    #: Counts by the name of a bridge, its direction, and what is counted: moved, refused, failing.
    bridges: Mapping[tuple[str, str, str], int] | None = None
    #: Seconds that the oldest command of each domain has waited that is ready or limited.
    oldest: Mapping[str, float] | None = None
    #: Nodes by their state.
    nodes: Mapping[str, int] | None = None
    #: Whether the database has answered the latest question.
    up: bool | None = None


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: str
    type: str = "application/json"


def live(view: BoardView, now: int) -> Response:
    reasons = list(_beyond_help(view, now))
    return _response({"live": not reasons, "reasons": reasons}, good=not reasons)


def ready(view: BoardView, now: int, *, away: bool | None = None) -> Response:
    """Gives reasons also while it is ready: an operator should look into them. `away`: whether the
    database does not answer; if that was not tested, the steward's state on the board decides."""
    seats = current_seats(view)
    if away is None:
        away = any(steward.levels.database_away for steward in view.with_role(Role.STEWARD))
    is_starting = view.state in (SupervisorState.STARTING, SupervisorState.RUNNING)
    good = is_starting and not away and any(_can_run(seat, now) for seat in seats)
    reasons = [] if is_starting else [f"the supervisor is {_name(view.state)}"]
    if away:
        reasons.append("the database is away")
    stopping = {seat.number for seat in view.with_role(Role.STOPPING) if seat.for_worker}
    reasons += [lack for seat in seats if (lack := _lack(seat, stopping, now))]
    if view.undead:
        reasons.append(f"processes that survived SIGKILL: {view.undead}")
    levels = [_levels(seat, now) for seat in seats]
    return _response({"ready": good, "reasons": reasons, "seats": levels}, good=good)


def status(view: BoardView, counters: CountersView, depths: Depths | None, now: int) -> Response:
    body = {
        **view.to_dict(now),
        "restarts": view.restarts,
        "undead": view.undead,
        "counters": _counters(counters),
        "queues": None if depths is None else _queues(depths),
    }
    return _response(body, good=True)


def _beyond_help(view: BoardView, now: int) -> Iterator[str]:
    if view.pid is None:
        yield "there is no supervisor"
    elif view.state in (SupervisorState.GIVING_UP, SupervisorState.STOPPED):
        yield f"the supervisor is {_name(view.state)}"
    elif late := _late(view, now):
        yield f"the supervisor is late by {late:.0f} s"


def current_seats(view: BoardView) -> list[SeatView]:
    workers = view.workers
    return [workers[number] for number in range(view.wanted)]


def _can_run(seat: SeatView, now: int) -> bool:
    healthy = seat.health in (Health.HEALTHY, Health.DEGRADED)
    return seat.pid is not None and seat.ready is not None and healthy and not _late(seat, now)


def _late(view: SeatView | BoardView, now: int) -> float:
    """Seconds; 0 if it is not late."""
    return 0.0 if view.due is None else max(0, now - view.due) / _NS


def _lack(seat: SeatView, stopping: Container[int], now: int) -> str | None:
    """`stopping`: the numbers of workers that are ordered to stop."""
    if seat.pid is None and seat.number in stopping:
        return f"worker {seat.number} is stopping"
    if seat.pid is None:
        return f"worker {seat.number} has no process"
    if seat.ready is None:
        return f"worker {seat.number} is starting"
    if late := _late(seat, now):
        return f"worker {seat.number} is late by {late:.0f} s"
    if seat.health is not Health.HEALTHY:
        return f"worker {seat.number} is {seat.health}: {', '.join(seat.levels.reasons)}"
    return None


def _levels(seat: SeatView, now: int) -> dict[str, object]:
    """`last_success` in seconds ago."""
    if seat.pid is None:
        return {"seat": seat.number, "health": None}
    levels = seat.levels
    last = levels.last_success
    return {
        "seat": seat.number,
        "health": levels.health.value,
        "reasons": levels.reasons,
        "last_success": None if last is None else round(now / _NS - last, 3),
        "consecutive_failures": levels.consecutive_failures,
        "stuck_threads": levels.stuck_threads,
        "pool_exhaustions": levels.pool_exhaustions,
    }


def _counters(view: CountersView) -> dict[str, object]:
    return {
        "commands": [
            {"domain": domain, "type": type, "outcome": outcome, "count": count}
            for (domain, type, outcome), count in sorted(view.commands.items())
        ],
        **view.counts,
        "wakeups": view.wakeups,
    }


def _queues(depths: Depths) -> dict[str, dict[str, int]]:
    queues: dict[str, dict[str, int]] = {}
    for (domain, state), count in sorted(depths.items()):
        queues.setdefault(domain, {})[state] = count
    return queues


def _name(state: SupervisorState | None) -> str:
    return "unknown" if state is None else state.name.lower().replace("_", " ")


def _response(body: dict[str, object], *, good: bool) -> Response:
    return Response(200 if good else 503, json.dumps(body) + "\n")
