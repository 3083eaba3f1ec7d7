"""Rounds of stewards that see to schedules, in the place of whole nodes."""

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from eventually import eventually
from queries import rows

from cmdbus import CommandBus, ScheduleRecord
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.steward.schedule_round import ScheduleRound
from cmdbus.worker.waiting.timers import Timers

HOUR = timedelta(hours=1)


def round_of() -> ScheduleRound:
    """A node's, which does not know of any tick."""
    statements = ClaimStatements("cmdbus", 30)
    timers = Timers(statements, ["payments"], ["payments Debit"])
    timers.ticks_at = 0.0
    return ScheduleRound(statements, timers)


def run_to_the_end(each: ScheduleRound, connection: psycopg.Connection) -> None:
    """Until nothing is due; other nodes may hold what is."""
    eventually(lambda: each.run(connection) > 1, timeout=20)


def due(connection: psycopg.Connection, name: str, first: datetime) -> None:
    """Sets the next tick of a schedule."""
    connection.execute(
        "UPDATE cmdbus.schedule SET next_tick = %s, check_at = %s WHERE name = %s",
        (first, first, name),
    )


def only(bus: CommandBus) -> ScheduleRecord:
    [record] = bus.schedules.list()
    return record


def ticks(dsn: str) -> list[tuple[Any, ...]]:
    """Of the commands that were sent: name and time."""
    found = rows(
        dsn,
        "SELECT e.details ->> 'schedule', (e.details ->> 'tick')::timestamptz"
        " FROM cmdbus.event e WHERE e.kind = 'SENT_BY_SCHEDULE' ORDER BY 2",
    )
    return [(name, tick.astimezone(UTC)) for name, tick in found]


def wait_for_an_hour_that_lasts() -> None:
    """Returns where the hour does not end, and no further tick comes, within half a minute."""
    eventually(lambda: datetime.now(UTC) + timedelta(seconds=30) < hours_ago(-1), timeout=32)


def hours_ago(count: int) -> datetime:
    return datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - count * HOUR
