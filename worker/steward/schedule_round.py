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

from cmdbus.clock import time
from cmdbus.counting import count_of
from cmdbus.errors import CronMissingError
from cmdbus.failpoints import AFTER_TICK, BEFORE_TICK, failpoint
from cmdbus.ticks import TickPlan, command_id, due_time, plan_ticks, ticks_of
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.rejections import may_be_of_one_row, reason
from cmdbus.worker.waiting.timers import Timers

logger = logging.getLogger(__name__)

#: Schedules that are read at once, and ticks for which one statement sends commands.
_MAX_SCHEDULES, _MAX_TICKS = 100, 100
#: Seconds after which a round leaves the rest to the next one.
_ROUND_SECONDS = 2.0
#: Seconds until a tick that another session has locked is tried again: this share of the time by
#: which it is late, because a node needs milliseconds and an operator's transaction may take hours.
_PAUSE_SHARE = 0.2
#: Bounds of that pause, in seconds.
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.005, 1.0
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

    def plan(self) -> TickPlan:
        ticks = ticks_of(self.cron, self.every, self.timezone)
        if self.next_tick is None:
            return TickPlan([], 0, next(ticks.after(self.counts_from), None))
        return plan_ticks(ticks, self.next_tick, self.now, self.missed)


def _due(row: Sequence[Any]) -> Due:
    """In UTC: Python compares times of one zone by their clock, which shows an hour twice."""
    return Due._make(each.astimezone(UTC) if isinstance(each, datetime) else each for each in row)


def _pause(late: float) -> float:
    """Seconds until a tick that is so many seconds late is tried again."""
    return min(max(_MIN_PAUSE_SECONDS, _PAUSE_SHARE * late), _MAX_PAUSE_SECONDS)


class ScheduleRound:
    """Costs nothing while the timers, which read when a schedule is due, know of none."""

    def __init__(self, statements: ClaimStatements, timers: Timers) -> None:
        self._statements = statements
        self._timers = timers
        #: False once it turns out that cron lines cannot be read here: other nodes may.
        self._reads_cron = True
        #: Monotonic times until which this node leaves schedules to others, by name.
        self._skipped_until: dict[str, float] = {}

    def run(self, connection: Connection) -> float:
        began = time.monotonic()
        if began < self._timers.ticks_at:
            return self._timers.ticks_at - began
        while time.monotonic() < began + _ROUND_SECONDS:
            found = self._read(connection)
            read_at = time.monotonic()
            due = [each for each in found if each.seconds <= 0]
            for each in due:
                self._try_tick(connection, each)
            if not due:
                times = [*(read_at + each.seconds for each in found), *self._skipped_until.values()]
                self._timers.ticks_at = min(times, default=inf)
                return max(0.0, self._timers.ticks_at - read_at)
        return 0.0

    def _read(self, connection: Connection) -> Sequence[Due]:
        now = time.monotonic()
        skipped = self._skipped_until.items()
        self._skipped_until = {name: until for name, until in skipped if now < until}
        rows = self._statements.rows(
            connection,
            "read_due_schedules",
            skipped=[*self._skipped_until],
            reads_cron=self._reads_cron,
            count=_MAX_SCHEDULES,
        )
        return [_due(row) for row in rows]

    def _try_tick(self, connection: Connection, due: Due) -> None:
        """After that it is due no more, or skipped."""
        try:
            plan = due.plan()
        except CronMissingError as error:
            self._reads_cron = False
            logger.warning("schedule %s: %s; leaving such to other nodes", due.name, error)
            return
        except (ValueError, ArithmeticError) as error:
            self._postpone(connection, due, str(error))
            # Longer, so that a node that can read it is the first to try again.
            self._skip(due, _FAILED_SECONDS + _MAX_PAUSE_SECONDS)
            return
        try:
            self._send(connection, due, plan)
        except Exception as error:
            if not may_be_of_one_row(error):
                raise
            if not self._postpone(connection, due, reason(error)):
                self._skip(due, _pause(-due.seconds))

    def _send(self, connection: Connection, due: Due, plan: TickPlan) -> None:
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
            self._skip(due, _pause(-due.seconds))
            return
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

    def _skip(self, due: Due, seconds: float) -> None:
        self._skipped_until[due.name] = time.monotonic() + seconds

    def _postpone(self, connection: Connection, due: Due, why: str) -> bool:
        """False if it is locked."""
        seconds = _FAILED_SECONDS
        if why != due.last_error:
            logger.warning("schedule %s: %s; trying again every %g s", due.name, why, seconds)
        values = {"name": due.name, "error": why, "seconds": seconds}
        return bool(self._statements.value(connection, "postpone_schedule", **values))
