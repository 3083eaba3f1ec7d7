"""The view `troubleshooting`: what waits for an operator by error and type, and the commands of one
such group, or of all."""

from typing import Any

from cmdbus.producer.bus import CommandBus
from cmdbus.producer.records import TroubleCount, TroubleRecord
from cmdbus.producer.trouble_reading import TroubleGroup
from cmdbus.web.query import Query

_GROUPS = 200
_PAGE, _MAX_PAGE = 50, 500
_MAX_MESSAGE = 500
_FIELDS = (
    *("domain", "command_id", "type", "status", "priority", "attempts", "max_attempts"),
    *("error_code", "reason", "correlation_id", "batch_id", "created_at", "started_at"),
    *("failed_at", "worker", "key"),
)


def read(bus: CommandBus, query: Query) -> object:
    names = ("domain", "type", "error_code")
    conditions: dict[str, Any] = {name: query.text(name) for name in names}
    size = query.whole("limit", _PAGE, 1, _MAX_PAGE)
    after = query.text("after")
    if not bus.rights().reads_data:
        return _restricted(bus)
    found = bus.troubleshooting.groups(limit=_GROUPS)
    page = bus.troubleshooting.page(**conditions, limit=size, after=after, with_data=False)
    return {
        "groups": [_group(each) for each in found.groups],
        "complete": found.complete,
        "total": sum(each.count for each in found.groups),
        "commands": [_command(each) for each in page.commands],
        "next": page.next,
        "restricted": False,
    }


def _restricted(bus: CommandBus) -> dict[str, Any]:
    """Without messages and commands, which the role may not read."""
    counts = bus.troubleshooting.summary(limit=_GROUPS)
    latest = sorted(counts, key=lambda each: each.last_failed_at, reverse=True)
    return {
        "groups": [_group(each) for each in latest],
        "complete": len(counts) < _GROUPS,
        "total": sum(each.count for each in counts),
        "commands": [],
        "next": None,
        "restricted": True,
    }


def _group(group: TroubleCount) -> dict[str, Any]:
    message = group.error_message if isinstance(group, TroubleGroup) else None
    return {
        "domain": group.domain,
        "type": group.type,
        "error_code": group.error_code,
        "count": group.count,
        "oldest": group.first_failed_at,
        "newest": group.last_failed_at,
        "message": message and message[:_MAX_MESSAGE],
    }


def _command(record: TroubleRecord) -> dict[str, Any]:
    message = record.error_message
    return {
        **{name: getattr(record, name) for name in _FIELDS},
        "error_message": message and message[:_MAX_MESSAGE],
    }
