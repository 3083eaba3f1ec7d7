"""The operator's side of schedules: those that apps declare, and those that operators add."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from cmdbus.checks import check_name, check_whole
from cmdbus.data import decode
from cmdbus.integrations.callers_connection import CallersConnection
from cmdbus.producer.arguments import check_remark
from cmdbus.producer.connections import Connections
from cmdbus.producer.refusals import Refusals
from cmdbus.producer.requests import SendRules
from cmdbus.schedules import ONE, Schedule, schedule_of, times_text
from cmdbus.ticks import zone_of

_REFUSALS = Refusals(
    "there is no schedule",
    "cmdbus schedule list shows those that there are",
    {
        "declared": "the schedule {} was not added: an app declares it, and a living node runs "
        "its type; pause it, or take it out of the app"
    },
)
#: The largest number of ticks that `next` returns.
_MAX_NEXT = 1000

#: Called with a domain, what it says to a command (see enqueue in the schema) and that one's key:
#: raises if it refuses it.
CheckReply = Callable[[str, Sequence[Any], str | None], None]


@dataclass(frozen=True, slots=True)
class AddedSchedule:
    """By whom a schedule was added, and why."""

    operator: str | None
    reason: str | None
    added_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRecord:
    """A schedule in force, without the data of its commands; times in UTC."""

    name: str
    domain: str
    type: str
    #: None: it has an interval, `every`, in seconds.
    cron: str | None
    every: int | None
    timezone: str
    missed: str
    #: In seconds.
    jitter: float
    priority: int
    max_attempts: int | None
    key: str | None
    paused: bool
    #: None while it is paused, or where cron lines cannot be read.
    next_tick: datetime | None
    #: The latest tick for which there is a command, and that.
    last_tick: datetime | None
    last_command_id: UUID | None
    #: How many ticks were left out since the schedule is there, and when some were last.
    left_out: int
    left_out_at: datetime | None
    #: Why the next tick is not sent although it is due.
    last_error: str | None
    #: None: an app declares it.
    added: AddedSchedule | None
    #: Apps that declare a schedule of this name, the latest first: that one holds, unless `added`.
    declared_by: list[str]
    #: Whether a living node runs its type.
    handled: bool

    @property
    def times(self) -> str:
        """In one line."""
        return times_text(self.cron, self.every, self.timezone)


class ScheduleOperations:
    """`CommandBus.schedules`.

    A schedule has a name. Changes are recorded in the audit trail of its domain, see
    `domain_audit`, with `operator` and `reason`. A name that no schedule has is an
    InvalidOperationError.
    """

    def __init__(self, connections: Connections, rules: SendRules, check: CheckReply) -> None:
        self._connections, self._rules, self._check = connections, rules, check

    def list(self, *, connection: CallersConnection | None = None) -> list[ScheduleRecord]:
        """Every schedule that is declared or added, by name."""
        return [_record(row) for row in self._rows(connection, None)]

    def add(
        self,
        name: str,
        domain: str,
        type: str,
        cron: str | None = None,
        *,
        every: str | float | timedelta | None = None,
        timezone: str | None = None,
        missed: str = ONE,
        jitter: float | timedelta = 0,
        data: Any = None,
        priority: str | int = "normal",
        max_attempts: int | None = None,
        key: str | None = None,
        operator: str | None = None,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Adds the schedule `name`, which sends a command of `domain` and `type` at each of its
        ticks from now on: those of the line `cron` in `timezone`, or `every` so often. It replaces
        one of this name, and overrides a declared one until `remove`; a paused one stays paused.

        See `HandlerRegistry.schedule` for the other options; `data`, `priority`, `max_attempts` and
        `key` are those of the command.
        """
        made = schedule_of(
            name,
            domain,
            type,
            cron,
            {
                **{"every": every, "timezone": timezone, "missed": missed, "jitter": jitter},
                **{"data": data, "priority": priority, "max_attempts": max_attempts, "key": key},
            },
            self._rules.priorities,
            self._rules.max_bytes,
            encoder=self._rules.encoder,
        )
        values = {**made.row, "terms": json.dumps(made.terms), **check_remark(operator, reason)}
        self._connections.row_once(connection, "add_schedule", **values)

    def remove(
        self,
        name: str,
        *,
        operator: str | None = None,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Removes an added schedule, with its future ticks; if an app declares one of this name,
        that holds again. One that only apps declare is removed if no living node runs its type,
        and is back when an app that declares it starts again."""
        self._change(connection, "remove_schedule", _named(name, operator, reason))

    def pause(
        self,
        name: str,
        *,
        operator: str | None = None,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """A paused schedule misses its ticks, also over restarts, until `resume`."""
        values = {**_named(name, operator, reason), "paused": True}
        self._change(connection, "pause_schedule", values)

    def resume(
        self,
        name: str,
        *,
        operator: str | None = None,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Goes on with the next tick."""
        values = {**_named(name, operator, reason), "paused": False}
        self._change(connection, "pause_schedule", values)

    def run(
        self,
        name: str,
        *,
        operator: str | None = None,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> UUID:
        """Sends the command of a schedule now, also of a paused one, and returns its id. It is no
        tick. Raises what `send` raises."""
        values = _named(name, operator, reason)
        command_id = uuid4()
        domain, key, *admission = self._connections.row_once(
            connection, "run_schedule", command_id=command_id, **values
        )
        if admission[0] == "unknown":
            raise _REFUSALS.unknown_error(name, self._names(connection))
        self._check(domain, admission, key)
        return command_id

    def next(
        self, name: str, count: int = 1, *, connection: CallersConnection | None = None
    ) -> Sequence[datetime]:
        """The next `count` ticks, in the schedule's time zone; of a paused one those that it would
        have."""
        check_whole("count", count, 1, _MAX_NEXT)
        found = self._rows(connection, check_name("name of a schedule", name))
        if not found:
            raise _REFUSALS.unknown_error(name, self._names(connection))
        schedule, zone = found[0].schedule, zone_of(found[0].timezone)
        ticks = schedule.ticks.after(found[0].present)
        return [tick.astimezone(zone) for tick in islice(ticks, count)]

    def data(self, name: str, *, connection: CallersConnection | None = None) -> Any:
        """The data of the commands of the schedule, which `list` leaves out, as roles of monitors
        cannot read it."""
        checked = check_name("name of a schedule", name)
        found = self._connections.rows(connection, "read_schedule_data", name=checked)
        if not found:
            raise _REFUSALS.unknown_error(name, self._names(connection))
        return decode(found[0][0])

    def _rows(self, connection: CallersConnection | None, name: str | None) -> "Sequence[_Row]":
        found = self._connections.rows(connection, "read_schedules", "monitor", name=name)
        return [*map(_Row._make, found)]

    def _change(
        self, connection: CallersConnection | None, function: str, values: dict[str, Any]
    ) -> None:
        [refusal] = self._connections.row_once(connection, function, **values)
        if refusal is not None:
            raise _REFUSALS.error(refusal, values["name"], lambda: self._names(connection))

    def _names(self, connection: CallersConnection | None) -> "list_[str]":
        return [row.name for row in self._rows(connection, None)]


# ScheduleOperations.list hides the type in its class.
list_ = list


def _named(name: str, operator: str | None, reason: str | None) -> dict[str, object]:
    return {"name": check_name("name of a schedule", name), **check_remark(operator, reason)}


class _Row(NamedTuple):
    """Of read_schedules."""

    name: str
    domain: str
    type: str
    cron: str | None
    every: int | None
    timezone: str
    missed: str
    jitter: float
    priority: int
    max_attempts: int | None
    key: str | None
    paused: bool
    last_tick: datetime | None
    last_command_id: UUID | None
    left_out: int
    left_out_at: datetime | None
    last_error: str | None
    next_tick: datetime | None
    counts_from: datetime
    operator: str | None
    reason: str | None
    added_at: datetime | None
    declared_by: list[str]
    handled: bool
    #: The server's time.
    present: datetime

    @property
    def schedule(self) -> Schedule:
        """Without the command's options."""
        values: dict[str, Any] = dict(zip(self._fields[:8], self, strict=False))
        return Schedule(**values)


def _record(row: _Row) -> ScheduleRecord:
    """The steward may not have computed the next tick yet."""
    added, next_tick = None, row.next_tick
    if row.added_at is not None:
        added = AddedSchedule(row.operator, row.reason, row.added_at.astimezone(UTC))
    if next_tick is None and not row.paused:
        with suppress(ValueError):
            next_tick = next(row.schedule.ticks.after(row.counts_from), None)
    same: dict[str, Any] = dict(zip(row._fields[:12], row, strict=False))
    return ScheduleRecord(
        **same,
        next_tick=_utc(next_tick),
        last_tick=_utc(row.last_tick),
        last_command_id=row.last_command_id,
        left_out=row.left_out,
        left_out_at=_utc(row.left_out_at),
        last_error=row.last_error,
        added=added,
        declared_by=row.declared_by,
        handled=row.handled,
    )


def _utc(time: datetime | None) -> datetime | None:
    return None if time is None else time.astimezone(UTC)
