"""`cmdbus list`: commands by conditions, page by page."""

from typing import TYPE_CHECKING, Any

import click

from cmdbus.counting import count_of
from cmdbus.supervisor.cli.options import option, page_options, status_option, time_option
from cmdbus.supervisor.cli.output import Shown, command_rows, page
from cmdbus.supervisor.cli.parameters import past
from cmdbus.supervisor.cli.session import UsageProblem, one_domain, with_bus
from cmdbus.supervisor.cli.values import uuid

if TYPE_CHECKING:
    from cmdbus.producer.bus import CommandBus

_SEARCHED = ("error_code", "text", "batch_id", "correlation_id", "after")


@click.command(
    "list",
    help="""List commands, the last sent first.

    Long histories are searched: with --text, --error-code, --batch, --correlation-id or
    --after, a page costs the same however many commands there are. It is shown without
    payloads, and ends with a cursor, with which --after and the same conditions go on.

    \b
    Examples:
      cmdbus list payments --status PENDING --since 2h
      cmdbus list --type DebitAccount --limit 100 --json | jq -r .commands[].command_id
      cmdbus list payments --error-code TIMEOUT --json | jq -r .next
    """,
)
@click.argument("in_domain", metavar="[DOMAIN]", required=False)
@option("--domain", metavar="DOMAIN", help="Only of this domain.")
@option("--type", metavar="TYPE", help="Only of this type.")
@option("--key", metavar="TEXT", help="Only with this key.")
@option("--error-code", metavar="CODE", help="Only with this error.")
@option("--batch", "batch_id", metavar="UUID", parse=uuid, help="Only of this batch.")
@option("--correlation-id", metavar="UUID", parse=uuid, help="Only with this correlation id.")
@option("--text", metavar="TEXT", help="Only with this text in the data or the error message.")
@status_option("PENDING")
@time_option("--since", parse=past, help="Sent since; like 2h: ago.")
@time_option("--until", parse=past, help="Sent before.")
@option("--after", metavar="CURSOR", help="What follows a page.")
@page_options
@with_bus
def list_(
    bus: "CommandBus",
    in_domain: str | None,
    domain: str | None,
    limit: int,
    offset: int,
    **conditions: Any,
) -> Shown:
    domain = one_domain(in_domain, domain)
    searched = {name: conditions.pop(name) for name in _SEARCHED}
    if any(value is not None for value in searched.values()):
        if offset:
            raise UsageProblem("--offset does not go with conditions that search: use --after")
        return _found(bus, domain, limit, **conditions, **searched)
    found = bus.query(domain, limit=limit + 1, offset=offset, **conditions)
    return page(found, limit, offset, command_rows)


def _found(bus: "CommandBus", domain: str | None, limit: int, **conditions: Any) -> Shown:
    found = bus.search(domain, limit=limit, **conditions)
    lines = command_rows(found.commands) if found.commands else []
    if found.stopped:
        lines.append(f"stopped after {count_of(found.stopped.rows)}; there may be more:")
    elif found.next:
        lines.append(f"{count_of(len(found.commands))} shown, and there may be more:")
    elif not lines:
        end = "no more commands" if conditions["after"] else "no command meets these conditions"
        lines.append(end)
    if found.next:
        lines.append(f"--after {found.next}")
    return {"commands": found.commands, "more": found.next is not None, "next": found.next}, lines
