"""The view `schedules`: their next and latest ticks, and what keeps them from being sent."""

from datetime import datetime
from itertools import islice
from typing import Any

from cmdbus.producer.bus import CommandBus
from cmdbus.producer.schedules import ScheduleRecord
from cmdbus.ticks import ticks_of
from cmdbus.web.query import Query
from cmdbus.web.views.records import remark

#: Ticks of each schedule, and schedules whose ticks are computed.
_TICKS, _MAX_COMPUTED = 5, 200


def read(bus: CommandBus, query: Query) -> object:
    domain, name = query.text("domain"), query.text("name")
    query.check()
    records = [
        each
        for each in bus.schedules.list()
        if domain in (None, each.domain) and name in (None, each.name)
    ]
    computed = {each.name for each in records[:_MAX_COMPUTED]}
    return {"schedules": [schedule(each, each.name in computed) for each in records]}


def schedule(record: ScheduleRecord, with_ticks: bool = True) -> dict[str, Any]:
    added = record.added
    return {
        "name": record.name,
        "domain": record.domain,
        "type": record.type,
        "times": record.times,
        "missed": record.missed,
        "jitter": record.jitter,
        "priority": record.priority,
        "max_attempts": record.max_attempts,
        "key": record.key,
        "paused": record.paused,
        "next_tick": record.next_tick,
        "ticks": next_ticks(record) if with_ticks else [],
        "last_tick": record.last_tick,
        "last_command_id": record.last_command_id,
        "left_out": record.left_out,
        "left_out_at": record.left_out_at,
        "last_error": record.last_error,
        "added": None if added is None else remark(added.operator, added.reason, added.added_at),
        "declared_by": record.declared_by,
        "handled": record.handled,
    }


def next_ticks(record: ScheduleRecord) -> list[datetime]:
    """The next tick and those after it; none while it is paused, or where its cron line cannot be
    read."""
    if record.next_tick is None:
        return []
    try:
        ticks = ticks_of(record.cron, record.every, record.timezone)
        return [record.next_tick, *islice(ticks.after(record.next_tick), _TICKS - 1)]
    except ValueError:  # CronMissingError among them
        return [record.next_tick]
