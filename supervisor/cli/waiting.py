"""`cmdbus cancel` and `reschedule`: what is done to commands that wait."""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from cmdbus.counting import count_of
from cmdbus.supervisor.cli import parameters
from cmdbus.supervisor.cli.operators import operator_option, reason_option
from cmdbus.supervisor.cli.options import parsed
from cmdbus.supervisor.cli.output import moment, show, show_json
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
@click.option("--reason", metavar="TEXT", help="Why, for the audit trail and the reply.")
@click.option("--running", is_flag=True, help="Also if it is in progress.")
@click.option("--all", "every", is_flag=True, help="All that wait in the domain.")
@click.option("--type", "type_", metavar="TYPE", help="With --all: only of this type.")
@click.option(
    "--since", metavar="TIME", callback=parsed(parameters.past), help="With --all: sent since."
)
@click.option(
    "--until", metavar="TIME", callback=parsed(parameters.past), help="With --all: sent before."
)
@click.option("--yes", is_flag=True, help="With --all: do not ask.")
@operator_option
@with_bus
def cancel(
    bus: "CommandBus",
    as_json: bool,
    domain: str,
    command_id: str | None,
    reason: str | None,
    running: bool,
    every: bool,
    yes: bool,
    operator: str,
    **conditions: Any,
) -> None:
    if every == (command_id is not None):
        raise UsageProblem("name a command by DOMAIN and ID, or cancel all of a domain with --all")
    if command_id is not None:
        if yes or any(value is not None for value in conditions.values()):
            raise UsageProblem(
                "--type, --since, --until and --yes go with --all, and not with an ID"
            )
        bus.cancel(domain, command_id, reason=reason, running=running, operator=operator)
        if as_json:
            show_json({"domain": domain, "command_id": command_id, "status": "CANCELED"})
        else:
            show(f"canceled {domain} {command_id}")
        return
    if running:
        raise UsageProblem("--running goes with an ID: --all cancels only what waits")
    _cancel_all(bus, as_json, domain, yes, {"operator": operator, "reason": reason}, **conditions)


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
@click.option("--now", is_flag=True, help="As soon as a worker is free.")
@click.option(
    "--at",
    "run_at",
    metavar="TIME",
    callback=parsed(parameters.moment),
    help="Not before: like 2026-12-31T08:00:00+01:00.",
)
@click.option(
    "--delay",
    metavar="TIME",
    callback=parsed(parameters.span),
    help="Not before this time from now has passed: seconds, or like 5m, 2h.",
)
@click.option(
    "--priority",
    metavar="LEVEL",
    callback=parsed(parameters.priority),
    help="high, normal, low or 0-10.",
)
@reason_option
@operator_option
@with_bus
def reschedule(
    bus: "CommandBus",
    as_json: bool,
    domain: str,
    command_id: str,
    now: bool,
    run_at: datetime | None,
    delay: timedelta | None,
    priority: str | int | None,
    **remark: Any,
) -> None:
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
    if as_json:
        due, level = (None, None) if record is None else (record.due_at, record.priority)
        show_json({"domain": domain, "command_id": command_id, "due_at": due, "priority": level})
    elif record is None:
        show(f"rescheduled {domain} {command_id}")
    else:
        due_at = moment(record.due_at)
        show(f"rescheduled {domain} {command_id}: due {due_at}, priority {record.priority}")


def _cancel_all(
    bus: "CommandBus",
    as_json: bool,
    domain: str,
    yes: bool,
    remark: dict[str, Any],
    *,
    type_: str | None,
    **period: Any,
) -> None:
    if not yes:
        waiting = bus.count_waiting(domain, type_, **period)
        named = {"type": type_, **period}
        those = "".join(f", {key} {value}" for key, value in named.items() if value is not None)
        confirm("cancel", "canceled", waiting, f"domain {domain}{those}")
    canceled = bus.cancel_all(domain, type_, **period, **remark)
    if as_json:
        show_json({"canceled": canceled})
    else:
        show(f"canceled {count_of(canceled)}")
