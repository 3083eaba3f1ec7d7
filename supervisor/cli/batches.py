"""`cmdbus batch`: batches, how far they have come, and their cancellation."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from cmdbus.clock import time
from cmdbus.counting import count_of
from cmdbus.errors import BatchNotFoundError
from cmdbus.supervisor.cli.options import (
    audit_options,
    option,
    page_options,
    status_option,
    time_option,
)
from cmdbus.supervisor.cli.output import (
    Shown,
    ago,
    audit_lines,
    command_rows,
    data_text,
    fact_lines,
    page,
    show_json,
    show_lines,
    table,
    when,
)
from cmdbus.supervisor.cli.parameters import past
from cmdbus.supervisor.cli.session import with_bus
from cmdbus.supervisor.cli.values import uuid

if TYPE_CHECKING:
    from cmdbus.producer.bus import CommandBus
    from cmdbus.producer.records import BatchRecord

#: Seconds between two reads with --watch.
_WATCH_SECONDS = 1.0
_BAR_WIDTH = 40
_COUNTERS = ("TOTAL", "COMPLETED", "FAILED", "CANCELED", "TROUBLE")
_HEAD = ("BATCH", "STATUS", "DOMAIN", "NAME", *_COUNTERS, "CREATED")


@click.group(help="Show and cancel batches: commands that are counted together.")
def batch() -> None:
    pass


@batch.command(
    "list",
    help="""List batches, the newest first.

    \b
    Examples:
      cmdbus batch list --status IN_PROGRESS
      cmdbus batch list --named March --since 30d --json | jq -r .batches[].batch_id
    """,
)
@status_option("IN_PROGRESS")
@option("--named", metavar="NAME", help="Only of this name.")
@time_option("--since", parse=past, help="Created since; like 2h: ago.")
@time_option("--until", parse=past, help="Created before.")
@page_options
@with_bus
def list_(
    bus: "CommandBus", named: str | None, limit: int, offset: int, **conditions: Any
) -> Shown:
    found = bus.list_batches(name=named, limit=limit + 1, offset=offset, **conditions)
    return page(found, limit, offset, _rows, "batch", "es")


@batch.command(
    help="""List the commands of a batch, the last sent first.

    \b
    Examples:
      cmdbus batch commands 01a1ef5a-0994-8cb5-a75a-06db62dbaa94 --status FAILED
    """,
)
@click.argument("batch_id", metavar="ID")
@status_option("FAILED")
@page_options
@with_bus
def commands(
    bus: "CommandBus", batch_id: str, status: str | None, limit: int, offset: int
) -> Shown:
    _read(bus, batch_id)
    found = bus.batch_commands(batch_id, status, limit + 1, offset)
    return page(found, limit, offset, command_rows)


@batch.command(
    help="""Show a batch, how far it has come, and what happened to it.

    \b
    Examples:
      cmdbus batch show 01a1ef5a-0994-8cb5-a75a-06db62dbaa94
      cmdbus batch show 01a1ef5a-0994-8cb5-a75a-06db62dbaa94 --watch
    """,
)
@click.argument("batch_id", metavar="ID")
@option("--watch", is_flag=True, help="Show it again every second, until it is over or Ctrl-C.")
@with_bus
def show(bus: "CommandBus", batch_id: str, watch: bool) -> Shown:
    record = _read(bus, batch_id)
    if watch:
        as_json = click.get_current_context().params["as_json"]
        with suppress(KeyboardInterrupt):
            while not record.status.terminal:
                if as_json:
                    show_json(asdict(record))
                else:
                    click.clear()
                    show_lines([*_lines(record), ""])
                time.sleep(_WATCH_SECONDS)
                record = _read(bus, batch_id)
        if not as_json:
            click.clear()
    audit = bus.batch_audit(batch_id)
    return {**asdict(record), "audit": audit}, chain(_lines(record), audit_lines(audit))


@batch.command(
    help="""Cancel the commands of a batch that wait; when the others have ended, it is CANCELED.

    Those in progress are not interrupted, and those in the troubleshooting queue wait for
    an operator as before.

    \b
    Examples:
      cmdbus batch cancel 01a1ef5a-0994-8cb5-a75a-06db62dbaa94 --reason "wrong prices"
    """,
)
@click.argument("batch_id", metavar="ID")
@audit_options
@with_bus
def cancel(bus: "CommandBus", batch_id: str, **remark: Any) -> Shown:
    bus.cancel_batch(batch_id, **remark)
    record = _read(bus, batch_id)
    left = f": {count_of(record.remaining)} to end before that" if record.remaining else ""
    state = "canceled" if record.status.terminal else "will be canceled"
    return asdict(record), [f"batch {record.batch_id} {state}{left}"]


def _read(bus: "CommandBus", batch_id: str) -> "BatchRecord":
    record = bus.get_batch(batch_id)
    if record is None:
        raise BatchNotFoundError(uuid(batch_id))
    return record


def _rows(records: "Sequence[BatchRecord]") -> list[str]:
    return table(_HEAD, map(_row, records), left=range(4))


def _row(record: "BatchRecord") -> tuple[object, ...]:
    return (
        record.batch_id,
        record.status,
        record.domain,
        "-" if record.name is None else record.name,
        record.total,
        record.completed,
        record.failed,
        record.canceled,
        record.in_troubleshooting,
        ago(record.created_at),
    )


def _lines(record: "BatchRecord") -> Iterator[str]:
    yield f"{record.domain}  {record.batch_id}  {record.status}"
    yield f"  {bar(record.total - record.remaining, record.total)}"
    yield from fact_lines(_facts(record))


def _facts(record: "BatchRecord") -> Iterator[tuple[str, object]]:
    yield "name", record.name
    yield "completed", f"{record.completed:,}"
    yield "failed", f"{record.failed:,}"
    yield "canceled", f"{record.canceled:,}"
    yield "in troubleshooting", f"{record.in_troubleshooting:,}"
    yield "remaining", f"{record.remaining:,}"
    yield "created", when(record.created_at)
    yield "started", when(record.started_at)
    yield "over", when(record.completed_at)
    yield "data", None if record.data is None else data_text(record.data)


def bar(done: int, total: int) -> str:
    """Full only at the end."""
    part = min(done / total, 1.0) if total else 1.0
    filled = int(part * _BAR_WIDTH)
    shown = "#" * filled + "." * (_BAR_WIDTH - filled)
    return f"[{shown}] {int(part * 100)} %  {done:,} of {total:,}"
