"""The history of domains, as the stewards of fleets write it: periods of a minute, of ten minutes,
and of an hour."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

from cmdbus.checks import check_name
from cmdbus.integrations.callers_connection import CallersConnection
from cmdbus.producer.connections import Connections
from cmdbus.rollups import Figures, figures_of

#: By the name of a span: minutes of a period, and periods.
SPANS: Mapping[str, tuple[int, int]] = {"hour": (1, 60), "day": (10, 144), "week": (60, 168)}


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """A period of a domain, or of all domains together.

    What waited is sampled about once a minute; its fields are None for a period without a sample.
    """

    #: The beginning of the period.
    at: datetime
    #: Executions that ended in it, and how long these commands had waited and ran.
    ended: Figures
    #: Commands that have arrived, from outside or out of troubleshooting: what has become over and
    #: what the number of unfinished ones has grown by. Those that operators canceled while they
    #: waited, and that expired, are missing. None after a period without a sample.
    arrived: int | None
    #: The most that were claimable at once, and the longest that one had waited, in seconds.
    waiting: int | None
    oldest_age: float | None
    #: At the end of the period: due and waiting at a limit; scheduled; running; in troubleshooting.
    limited: int | None
    later: int | None
    running: int | None
    in_trouble: int | None


@dataclass(frozen=True, slots=True)
class History:
    """`points` are the periods since `begin` in which a fleet lived, oldest first, without the one
    that has not ended."""

    span: str
    step: timedelta
    begin: datetime
    points: list[HistoryPoint]


class Histories:
    """The methods of CommandBus that read what was."""

    _connections: Connections

    def history(
        self,
        domain: str | None = None,
        *,
        span: str = "hour",
        connection: CallersConnection | None = None,
    ) -> History:
        """What ended and what waited in `domain`, or in all domains together, in the last `span`:
        "hour" by minute, "day" by ten minutes, "week" by hour.

        Fleets write it once a minute, for the 200 busiest domains of each period.
        """
        if domain is not None:
            check_name("domain", domain)
        if span not in SPANS:
            raise ValueError(f"span must be one of {', '.join(SPANS)}, not {span!r:.80}")
        minutes, periods = SPANS[span]
        values: dict[str, Any] = {"domain": domain or "", "resolution": minutes}
        # One more, from which arrivals are counted, and the one that has not ended.
        values["seconds"] = 60.0 * minutes * (periods + 2)
        return history_of(
            span, self._connections.rows(connection, "read_history", "monitor", **values)
        )

    def recent_minutes(
        self, *, connection: CallersConnection | None = None
    ) -> dict[str, list[HistoryPoint]]:
        """The last hour by minute of every domain that has a history, and of all together, under
        the name "": as `history`, in one call."""
        rows = self._connections.rows(connection, "read_minutes", "monitor", seconds=62 * 60.0)
        return minutes_of(rows)


def history_of(span: str, rows: Sequence[Sequence[Any]], now: datetime | None = None) -> History:
    """From the rows of read_history."""
    minutes, periods = SPANS[span]
    step = timedelta(minutes=minutes)
    present = (rows[0][1] if rows else now or datetime.now(UTC)).astimezone(UTC)
    # The rollup of a minute comes seconds after its end.
    end = _floor(present - timedelta(seconds=5), step)
    begin = end - step * periods
    points = points_of([[row[0], *row[2:]] for row in rows], step)
    return History(span, step, begin, [each for each in points if begin <= each.at < end])


def points_of(rows: Sequence[Sequence[Any]], step: timedelta) -> list[HistoryPoint]:
    """Of the rows of one domain, from `at` on."""
    points = []
    for before, row in pairwise([None, *rows]):
        assert row is not None
        at, figures, waiting, oldest_age, limited, later, running, in_trouble, unfinished = row
        ended = figures_of(figures)
        arrived = None
        if before is not None and at - before[0] == step and None not in (unfinished, before[-1]):
            arrived = max(0, unfinished - before[-1] + ended.over)
        depths = waiting, oldest_age, limited, later, running, in_trouble
        points.append(HistoryPoint(at.astimezone(UTC), ended, arrived, *depths))
    return points


def _floor(at: datetime, step: timedelta) -> datetime:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return at - (at - epoch) % step


def minutes_of(rows: Sequence[Sequence[Any]]) -> dict[str, list[HistoryPoint]]:
    """From the rows of read_minutes."""
    own = {name: [row[1:] for row in group] for name, group in groupby(rows, key=itemgetter(0))}
    sampled = {row[0]: row[2] is not None for row in own.get("", ())}
    found = {}
    for name, minutes in own.items():
        at = {row[0]: row for row in minutes}
        # A domain without a row in a minute in which a fleet lived had nothing to write.
        filled = [at.get(each) or _nothing(each, known) for each, known in sampled.items()]
        zeros = [_sampled(row, sampled[row[0]]) for row in filled]
        found[name] = points_of(zeros, timedelta(minutes=1))
    return found


def _nothing(at: datetime, is_sampled: bool) -> Sequence[Any]:
    return [at, [], *[0 if is_sampled else None] * 7]


def _sampled(row: Sequence[Any], is_sampled: bool) -> Sequence[Any]:
    """A domain of which only ends are known had none that waited."""
    return [*row[:2], *[0 if is_sampled and each is None else each for each in row[2:]]]
