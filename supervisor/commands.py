"""`cmdbus send`, `get` and `cancel`: one command at a time."""

import getpass
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import click

from cmdbus.errors import CommandNotFoundError
from cmdbus.supervisor import parameters
from cmdbus.supervisor.output import ago, data_text, moment, show, show_json
from cmdbus.supervisor.parameters import parsed
from cmdbus.supervisor.session import with_bus

if TYPE_CHECKING:
    from cmdbus.bus import CommandBus
    from cmdbus.records import CommandRecord

F = TypeVar("F", bound=Callable[..., Any])


def login_name() -> str:
    """Who is at the keyboard; behind sudo, who called it."""
    if os.geteuid() == 0 and os.environ.get("SUDO_USER"):
        return os.environ["SUDO_USER"]
    with suppress(KeyError, OSError):
        return getpass.getuser()
    return f"uid {os.getuid()}"


def operator_option(command: F) -> F:
    return click.option(
        "--operator",
        metavar="NAME",
        default=login_name,
        show_default="your login name",
        envvar="CMDBUS_OPERATOR",
        show_envvar=True,
        help="Who decides this, for the audit trail.",
    )(command)


@click.command()
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
    """Send a command, and print its id.

    DATA is JSON: as it stands, - for standard input, or @FILE.

    \b
    Examples:
      cmdbus send payments DebitAccount '{"account_id": 1, "amount": 5}'
      cmdbus send reports Build @order.json --priority low --delay 2h
      jq .order db.json | cmdbus send orders Ship -
    """
    level = int(priority) if priority.isascii() and priority.isdecimal() else priority
    id_ = bus.send(domain, type_, data, priority=level, delay=delay, **more)
    if as_json:
        show_json({"domain": domain, "type": type_, "command_id": id_})
    else:
        show(str(id_))


@click.command()
@click.argument("domain")
@click.argument("command_id", metavar="ID")
@with_bus
def get(bus: "CommandBus", as_json: bool, domain: str, command_id: str) -> None:
    """Show a command, and everything that happened to it.

    \b
    Examples:
      cmdbus get payments 01a1ef5a-0994-8c8f-a75a-06db62dbaa94
      cmdbus get payments 01a1ef5a-0994-8c8f-a75a-06db62dbaa94 --json | jq .status
    """
    record = bus.get(domain, command_id)
    if record is None:
        raise CommandNotFoundError(domain, UUID(command_id))
    audit = bus.audit(domain, command_id)
    if as_json:
        show_json({**asdict(record), "audit": [asdict(event) for event in audit]})
        return
    show("\n".join(_lines(record)))
    show("\naudit")
    for event in audit:
        show("\n".join(f"  {line}" for line in str(event).splitlines()))


@click.command()
@click.argument("domain")
@click.argument("command_id", metavar="ID")
@click.option("--reason", metavar="TEXT", help="Why, for the audit trail and its reply.")
@click.option("--running", is_flag=True, help="Also if it is in progress.")
@operator_option
@with_bus
def cancel(
    bus: "CommandBus",
    as_json: bool,
    domain: str,
    command_id: str,
    reason: str | None,
    running: bool,
    operator: str,
) -> None:
    """Cancel a command that waits; with --running also one in progress.

    A handler that runs is not interrupted, but nothing that it writes through its
    context's connection lands. What is in the troubleshooting queue is canceled
    there: cmdbus tsq cancel.

    \b
    Examples:
      cmdbus cancel payments 01a1ef5a-0994-8c8f-a75a-06db62dbaa94 --reason "sent twice"
    """
    bus.cancel(domain, command_id, reason=reason, running=running, operator=operator)
    if as_json:
        show_json({"domain": domain, "command_id": command_id, "status": "CANCELED"})
    else:
        show(f"canceled {domain} {command_id}")


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
