"""The view `processes`: those that meet the conditions, the latest started first."""

from typing import Any

from cmdbus.producer.bus import CommandBus
from cmdbus.producer.process_records import ProcessRecord, ProcessStatus
from cmdbus.web.query import Query

_MAX_LIMIT = 200


def read(bus: CommandBus, query: Query) -> object:
    conditions: dict[str, Any] = {
        "domain": query.text("domain"),
        "type": query.text("type"),
        "status": query.choice("status", *ProcessStatus),
        "batch_id": query.uuid("batch"),
        "since": query.time("since"),
        "until": query.time("until"),
        "limit": query.whole("limit", 50, 1, _MAX_LIMIT),
        "after": query.text("after"),
    }
    query.check()
    restricted = not bus.rights().reads_data
    page = bus.page_processes(**conditions, for_monitors=restricted)
    return {
        "processes": [*map(process, page.processes)],
        "next": page.next,
        "restricted": restricted,
    }


def process(record: ProcessRecord) -> dict[str, Any]:
    """Without its state."""
    return {
        "process_id": record.process_id,
        "domain": record.domain,
        "type": record.type,
        "status": record.status,
        "step": record.step,
        "error": record.error,
        "batch_id": record.batch_id,
        "created_at": record.created_at,
        "updated_at": record.updated_at,
        "finished_at": record.finished_at,
    }
