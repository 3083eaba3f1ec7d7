"""`cmdbus send`, `get` and `list`: commands, and what became of them."""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from cmdbus.counting import count_of
from cmdbus.errors import CommandNotFoundError
from cmdbus.supervisor.cli import parameters
from cmdbus.supervisor.cli.options import option, page_options, parsed
from cmdbus.supervisor.cli.output import Shown, ago, audit_lines, data_text, moment
from cmdbus.supervisor.cli.session import one_domain, with_bus

if TYPE_CHECKING:
    from cmdbus.producer.bus import CommandBus
    from cmdbus.producer.records import CommandRecord


@click.command(
    help="""Send a command, and print its id.

    DATA is JSON: as it stands, - for standard input, or @FILE.

    \b
    Examples:
      cmdbus send payments DebitAccount '{"account_id": 1, "amount": 5}'
      cmdbus send reports Build @order.json --priority low --delay 2h
      jq .order db.json | cmdbus send orders Ship -
    """,
)
@click.argument("domain")
@click.argument("type_", metavar="TYPE")
@click.argument("data", metavar="[DATA|-|@FILE]", callback=parsed(parameters.data), required=False)
@option(
    "--priority", parse=parameters.priority, default="normal", help="high, normal, low or 0-10."
)
@option(
    "--delay",
    metavar="TIME",
    parse=parameters.span,
    help="Not before so long: seconds, or like 5m, 2h.",
)
@option(
    "--run-at",
    metavar="TIME",
    parse=parameters.moment,
    help="Not before: like 2026-12-31T08:00:00+01:00.",
)
@option("--id", "command_id", metavar="UUID", help="An id of your own; taken once.")
@option("--correlation-id", metavar="UUID", help="Follows the command everywhere.")
@option("--reply-to", metavar="DOMAIN", help="Where its reply is sent to.")
@option("--max-attempts", type=int, metavar="N", help="Executions until a person decides.")
@with_bus
def send(bus: "CommandBus", domain: str, type_: str, data: object, **more: Any) -> Shown:
    id_ = bus.send(domain, type_, data, **more)
    return {"domain": domain, "type": type_, "command_id": id_}, [str(id_)]


@click.command(
    help="""Show a command, and everything that happened to it.

    \b
    Examples:
      cmdbus get payments 01a1ef5a-0994-8c8f-a75a-06db62dbaa94
      cmdbus get payments 01a1ef5a-0994-8c8f-a75a-06db62dbaa94 --json | jq .status
    """,
)
@click.argument("domain")
@click.argument("command_id", metavar="ID")
@with_bus
def get(bus: "CommandBus", domain: str, command_id: str) -> Shown:
    record = bus.get(domain, command_id)
    if record is None:
        raise CommandNotFoundError(domain, UUID(command_id))
    audit = bus.audit(domain, command_id)
    return {**asdict(record), "audit": audit}, chain(_lines(record), audit_lines(audit))


@click.command(
    "list",
    help="""List commands, the last sent first.

    \b
    Examples:
      cmdbus list payments --status PENDING --since 2h
      cmdbus list --type DebitAccount --limit 100 --json | jq -r .commands[].command_id
    """,
)
@click.argument("in_domain", metavar="[DOMAIN]", required=False)
@option("--domain", metavar="DOMAIN", help="Only of this domain.")
@option("--type", metavar="TYPE", help="Only of this type.")
@option("--status", metavar="STATUS", help="Only in this status, like PENDING.")
@option("--since", metavar="TIME", parse=parameters.past, help="Sent since; like 2h: ago.")
@option("--until", metavar="TIME", parse=parameters.past, help="Sent before.")
@page_options
@with_bus
def list_(
    bus: "CommandBus",
    in_domain: str | None,
    domain: str | None,
    status: str | None,
    limit: int,
    offset: int,
    **conditions: Any,
) -> Shown:
    domain = one_domain(in_domain, domain)
    status = None if status is None else status.upper()
    # One more than is shown says whether there are more.
    found = bus.query(domain, status, limit=limit + 1, offset=offset, **conditions)
    shown, more = found[:limit], len(found) > limit
    lines = [_row(record) for record in shown]
    if more:
        lines.append(f"{count_of(limit)} shown, and there are more: --limit and --offset")
    elif not shown:
        lines.append("no more commands" if offset else "no command meets these conditions")
    return {"commands": shown, "more": more}, lines


def _row(record: "CommandRecord") -> str:
    when = ago(record.created_at)
    line = f"{record.command_id}  {record.status.value:<11}  {when:>8}"
    line = f"{line}  {record.domain}/{record.type}"
    return f"{line}  {record.error_code}" if record.error_code is not None else line


def _lines(record: "CommandRecord") -> Iterator[str]:
    yield f"{record.domain}/{record.type}  {record.command_id}  {record.status}"
    for name, value in _facts(record):
        if value is not None:
            yield f"  {name:<14}  {value}"


def _facts(record: "CommandRecord") -> Iterator[tuple[str, object]]:
    most = f" of {record.max_attempts}" if record.max_attempts is not None else ""
    yield "attempts", f"{record.attempts}{most}"
    if record.error_code is not None:
        yield "error", f"{record.error_code}: {record.error_message}"
    yield "priority", record.priority
    yield "correlation id", record.correlation_id
    yield "reply to", record.reply_to
    yield "sent", _when(record.created_at)
    yield "due", _when(record.due_at) if record.due_at != record.created_at else None
    yield "started", _when(record.started_at)
    yield "finished", _when(record.finished_at)
    yield "worker", record.worker
    yield "data", data_text(record.data)
    yield "result", data_text(record.result) if record.finished_at else None


def _when(time: datetime | None) -> str | None:
    return None if time is None else f"{moment(time)}  ({ago(time)})"
