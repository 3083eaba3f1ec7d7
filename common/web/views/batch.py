"""The view `batch/ID`: its counters, its data, what happened to it, and what it sends at its end.
Its commands are the view `commands?batch=ID`."""

from typing import Any
from uuid import UUID

from cmdbus.errors import BatchNotFoundError
from cmdbus.producer.bus import CommandBus
from cmdbus.producer.records import BatchRecord
from cmdbus.web.query import Query
from cmdbus.web.views.batches import batch
from cmdbus.web.views.payload_values import payload_of
from cmdbus.web.views.processes import process
from cmdbus.web.views.records import events

#: Processes of the batch that are shown, at most.
_PROCESSES = 50


def read(bus: CommandBus, query: Query) -> object:
    batch_id = query.uuid_part(0, "the id of a batch")
    query.check()
    restricted = not bus.rights().reads_data
    processes = bus.page_processes(batch_id=batch_id, limit=_PROCESSES, for_monitors=restricted)
    value: dict[str, Any] = {
        **batch(_read(bus, batch_id, restricted)),
        "data": None,
        "audit": None,
        "follow_ups": None,
        "processes": [*map(process, processes.processes)],
        "more_processes": processes.next is not None,
        "restricted": restricted,
    }
    if restricted:
        return value
    record = bus.get_batch(batch_id)
    return {
        **value,
        "data": None if record is None else payload_of(record.data),
        "audit": events(bus.batch_audit(batch_id)),
        "follow_ups": bus.batch_follow_ups(batch_id),
    }


def _read(bus: CommandBus, batch_id: UUID, restricted: bool) -> BatchRecord:
    found = bus.page_batches(batch_id=batch_id, limit=1, for_monitors=restricted).batches
    if not found:
        raise BatchNotFoundError(batch_id)
    return found[0]
