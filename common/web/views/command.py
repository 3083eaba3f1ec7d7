"""The view `command`: one command, with all that happened to it. Its path is DOMAIN/ID."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from cmdbus.checks import check_name
from cmdbus.errors import CommandNotFoundError
from cmdbus.producer.bus import CommandBus
from cmdbus.producer.found_commands import FoundCommand
from cmdbus.producer.records import AuditEvent, CommandRecord, Status
from cmdbus.web.query import Query
from cmdbus.web.views.executions import executions, value_of
from cmdbus.web.views.payload_values import payload_of
from cmdbus.web.views.timeline import timeline

#: Events and executions that are shown, unless more are asked for: the latest.
_SHOWN, _MAX_SHOWN = 200, 10_000
_DETAILS_BYTES = 4 * 1024
_PAYLOADS = ("data", "result", "checkpoint")


def read(bus: CommandBus, query: Query) -> object:
    domain = check_name("domain", query.part(0, "the domain"))
    command_id = query.uuid_part(1, "the id")
    most = query.whole("events", _SHOWN, 1, _MAX_SHOWN)
    if not bus.rights().reads_data:
        return _restricted(bus, domain, command_id)
    record = bus.get(domain, command_id)
    if record is None:
        raise CommandNotFoundError(domain, command_id)
    audit = bus.audit(domain, command_id)
    runs = executions(record, audit)
    return {
        **_fields(record),
        "data": payload_of(record.data),
        "result": payload_of(record.result) if record.status is Status.COMPLETED else None,
        "checkpoint": None if record.checkpoint is None else payload_of(record.checkpoint),
        "why": bus.explain(domain, command_id),
        "timeline": timeline(record, runs, audit, datetime.now(UTC))[-most:],
        "executions": [value_of(run) for run in runs[-most:]],
        "executions_left_out": max(0, len(runs) - most),
        "audit": [_event(event, n) for n, event in enumerate(audit)][-most:],
        "audit_left_out": max(0, len(audit) - most),
        "links": _links(bus, record),
        "restricted": False,
    }


def _restricted(bus: CommandBus, domain: str, command_id: UUID) -> dict[str, Any]:
    """Without what the role may not read: payloads, headers, messages, keys and the audit trail."""
    found = bus.search(domain, command_id=command_id).commands
    if not found:
        raise CommandNotFoundError(domain, command_id)
    [record] = found
    absent = dict.fromkeys((*_PAYLOADS, "headers", "timeline", "executions", "audit", "links"))
    fields = {name: getattr(record, name) for name in FoundCommand.__slots__}
    return {**absent, **fields, "why": bus.explain(domain, command_id), "restricted": True}


def _fields(record: CommandRecord) -> dict[str, Any]:
    names = (name for name in CommandRecord.__slots__ if name not in _PAYLOADS)
    return {name: getattr(record, name) for name in names}


def _event(event: AuditEvent, number: int) -> dict[str, Any]:
    """`number` is its place in the whole trail, and `change` what a retry did to the data."""
    names = (name for name in AuditEvent.__slots__ if name != "details")
    details, change = event.details, None
    if event.kind == "OPERATOR_RETRY" and isinstance(details, dict):
        change = {
            "before": payload_of(details.get("data_before"), _DETAILS_BYTES),
            "after": payload_of(details.get("data"), _DETAILS_BYTES),
        }
        details = None
    return {
        "number": number,
        **{name: getattr(event, name) for name in names},
        "details": None if details is None else payload_of(details, _DETAILS_BYTES),
        "change": change,
    }


def _links(bus: CommandBus, record: CommandRecord) -> dict[str, Any]:
    """The batch and the process that it belongs to: the commands of a process have its id as
    correlation id."""
    batch = None if record.batch_id is None else bus.get_batch(record.batch_id)
    process = bus.get_process(record.correlation_id)
    return {
        "batch": batch
        and {
            name: getattr(batch, name)
            for name in ("batch_id", "domain", "name", "status", "total", "remaining")
        },
        "process": process
        and {
            name: getattr(process, name)
            for name in ("process_id", "domain", "type", "status", "step")
        },
        "reply_to": record.reply_to,
    }
