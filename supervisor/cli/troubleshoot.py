"""`cmdbus tsq`: commands that failed for good and wait for an operator."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from cmdbus.checks import check_id
from cmdbus.counting import count_of
from cmdbus.errors import CmdbusError
from cmdbus.supervisor.cli.options import audit_options, option, page_options, stacked, time_option
from cmdbus.supervisor.cli.output import Shown, ago, shorten, table
from cmdbus.supervisor.cli.parameters import data, past
from cmdbus.supervisor.cli.session import UsageProblem, confirm, one_domain, with_bus

if TYPE_CHECKING:
    from cmdbus.producer.bus import CommandBus
    from cmdbus.producer.records import TroubleRecord

_WIDTH = 80
_FILTERS = ("domain", "in_domain", "type", "error_code", "key", "since", "until")
_NOTHING = ["nothing waits for an operator"]


@click.group(help="Decide about commands in the troubleshooting queue.")
def tsq() -> None:
    pass


_filters = stacked(
    option("--domain", "in_domain", metavar="DOMAIN", help="Only of this domain."),
    option("--type", metavar="TYPE", help="Only of this type."),
    option("--error-code", metavar="CODE", help="Only with this error."),
    option("--key", metavar="TEXT", help="Only with this key."),
    time_option("--since", parse=past, help="Came there since; like 2h: ago."),
    time_option("--until", parse=past, help="Came there before."),
)
#: DOMAIN and IDs, or --all with filters; and the operator.
_targets = stacked(
    click.argument("domain", required=False),
    click.argument("command_ids", metavar="[ID]...", nargs=-1),
    option("--all", "every", is_flag=True, help="All that the filters leave."),
    _filters,
    option("--limit", type=click.IntRange(1), help="With --all: the oldest, up to N."),
    option("--yes", is_flag=True, help="Do not ask."),
    audit_options,
)


@tsq.command(
    "list",
    help="""List the commands that wait for an operator, the latest first.

    \b
    Examples:
      cmdbus tsq list
      cmdbus tsq list payments --error-code TIMEOUT --since 2h
    """,
)
@click.argument("domain", required=False)
@_filters
@page_options
@with_bus
def list_(bus: "CommandBus", limit: int, offset: int, **filters: Any) -> Shown:
    conditions = _conditions(**filters)
    total = bus.troubleshooting.count(**conditions)
    found = bus.troubleshooting.list(**conditions, limit=limit, offset=offset)
    lines = [line for record in found for line in _lines(record)]
    if len(found) < total:
        lines.append(f"{len(found)} of {count_of(total)}; more with --limit and --offset")
    return {"total": total, "commands": found}, lines if total else _NOTHING


@tsq.command(
    help="""Count these commands by domain, type and error, the most frequent first.

    \b
    Examples:
      cmdbus tsq summary --since 1d
    """,
)
@click.argument("domain", required=False)
@_filters
@with_bus
def summary(bus: "CommandBus", **filters: Any) -> Shown:
    found = bus.troubleshooting.summary(**_conditions(**filters))
    rows = (
        (f"{each.domain}/{each.type}", each.error_code, each.count, ago(each.last_failed_at))
        for each in found
    )
    lines = table(("COMMAND", "ERROR", "COUNT", "LATEST"), rows, left=range(2))
    return {"errors": found}, lines if found else _NOTHING


@tsq.command(
    help="""Let commands run again, as if they had never been tried.

    \b
    Examples:
      cmdbus tsq retry payments 01a1ef5a-0994-8c8f-a75a-06db62dbaa94
      cmdbus tsq retry payments 01a1ef5a-0994-8c8f-a75a-06db62dbaa94 --data '{"amount": 5}'
      cmdbus tsq retry payments --all --error-code TIMEOUT --limit 10
    """,
)
@option(
    "--data",
    "change",
    metavar="JSON",
    # null is data, too.
    parse=lambda text: {"data": data(text)},
    help="JSON, -, or @FILE; what the command has instead of its data.",
)
@_targets
@with_bus
def retry(bus: "CommandBus", change: dict[str, Any] | None, **resolution: Any) -> Shown:
    if change and (resolution["every"] or len(resolution["command_ids"]) != 1):
        raise UsageProblem("--data goes with the ID of one command")
    return _resolve(bus, "retry", "retried", **resolution, **(change or {}))


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
def cancel(bus: "CommandBus", **resolution: Any) -> Shown:
    return _resolve(bus, "cancel", "canceled", **resolution)


@tsq.command(
    help="""End commands as COMPLETED, because their work was done by other means.

    \b
    Examples:
      cmdbus tsq complete payments 01a1ef5a-0994-8c8f-a75a-06db62dbaa94 --result '{"paid": true}'
    """,
)
@option("--result", metavar="JSON", parse=data, help="JSON, -, or @FILE; sent as the reply.")
@_targets
@with_bus
def complete(bus: "CommandBus", **resolution: Any) -> Shown:
    return _resolve(bus, "complete", "completed", **resolution)


def _resolve(
    bus: "CommandBus",
    verb: str,
    participle: str,
    *,
    command_ids: tuple[str, ...],
    every: bool,
    limit: int | None,
    yes: bool,
    **resolution: Any,
) -> Shown:
    queue = bus.troubleshooting
    conditions = _conditions(**{name: resolution.pop(name) for name in _FILTERS})
    if every == bool(command_ids):
        raise UsageProblem(f"name commands by DOMAIN and ID, or {verb} many with --all")
    if every:
        if not yes:
            count = queue.count(**conditions)
            # More may come before the answer.
            limit = min(count, limit or count)
            confirm(verb, participle, limit, _which(conditions))
        resolve_all = getattr(queue, f"{verb}_all")
        done = 0 if limit == 0 else resolve_all(**conditions, limit=limit, **resolution)
    else:
        if limit or set(conditions) - {"domain"}:
            raise UsageProblem("filters and --limit go with --all, and not with an ID")
        resolve, done = getattr(queue, verb), 0
        for command_id in [check_id("ID", text) for text in command_ids]:
            try:
                resolve(conditions["domain"], command_id, **resolution)
            except CmdbusError as error:
                before = f"{participle} {count_of(done)}, and then: " if done else ""
                raise click.ClickException(f"{before}{error}") from None
            done += 1
    return {participle: done}, [f"{participle} {count_of(done)}"]


def _which(conditions: dict[str, Any]) -> str:
    those = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in conditions.items())
    return those or "of all domains"


def _conditions(domain: str | None, in_domain: str | None, **others: Any) -> dict[str, Any]:
    """The filters that were given."""
    filters = {"domain": one_domain(domain, in_domain), **others}
    return {name: value for name, value in filters.items() if value is not None}


def _lines(record: "TroubleRecord") -> Iterator[str]:
    attempts = count_of(record.attempts, "attempt")
    reason = f"{record.reason} " if record.reason not in (None, record.error_code) else ""
    error = " ".join(f"{reason}{record.error_code}: {record.error_message}".split())
    yield f"{record.command_id}  {record.domain}/{record.type}"
    yield f"  {ago(record.failed_at)}, {attempts}"
    yield f"  {shorten(error, _WIDTH - 2)}"
