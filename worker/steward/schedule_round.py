"""Sends the commands of schedules at their ticks.

Every node tries each tick, and the first sends it: one statement locks the schedule's row, sends
the command, whose id depends on name and tick, and moves the next tick on. The others find the row
locked or moved. A schedule that fails, or that this node cannot read, keeps no other one waiting.
"""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from math import inf
from typing import Any, NamedTuple

from cmdbus.backoff import Backoff
from cmdbus.clock import time
from cmdbus.counting import count_of
from cmdbus.failpoints import AFTER_TICK, BEFORE_TICK, failpoint
from cmdbus.ticks import CronMissingError, Passed, command_id, due_time, passed, ticks_of
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.rejections import may_be_of_one_row, reason
from cmdbus.worker.waiting.timers import Timers

logger = logging.getLogger(__name__)

#: Schedules that are read at once, and ticks for which one statement sends commands.
_MAX_SCHEDULES, _MAX_TICKS = 100, 100
#: Seconds after which a round leaves the rest to the next one.
_ROUND_SECONDS = 2.0
#: Seconds between two tries while other nodes have locked all that is due.
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.005, 0.05
#: Seconds until a tick that the domain refuses is tried again, and one that fails.
_REFUSED_SECONDS, _FAILED_SECONDS = 5.0, 60.0


class Due(NamedTuple):
    """A schedule that needs a steward, or will; see read_due_schedules."""

    #: From now on.
    seconds: float
    #: The server's time.
    now: datetime
    name: str
    cron: str | None
    every: int | None
    timezone: str
    missed: str
    jitter: float
    counts_from: datetime
    next_tick: datetime | None
    last_error: str | None

    def passed(self) -> Passed:
        ticks = ticks_of(self.cron, self.every, self.timezone)
        if self.next_tick is None:
            return Passed([], 0, next(ticks.after(self.counts_from), None))
        return passed(ticks, self.next_tick, self.now, self.missed)


def _due(row: Sequence[Any]) -> Due:
    """In UTC: Python compares times of one zone by their clock, which shows an hour twice."""
    return Due._make(each.astimezone(UTC) if isinstance(each, datetime) else each for each in row)


class ScheduleRound:
    """Costs nothing while the timers, which read when a schedule is due, know of none."""

    def __init__(self, statements: ClaimStatements, timers: Timers) -> None:
        self._statements = statements
        self._timers = timers
        self._pauses = Backoff(_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        #: False once it turns out that cron lines cannot be read here: other nodes may.
        self._reads_cron = True
        #: Monotonic times until which this node leaves schedules to others, by name.
        self._left: dict[str, float] = {}

    def run(self, connection: Connection) -> float:
        began = time.monotonic()
        if began < self._timers.ticks_at:
            return self._timers.ticks_at - began
        while time.monotonic() < began + _ROUND_SECONDS:
            found = self._read(connection)
            due = [each for each in found if each.seconds <= 0]
            if not due:
                self._pauses.reset()
                seconds = found[0].seconds if found else inf
                self._timers.ticks_at = time.monotonic() + seconds
                return seconds
            if not any([self._see_to(connection, each) for each in due]):
                return self._pauses.pause()
        return 0.0

    def _read(self, connection: Connection) -> Sequence[Due]:
        now = time.monotonic()
        self._left = {name: until for name, until in self._left.items() if now < until}
        rows = self._statements.rows(
            connection,
            "read_due_schedules",
            skipped=[*self._left],
            reads_cron=self._reads_cron,
            count=_MAX_SCHEDULES,
        )
        return [_due(row) for row in rows]

    def _see_to(self, connection: Connection, due: Due) -> bool:
        """False if it stays due, for the moment."""
        try:
            plan = due.passed()
        except CronMissingError as error:
            self._reads_cron = False
            logger.warning("schedule %s: %s; leaving such to other nodes", due.name, error)
            return True
        except (ValueError, ArithmeticError) as error:
            self._left[due.name] = time.monotonic() + _FAILED_SECONDS
            return self._postpone(connection, due, str(error))
        try:
            return self._send(connection, due, plan)
        except Exception as error:
            if not may_be_of_one_row(error):
                raise
            return self._postpone(connection, due, reason(error))

    def _send(self, connection: Connection, due: Due, plan: Passed) -> bool:
        sent, rest = plan.sent[:_MAX_TICKS], plan.sent[_MAX_TICKS:]
        ids = [command_id(self._statements.schema, due.name, tick) for tick in sent]
        failpoint(BEFORE_TICK)
        refusal = self._statements.value(
            connection,
            "send_ticks",
            name=due.name,
            counts_from=due.counts_from,
            tick=due.next_tick,
            ticks=sent,
            command_ids=ids,
            due=[due_time(t, i, due.jitter) for t, i in zip(sent, ids, strict=True)],
            next=rest[0] if rest else plan.next_tick,
            left_out=plan.left_out,
            retry=_REFUSED_SECONDS,
        )
        failpoint(AFTER_TICK)
        if refusal == "taken":
            return False
        if plan.left_out:
            many = count_of(plan.left_out, "tick")
            logger.warning("schedule %s: %s left out (missed=%r)", due.name, many, due.missed)
        if refusal is not None and due.last_error is None:
            logger.warning(
                "schedule %s: its domain refuses the command (%s); trying again every %g s",
                due.name,
                refusal,
                _REFUSED_SECONDS,
            )
        return True

    def _postpone(self, connection: Connection, due: Due, why: str) -> bool:
        seconds = _FAILED_SECONDS
        if why != due.last_error:
            logger.warning("schedule %s: %s; trying again every %g s", due.name, why, seconds)
        self._statements.rows(
            connection, "postpone_schedule", name=due.name, error=why, seconds=seconds
        )
        return False
