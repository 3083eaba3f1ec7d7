"""The view `process/ID`: its steps with their compensations, its state, and what happened to it.
Its commands are also those of its id as correlation id."""

from typing import Any
from uuid import UUID

from cmdbus.errors import ProcessNotFoundError
from cmdbus.producer.bus import CommandBus
from cmdbus.producer.process_records import ProcessRecord, ProcessStep
from cmdbus.web.query import Query
from cmdbus.web.views.payload_values import payload_of
from cmdbus.web.views.processes import process
from cmdbus.web.views.records import events

#: Those of a process that are shown, at most: the latest.
_STEPS, _EVENTS = 200, 200


def read(bus: CommandBus, query: Query) -> object:
    process_id = query.uuid_part(0, "the id of a process")
    query.check()
    restricted = not bus.rights().reads_data
    value: dict[str, Any] = {
        **process(_read(bus, process_id, restricted)),
        "state": None,
        "steps": None,
        "more_steps": False,
        "audit": None,
        "more_events": False,
        "restricted": restricted,
    }
    if restricted:
        return value
    record = bus.get_process(process_id)
    steps = bus.process_steps(process_id, latest=_STEPS + 1)
    audit = bus.process_audit(process_id, latest=_EVENTS + 1)
    return {
        **value,
        "state": None if record is None else payload_of(record.state),
        "steps": [*map(_step, steps[-_STEPS:])],
        "more_steps": len(steps) > _STEPS,
        "audit": events(audit[-_EVENTS:]),
        "more_events": len(audit) > _EVENTS,
    }


def _read(bus: CommandBus, process_id: UUID, restricted: bool) -> ProcessRecord:
    page = bus.page_processes(process_id=process_id, limit=1, for_monitors=restricted)
    if not page.processes:
        raise ProcessNotFoundError(process_id)
    return page.processes[0]


def _step(step: ProcessStep) -> dict[str, Any]:
    """The command of a step of several is a batch."""
    return {
        "number": step.number,
        "step": step.step,
        "undoes": step.undoes,
        "domain": step.domain,
        "type": step.type,
        "command_id": step.command_id,
        "is_batch": step.type == "process:batch",
        "sent_at": step.sent_at,
        "received_at": step.received_at,
        "deadline_at": step.deadline_at,
        "outcome": step.outcome,
        "error": step.error,
        "undone": step.undone,
        "command_status": step.command_status,
        "attempts": step.attempts,
    }
