"""The view `history`: what ended and what waited, in the periods of a span; and `history/minutes`,
the last hour of every domain in short."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from cmdbus.producer.bus import CommandBus
from cmdbus.producer.history import SPANS, History, HistoryPoint
from cmdbus.web.query import NotFound, Query

_MINUTE = timedelta(minutes=1)


def read(bus: CommandBus, query: Query) -> object:
    if query.parts == ("minutes",):
        query.check()
        return minutes(bus.recent_minutes())
    if query.parts:
        raise NotFound("there is no such history")
    domain = query.text("domain")
    span = query.choice("span", *SPANS, default="hour")
    query.check()
    assert span is not None
    return {"domain": domain, **history(bus.history(domain, span=span))}


def history(found: History) -> dict[str, Any]:
    """With null in each field of a period in which no fleet lived."""
    at = {point.at: point for point in found.points}
    _, periods = SPANS[found.span]
    begins = [found.begin + n * found.step for n in range(periods)]
    return {
        "span": found.span,
        "step_seconds": found.step.total_seconds(),
        "from": found.begin,
        "points": [_point(begin, at.get(begin)) for begin in begins],
    }


def _point(at: datetime, point: HistoryPoint | None) -> dict[str, Any]:
    ended = None if point is None else point.ended
    value: dict[str, Any] = {
        "at": at,
        "in": point and point.arrived,
        "out": ended and ended.over,
        "completed": ended and ended.completed,
        # Business rules have refused them, or they need an operator.
        "failed": ended and ended.failed + ended.trouble,
        "retried": ended and ended.retry,
    }
    for name in ("waiting", "limited", "later", "running", "in_trouble", "oldest_age"):
        value[name] = point and getattr(point, name)
    for times in ("waited", "ran"):
        for name in ("p50", "p95", "p99"):
            value[f"{times}_{name}"] = ended and getattr(getattr(ended, times), name)
    return value


def minutes(found: dict[str, list[HistoryPoint]]) -> dict[str, Any]:
    """The sixty minutes before the one of the latest rollup, and that; all domains are ''."""
    latest = max((point.at for point in found.get("", ())), default=None)
    if latest is None:
        return {"from": None, "step_seconds": 60, "domains": {}}
    begin = latest - 59 * _MINUTE
    times = [begin + n * _MINUTE for n in range(60)]
    return {
        "from": begin,
        "step_seconds": 60,
        "domains": {name: _spark(points, times) for name, points in found.items()},
    }


def _spark(points: Sequence[HistoryPoint], times: Sequence[datetime]) -> dict[str, Any]:
    at = {point.at: point for point in points}
    shown = [at.get(each) for each in times]
    return {
        "in": [point and point.arrived for point in shown],
        "out": [point and point.ended.over for point in shown],
        "depth": [None if point is None else _depth(point) for point in shown],
    }


def _depth(point: HistoryPoint) -> int | None:
    return None if point.waiting is None else point.waiting + (point.limited or 0)
