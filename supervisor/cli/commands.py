"""`cmdbus send`, `get` and `list`: commands, and what became of them."""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from cmdbus.counting import count_of
from cmdbus.errors import CommandNotFoundError
from cmdbus.supervisor.cli import parameters
from cmdbus.supervisor.cli.options import parsed
from cmdbus.supervisor.cli.output import (
    ago,
    data_text,
    moment,
    show,
    show_json,
    show_lines,
)
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
@click.option("--priority", default="normal", show_default=True, help="high, normal, low or 0-10.")
@click.option(
    "--delay",
    metavar="TIME",
    callback=parsed(parameters.span),
    help="Not before so long: seconds, or like 5m, 2h.",
)
@click.option(
    "--run-at",
    metavar="TIME",
    callback=parsed(parameters.moment),
    help="Not before: like 2026-12-31T08:00:00+01:00.",
)
@click.option("--id", "command_id", metavar="UUID", help="An id of your own; taken once.")
@click.option("--correlation-id", metavar="UUID", help="Follows the command everywhere.")
@click.option("--reply-to", metavar="DOMAIN", help="Where its reply is sent to.")
@click.option("--max-attempts", type=int, metavar="N", help="Executions until a person decides.")
@with_bus
def send(
    bus: "CommandBus",
    as_json: bool,
    domain: str,
    type_: str,
    data: object,
    priority: str,
    delay: timedelta | None,
    **more: Any,
) -> None:
    level = parameters.priority(priority)
    id_ = bus.send(domain, type_, data, priority=level, delay=delay, **more)
    if as_json:
        show_json({"domain": domain, "type": type_, "command_id": id_})
    else:
        show(str(id_))


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
def get(bus: "CommandBus", as_json: bool, domain: str, command_id: str) -> None:
    record = bus.get(domain, command_id)
    if record is None:
        raise CommandNotFoundError(domain, UUID(command_id))
    audit = bus.audit(domain, command_id)
    if as_json:
        show_json({**asdict(record), "audit": [asdict(event) for event in audit]})
        return
    show_lines(_lines(record))
    show_lines(["", "audit"])
    for event in audit:
        show_lines(f"  {line}" for line in str(event).split("\n"))


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
@click.option("--domain", metavar="DOMAIN", help="Only of this domain.")
@click.option("--type", "type_", metavar="TYPE", help="Only of this type.")
@click.option("--status", metavar="STATUS", help="Only in this status, like PENDING.")
@click.option(
    "--since", metavar="TIME", callback=parsed(parameters.past), help="Sent since; like 2h: ago."
)
@click.option("--until", metavar="TIME", callback=parsed(parameters.past), help="Sent before.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True)
@click.option("--offset", type=click.IntRange(0), default=0)
@with_bus
def list_(
    bus: "CommandBus",
    as_json: bool,
    in_domain: str | None,
    domain: str | None,
    type_: str | None,
    status: str | None,
    limit: int,
    offset: int,
    **period: Any,
) -> None:
    domain = one_domain(in_domain, domain)
    status = None if status is None else status.upper()
    # One more than is shown says whether there are more.
    found = bus.query(domain, status, type_, limit=limit + 1, offset=offset, **period)
    shown = found[:limit]
    if as_json:
        commands = [asdict(record) for record in shown]
        show_json({"commands": commands, "more": len(found) > limit})
        return
    for record in shown:
        show(_row(record))
    if len(found) > limit:
        show(f"{count_of(limit)} shown, and there are more: --limit and --offset")
    elif not shown:
        show("no command meets these conditions" if not offset else "no more commands")


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
