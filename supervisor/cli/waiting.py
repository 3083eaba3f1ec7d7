"""`cmdbus cancel` and `reschedule`: what is done to commands that wait."""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from cmdbus.counting import count_of
from cmdbus.supervisor.cli import parameters
from cmdbus.supervisor.cli.options import audit_options, operator_option, option
from cmdbus.supervisor.cli.output import Shown, moment
from cmdbus.supervisor.cli.session import UsageProblem, confirm, with_bus

if TYPE_CHECKING:
    from cmdbus.producer.bus import CommandBus


@click.command(
    help="""Cancel a command that waits, or all of a domain; with --running also one in progress.

    A handler that runs is not interrupted, but nothing that it writes through its
    context's connection lands. What is in the troubleshooting queue is canceled
    there: cmdbus tsq cancel.

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
@option("--since", metavar="TIME", parse=parameters.past, help="With --all: sent since.")
@option("--until", metavar="TIME", parse=parameters.past, help="With --all: sent before.")
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
                "--type, --since, --until and --yes go with --all, and not with an ID"
            )
        bus.cancel(domain, command_id, reason=reason, running=running, operator=operator)
        result = {"domain": domain, "command_id": command_id, "status": "CANCELED"}
        return result, [f"canceled {domain} {command_id}"]
    if running:
        raise UsageProblem("--running goes with an ID: --all cancels only what waits")
    if not yes:
        those = "".join(f", {name} {value}" for name, value in conditions.items())
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
@option(
    "--at",
    "run_at",
    metavar="TIME",
    parse=parameters.moment,
    help="Not before: like 2026-12-31T08:00:00+01:00.",
)
@option(
    "--delay",
    metavar="TIME",
    parse=parameters.span,
    help="Not before this time from now has passed: seconds, or like 5m, 2h.",
)
@option("--priority", metavar="LEVEL", parse=parameters.priority, help="high, normal, low or 0-10.")
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
        line += f": due {moment(due)}, priority {level}"
    result = {"domain": domain, "command_id": command_id, "due_at": due, "priority": level}
    return result, [line]
