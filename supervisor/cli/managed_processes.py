"""`cmdbus process`: processes of process managers, and their steps."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from cmdbus.errors import ProcessNotFoundError
from cmdbus.supervisor.cli.options import (
    audit_options,
    option,
    page_options,
    parsed,
    status_option,
    time_option,
)
from cmdbus.supervisor.cli.output import (
    Shown,
    age,
    ago,
    audit_lines,
    data_text,
    fact_lines,
    list_rows,
    page,
    shorten,
    table,
    when,
)
from cmdbus.supervisor.cli.parameters import data, past
from cmdbus.supervisor.cli.session import with_bus

if TYPE_CHECKING:
    from cmdbus.producer.bus import CommandBus
    from cmdbus.producer.process_records import ProcessRecord, ProcessStep

_STEPS_HEAD = ("", "STEP", "COMMAND", "SENT", "ATTEMPTS", "TOOK", "OUTCOME")
_WIDTH = 80
_process_id = click.argument("process_id", metavar="ID")


@click.group(help="Show and steer the processes of process managers.")
def process() -> None:
    pass


@process.command(
    "list",
    help="""List processes, the last started first.

    \b
    Examples:
      cmdbus process list --status WAITING_FOR_TSQ
      cmdbus process list --type Transfer --since 2h --json
    """,
)
@click.argument("domain", required=False)
@option("--type", metavar="TYPE", help="Only of this type.")
@status_option("WAITING_FOR_TSQ")
@time_option("--since", parse=past, help="Started since; like 2h: ago.")
@time_option("--until", parse=past, help="Started before.")
@page_options
@with_bus
def list_(bus: "CommandBus", limit: int, offset: int, **conditions: Any) -> Shown:
    found = bus.query_processes(limit=limit + 1, offset=offset, **conditions)
    return page(found, limit, offset, _rows, "process", "es")


@process.command(
    help="""Show a process: its state, its steps, and everything that happened to it.

    A step that undoes another one has that one's number, with a minus. One that is
    awaited has the status of its command: COMPLETED if the manager has not taken the
    reply yet.

    \b
    Examples:
      cmdbus process show 01a1ef5a-0994-8c8f-a75a-06db62dbaa94
    """,
)
@_process_id
@with_bus
def show(bus: "CommandBus", process_id: str) -> Shown:
    record = bus.get_process(process_id)
    if record is None:
        raise ProcessNotFoundError(UUID(process_id))
    steps, audit = bus.process_steps(process_id), bus.process_audit(process_id)
    lines = chain(_lines(record), _drawn(steps), audit_lines(audit))
    return {**asdict(record), "steps": steps, "audit": audit}, lines


@process.command(
    help="""Cancel a process: what it awaits is canceled, and its completed steps are undone.

    \b
    Examples:
      cmdbus process cancel 01a1ef5a-0994-8c8f-a75a-06db62dbaa94 --reason "wrong account"
    """,
)
@_process_id
@audit_options
@with_bus
def cancel(bus: "CommandBus", process_id: str, **remark: Any) -> Shown:
    bus.cancel_process(process_id, **remark)
    return _done(bus, process_id, f"canceled {process_id}: workers undo its completed steps")


@process.command(
    help="""Let a process that waits for an operator go on.

    The command that it awaits leaves the troubleshooting queue, or compensations that
    have failed are sent again.

    \b
    Examples:
      cmdbus process retry 01a1ef5a-0994-8c8f-a75a-06db62dbaa94
    """,
)
@_process_id
@audit_options
@with_bus
def retry(bus: "CommandBus", process_id: str, **remark: Any) -> Shown:
    bus.retry_process(process_id, **remark)
    return _done(bus, process_id, f"retried {process_id}")


@process.command(
    help="""Send a process a signal, which its manager gets.

    DATA is JSON: as it stands, - for standard input, or @FILE.

    \b
    Examples:
      cmdbus process signal 01a1ef5a-0994-8c8f-a75a-06db62dbaa94 approved '{"by": "ann"}'
    """,
)
@_process_id
@click.argument("signal_name", metavar="SIGNAL")
@click.argument("signal_data", metavar="[DATA|-|@FILE]", callback=parsed(data), required=False)
@audit_options
@with_bus
def signal(
    bus: "CommandBus", process_id: str, signal_name: str, signal_data: object, **remark: Any
) -> Shown:
    bus.signal_process(process_id, signal_name, signal_data, **remark)
    return _done(bus, process_id, f"signaled {process_id}: {signal_name}")


def _done(bus: "CommandBus", process_id: str, line: str) -> Shown:
    record = bus.get_process(process_id)
    return {"process_id": process_id, "status": record and record.status}, [line]


def _rows(records: "Sequence[ProcessRecord]") -> list[str]:
    return list_rows(records, lambda r: r.process_id, lambda r: r.step)


def _lines(record: "ProcessRecord") -> Iterator[str]:
    yield f"{record.domain}/{record.type}  {record.process_id}  {record.status}"
    yield from fact_lines(_facts(record))


def _facts(record: "ProcessRecord") -> Iterator[tuple[str, object]]:
    yield "step", record.step
    yield "error", record.error
    yield "started", when(record.created_at)
    yield "updated", when(record.updated_at)
    yield "finished", when(record.finished_at)
    yield "state", data_text(record.state)


def _drawn(steps: "list[ProcessStep]") -> Iterator[str]:
    if steps:
        yield ""
        yield from table(_STEPS_HEAD, map(_cells, steps), left=(0, 1, 2, 3, 6))


def _cells(step: "ProcessStep") -> tuple[object, ...]:
    took = (step.received_at or datetime.now(UTC)) - step.sent_at
    outcome = step.outcome or f"awaited, {step.command_status or 'its history is gone'}"
    if step.error is not None:
        outcome = shorten(f"{outcome}: {step.error.removeprefix(f'{outcome}: ')}", _WIDTH)
    return (
        step.number if step.undoes is None else -step.undoes,
        step.step,
        f"{step.domain}/{step.type}",
        ago(step.sent_at),
        "-" if step.attempts is None else step.attempts,
        age(took.total_seconds()),
        outcome,
    )
