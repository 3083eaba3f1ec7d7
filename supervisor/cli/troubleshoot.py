"""`cmdbus tsq`: commands that failed for good and wait for an operator."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cmdbus.counting import count_of
from cmdbus.supervisor.cli.operators import operator_option, reason_option
from cmdbus.supervisor.cli.options import parsed
from cmdbus.supervisor.cli.output import ago, shorten, show, show_json, show_lines, table
from cmdbus.supervisor.cli.parameters import data, past
from cmdbus.supervisor.cli.session import UsageProblem, confirm, one_domain, with_bus

if TYPE_CHECKING:
    from cmdbus.producer.bus import CommandBus
    from cmdbus.producer.records import TroubleRecord

F = TypeVar("F", bound=Callable[..., Any])

_WIDTH = 80
_FILTERS = ("domain", "type", "error_code", "since", "until")


@click.group(help="Decide about commands in the troubleshooting queue.")
def tsq() -> None:
    pass


def _filters(command: F) -> F:
    for option in (
        click.option("--until", metavar="TIME", callback=parsed(past), help="Came there before."),
        click.option(
            "--since", metavar="TIME", callback=parsed(past), help="Came there since; like 2h: ago."
        ),
        click.option("--error-code", metavar="CODE", help="Only with this error."),
        click.option("--type", "type_", metavar="TYPE", help="Only of this type."),
        click.option("--domain", "in_domain", metavar="DOMAIN", help="Only of this domain."),
    ):
        command = option(command)
    return command


def _targets(command: F) -> F:
    """DOMAIN and IDs, or --all with filters; and the operator."""
    for option in (
        operator_option,
        reason_option,
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--limit", type=click.IntRange(1), help="With --all: the oldest, up to N."),
        _filters,
        click.option("--all", "every", is_flag=True, help="All that the filters leave."),
        click.argument("command_ids", metavar="[ID]...", nargs=-1),
        click.argument("domain", required=False),
    ):
        command = option(command)
    return command


@tsq.command(
    "list",
    help="""Show what waits for an operator, the latest first.

    \b
    Examples:
      cmdbus tsq list
      cmdbus tsq list payments --error-code TIMEOUT --since 2h
    """,
)
@click.argument("domain", required=False)
@_filters
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True)
@click.option("--offset", type=click.IntRange(0), default=0)
@with_bus
def list_(bus: "CommandBus", as_json: bool, limit: int, offset: int, **filters: Any) -> None:
    conditions = _conditions(**filters)
    total = bus.troubleshooting.count(**conditions)
    found = bus.troubleshooting.list(**conditions, limit=limit, offset=offset)
    if as_json:
        show_json({"total": total, "commands": [asdict(record) for record in found]})
        return
    for record in found:
        show_lines(_lines(record))
    if len(found) < total:
        show(f"{len(found)} of {count_of(total)}; more with --limit and --offset")
    elif not total:
        show("nothing waits for an operator")


@tsq.command(
    help="""Count what waits for an operator by domain, type and error, the most frequent first.

    \b
    Examples:
      cmdbus tsq summary --since 1d
    """,
)
@click.argument("domain", required=False)
@_filters
@with_bus
def summary(bus: "CommandBus", as_json: bool, **filters: Any) -> None:
    found = bus.troubleshooting.summary(**_conditions(**filters))
    if as_json:
        show_json({"errors": [asdict(each) for each in found]})
    elif found:
        rows = (
            (f"{each.domain}/{each.type}", each.error_code, each.count, ago(each.last_failed_at))
            for each in found
        )
        show_lines(table(("COMMAND", "ERROR", "COUNT", "LATEST"), rows, left=2))
    else:
        show("nothing waits for an operator")


@tsq.command(
    help="""Let commands run again, as if they had never been tried.

    \b
    Examples:
      cmdbus tsq retry payments 01a1ef5a-0994-8c8f-a75a-06db62dbaa94
      cmdbus tsq retry payments --all --error-code TIMEOUT --limit 10
    """,
)
@_targets
@with_bus
def retry(bus: "CommandBus", as_json: bool, **resolution: Any) -> None:
    queue = bus.troubleshooting
    _resolve(bus, as_json, ("retry", "retried"), queue.retry, queue.retry_all, **resolution)


@tsq.command(
    help="""End commands as CANCELED; the reply, if one was asked for, has the reason.

    \b
    Examples:
      cmdbus tsq cancel payments 01a1ef5a-0994-8c8f-a75a-06db62dbaa94 --reason "sent twice"
      cmdbus tsq cancel --all --type Reminder --until 2026-12-01T00:00Z --yes
    """,
)
@_targets
@with_bus
def cancel(bus: "CommandBus", as_json: bool, **resolution: Any) -> None:
    queue = bus.troubleshooting
    _resolve(bus, as_json, ("cancel", "canceled"), queue.cancel, queue.cancel_all, **resolution)


@tsq.command(
    help="""End commands as COMPLETED, because their work was done by other means.

    \b
    Examples:
      cmdbus tsq complete payments 01a1ef5a-0994-8c8f-a75a-06db62dbaa94 --result '{"paid": true}'
    """,
)
@click.option(
    "--result", metavar="JSON", callback=parsed(data), help="JSON, -, or @FILE; sent as the reply."
)
@_targets
@with_bus
def complete(bus: "CommandBus", as_json: bool, result: object, **resolution: Any) -> None:
    queue, verbs = bus.troubleshooting, ("complete", "completed")
    _resolve(bus, as_json, verbs, queue.complete, queue.complete_all, result=result, **resolution)


def _resolve(
    bus: "CommandBus",
    as_json: bool,
    verbs: tuple[str, str],
    one: Callable[..., None],
    many: Callable[..., int],
    *,
    domain: str | None,
    command_ids: tuple[str, ...],
    every: bool,
    limit: int | None,
    yes: bool,
    in_domain: str | None,
    type_: str | None,
    error_code: str | None,
    since: Any,
    until: Any,
    **resolution: Any,
) -> None:
    conditions = _conditions(domain, in_domain, type_, error_code, since, until)
    if every == bool(command_ids):
        raise UsageProblem(f"name commands by DOMAIN and ID, or {verbs[0]} many with --all")
    if every:
        if not yes:
            count = bus.troubleshooting.count(**conditions)
            confirm(*verbs, min(count, limit or count), _which(conditions))
        done = many(**conditions, limit=limit, **resolution)
    else:
        if limit or set(conditions) - {"domain"}:
            raise UsageProblem("filters and --limit go with --all, and not with an ID")
        for command_id in command_ids:
            one(conditions["domain"], command_id, **resolution)
        done = len(command_ids)
    if as_json:
        show_json({verbs[1]: done})
    else:
        show(f"{verbs[1]} {count_of(done)}")


def _which(conditions: dict[str, Any]) -> str:
    those = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in conditions.items())
    return those or "of all domains"


def _conditions(
    domain: str | None,
    in_domain: str | None,
    type_: str | None,
    error_code: str | None,
    since: Any,
    until: Any,
) -> dict[str, Any]:
    """The filters that were given."""
    values = (one_domain(domain, in_domain), type_, error_code, since, until)
    return {name: value for name, value in zip(_FILTERS, values, strict=True) if value is not None}


def _lines(record: "TroubleRecord") -> Iterator[str]:
    attempts = count_of(record.attempts, "attempt")
    reason = f"{record.reason} " if record.reason not in (None, record.error_code) else ""
    error = " ".join(f"{reason}{record.error_code}: {record.error_message}".split())
    yield f"{record.command_id}  {record.domain}/{record.type}"
    yield f"  {ago(record.failed_at)}, {attempts}"
    yield f"  {shorten(error, _WIDTH - 2)}"
