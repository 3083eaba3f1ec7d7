"""The view `batches`: those that meet the conditions, the newest first."""

from typing import Any

from cmdbus.producer.bus import CommandBus
from cmdbus.producer.records import BatchRecord, BatchStatus
from cmdbus.web.query import Query

_MAX_LIMIT = 200


def read(bus: CommandBus, query: Query) -> object:
    conditions: dict[str, Any] = {
        "status": query.choice("status", *BatchStatus),
        "domain": query.text("domain"),
        "since": query.time("since"),
        "until": query.time("until"),
    }
    name, limit = query.text("name"), query.whole("limit", 50, 1, _MAX_LIMIT)
    after = query.text("after")
    query.check()
    restricted = not bus.rights().reads_data
    page = bus.page_batches(
        **conditions,
        name=None if restricted else name,
        limit=limit,
        after=after,
        for_monitors=restricted,
    )
    return {
        "batches": [*map(batch, page.batches)],
        "next": page.next,
        "restricted": restricted,
    }


def batch(record: BatchRecord) -> dict[str, Any]:
    """Without its data."""
    return {
        "batch_id": record.batch_id,
        "domain": record.domain,
        "name": record.name,
        "status": record.status,
        "total": record.total,
        "completed": record.completed,
        "failed": record.failed,
        "canceled": record.canceled,
        "in_troubleshooting": record.in_troubleshooting,
        "remaining": record.remaining,
        "created_at": record.created_at,
        "started_at": record.started_at,
        "completed_at": record.completed_at,
    }
