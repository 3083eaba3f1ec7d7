"""`cmdbus send`, `get`, `cancel` and `reschedule`: commands, and what becomes of them."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from cmdbus.counting import count_of
from cmdbus.errors import CommandNotFoundError
from cmdbus.supervisor.cli.options import (
    audit_options,
    operator_option,
    option,
    parsed,
    time_option,
)
from cmdbus.supervisor.cli.output import (
    Shown,
    audit_lines,
    data_text,
    fact_lines,
    timestamp,
    when,
)
from cmdbus.supervisor.cli.parameters import (
    data,
    expiry,
    header,
    moment,
    past,
    priority,
    span,
    unique_until,
)
from cmdbus.supervisor.cli.session import UsageProblem, confirm, with_bus
from cmdbus.supervisor.cli.values import uuid

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
      cmdbus send reports Daily --unique daily-report-7 --on-conflict existing
      cmdbus send orders Ship @order.json --header tenant=blue
    """,
)
@click.argument("domain")
@click.argument("type_", metavar="TYPE")
@click.argument("data", metavar="[DATA|-|@FILE]", callback=parsed(data), required=False)
@option("--priority", parse=priority, default="normal", help="high, normal, low or 0-10.")
@time_option(
    "--delay", parse=span, help="Not before this time has passed: seconds, or like 5m, 2h."
)
@time_option("--run-at", parse=moment, help="Not before: like 2026-12-31T08:00:00+01:00.")
@option("--id", "command_id", metavar="UUID", parse=uuid, help="An id of your own; taken once.")
@option("--correlation-id", metavar="UUID", parse=uuid, help="Follows the command everywhere.")
@option("--reply-to", metavar="DOMAIN", help="Where its reply is sent to.")
@option("--max-attempts", type=int, metavar="N", help="Executions until an operator decides.")
@option("--key", metavar="TEXT", help="For limits that count by it, such as a customer's name.")
@option("--unique", metavar="TEXT", help="A key that one command of the domain has at a time.")
@option(
    "--on-conflict",
    default="reject",
    metavar="ACTION",
    help="If a command has that key: reject, existing (print its id) or replace.",
)
@time_option(
    "--unique-until",
    parse=unique_until,
    default="finished",
    help="Until when it has the key: finished, started, or seconds from now, like 5m, 2h.",
)
@time_option(
    "--expires",
    parse=expiry,
    help="Canceled if it has not started by then: seconds, like 5m, 2h, or a time as above.",
)
@option(
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    parse=header,
    help="A text beside the data, such as tenant=blue; may be given several times.",
)
@with_bus
def send(
    bus: "CommandBus",
    domain: str,
    type_: str,
    data: object,
    headers: Sequence[tuple[str, str]],
    **more: Any,
) -> Shown:
    by_name = dict(headers)
    if len(by_name) < len(headers):
        raise UsageProblem("--header has one name twice: a name has one value")
    id_ = bus.send(domain, type_, data, headers=by_name, **more)
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
    why = None if record.status.terminal else bus.explain(domain, command_id)
    lines = chain(_lines(record, why), audit_lines(audit))
    return {**asdict(record), "why": why, "audit": audit}, lines


@click.command(
    help="""Cancel a command that waits, or all of a domain; with --running also one in progress.

    A handler that runs is not interrupted, but nothing that it writes through its
    context's connection lands. For commands in the troubleshooting queue there is
    cmdbus tsq cancel.

    \b
    Examples:
      cmdbus cancel payments 01a1ef5a-0994-8c8f-a75a-06db62dbaa94 --reason "sent twice"
      cmdbus cancel payments --all --type Reminder --since 2h --reason "wrong template"
    """,
)
@click.argument("domain")
@click.argument("command_id", metavar="[ID]", required=False)
@option("--reason", metavar="TEXT", help="Why, for the audit trail and the reply.")
@option("--running", is_flag=True, help="Also if it is in progress.")
@option("--all", "every", is_flag=True, help="All that wait in the domain.")
@option("--type", metavar="TYPE", help="With --all: only of this type.")
@option("--key", metavar="TEXT", help="With --all: only with this key.")
@time_option("--since", parse=past, help="With --all: sent since.")
@time_option("--until", parse=past, help="With --all: sent before.")
@option("--yes", is_flag=True, help="With --all: do not ask.")
@operator_option
@with_bus
def cancel(
    bus: "CommandBus",
    domain: str,
    command_id: str | None,
    reason: str | None,
    running: bool,
    every: bool,
    yes: bool,
    operator: str,
    **given: Any,
) -> Shown:
    if every == (command_id is not None):
        raise UsageProblem("name a command by DOMAIN and ID, or cancel all of a domain with --all")
    conditions = {name: value for name, value in given.items() if value is not None}
    if command_id is not None:
        if yes or conditions:
            raise UsageProblem(
                "--type, --key, --since, --until and --yes go with --all, and not with an ID"
            )
        bus.cancel(domain, command_id, reason=reason, running=running, operator=operator)
        result = {"domain": domain, "command_id": command_id, "status": "CANCELED"}
        return result, [f"canceled {domain} {command_id}"]
    if running:
        raise UsageProblem("--running goes with an ID: --all cancels only what waits")
    if not yes:
        those = "".join(f", {name} {value}" for name, value in conditions.items())
        # More may be sent before the answer.
        for newest in bus.query(domain, "PENDING", limit=1, **conditions):
            conditions["until"] = newest.created_at + timedelta(microseconds=1)
        waiting = bus.count_waiting(domain, **conditions)
        confirm("cancel", "canceled", waiting, f"domain {domain}{those}")
    canceled = bus.cancel_all(domain, **conditions, operator=operator, reason=reason)
    return {"canceled": canceled}, [f"canceled {count_of(canceled)}"]


@click.command(
    help="""Give a command that waits another time, another priority, or both.

    Also one that waits for its next attempt; its attempts stay.

    \b
    Examples:
      cmdbus reschedule payments 01a1ef5a-0994-8c8f-a75a-06db62dbaa94 --now
      cmdbus reschedule payments 01a1ef5a-0994-8c8f-a75a-06db62dbaa94 --delay 2h --priority low
    """,
)
@click.argument("domain")
@click.argument("command_id", metavar="ID")
@option("--now", is_flag=True, help="As soon as a worker is free.")
@time_option("--at", "run_at", parse=moment, help="Not before: like 2026-12-31T08:00:00+01:00.")
@time_option(
    "--delay", parse=span, help="Not before this time has passed: seconds, or like 5m, 2h."
)
@option("--priority", metavar="LEVEL", parse=priority, help="high, normal, low or 0-10.")
@audit_options
@with_bus
def reschedule(
    bus: "CommandBus",
    domain: str,
    command_id: str,
    now: bool,
    run_at: datetime | None,
    delay: timedelta | None,
    priority: str | int | None,
    **remark: Any,
) -> Shown:
    times = sum((now, run_at is not None, delay is not None))
    if times > 1:
        raise UsageProblem("--now, --at and --delay each give a time: give one of them")
    if not times and priority is None:
        raise UsageProblem(
            "nothing is to be changed: give a time (--now, --at or --delay) or --priority"
        )
    delay = timedelta(0) if now else delay
    bus.reschedule(domain, command_id, run_at=run_at, delay=delay, priority=priority, **remark)
    record = bus.get(domain, command_id)
    due, level = (record.due_at, record.priority) if record else (None, None)
    line = f"rescheduled {domain} {command_id}"
    if due is not None:
        line += f": due {timestamp(due)}, priority {level}"
    result = {"domain": domain, "command_id": command_id, "due_at": due, "priority": level}
    return result, [line]


def _lines(record: "CommandRecord", why: str | None) -> Iterator[str]:
    yield f"{record.domain}/{record.type}  {record.command_id}  {record.status}"
    yield from fact_lines(_facts(record, why))


def _facts(record: "CommandRecord", why: str | None) -> Iterator[tuple[str, object]]:
    yield "why", why
    most = f" of {record.max_attempts}" if record.max_attempts is not None else ""
    yield "attempts", f"{record.attempts}{most}"
    if record.error_code is not None:
        yield "error", ": ".join(filter(None, (record.error_code, record.error_message)))
    yield "priority", record.priority
    yield "correlation id", record.correlation_id
    yield "reply to", record.reply_to
    yield "batch", record.batch_id
    yield "key", record.key
    yield "unique key", record.unique_key
    for name, value in record.headers.items():
        yield "header", f"{name}={value}"
    yield "sent", when(record.created_at)
    yield "due", when(record.due_at) if record.due_at != record.created_at else None
    yield "expires", when(record.expires_at)
    yield "started", when(record.started_at)
    yield "finished", when(record.finished_at)
    yield "worker", record.worker
    yield "data", data_text(record.data)
    yield "checkpoint", None if record.checkpoint is None else data_text(record.checkpoint)
    yield "result", data_text(record.result) if record.finished_at else None
