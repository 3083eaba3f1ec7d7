"""The view `bridges`: what each moves, how much it has moved, and why it moves nothing."""

from typing import Any

from cmdbus.producer.bridges import BridgeRecord
from cmdbus.producer.bus import CommandBus
from cmdbus.web.query import Query
from cmdbus.web.views.records import remark


def read(bus: CommandBus, query: Query) -> object:
    name, domain, queue = query.text("name"), query.text("domain"), query.text("queue")
    query.check()
    return {
        "bridges": [
            bridge(each)
            for each in bus.bridges.list()
            if name in (None, each.name)
            and domain in (None, each.domain, each.reply_to)
            and queue in (None, each.queue)
        ]
    }


def bridge(record: BridgeRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "queue": record.queue,
        "direction": record.direction,
        "domain": record.domain,
        "type": record.type,
        "reply_to": record.reply_to,
        "batch_size": record.batch_size,
        "moved": record.moved,
        "refused": record.refused,
        "moved_at": record.moved_at,
        "error": record.error,
        "failed_at": record.failed_at,
        "added": remark(record.operator, record.reason, record.added_at),
    }
