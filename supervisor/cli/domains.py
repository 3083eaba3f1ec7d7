"""`cmdbus domain`: the settings of domains."""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from cmdbus.supervisor.cli import parameters
from cmdbus.supervisor.cli.options import audit_options, option
from cmdbus.supervisor.cli.output import UNITS, Shown, audit_lines, table
from cmdbus.supervisor.cli.session import UsageProblem, check_known, with_bus

if TYPE_CHECKING:
    from cmdbus.producer.bus import CommandBus
    from cmdbus.producer.records import DomainRecord

_HEAD = ("", "SENDS", "STATE", "DEPTH", "WARN AT", "FULL AT", "KEEP")


@click.group(help="Show and change the settings of domains.")
def domain() -> None:
    pass


@domain.command(
    "list",
    help="""Show every domain that has settings, or commands that are not finished.

    \b
    Examples:
      cmdbus domain list
    """,
)
@with_bus
def list_(bus: "CommandBus") -> Shown:
    found = bus.domains()
    lines = table(_HEAD, map(_row, found), left=3)
    none = ["no domain has settings, or commands that are not finished"]
    return {"domains": found}, lines if found else none


@domain.command(
    "show",
    help="""Show a domain's settings, and their changes with operator and reason.

    \b
    Examples:
      cmdbus domain show payments
    """,
)
@click.argument("named", metavar="DOMAIN")
@with_bus
def show_(bus: "CommandBus", named: str) -> Shown:
    return _shown(bus, named)


@domain.command(
    help="""Change a domain's settings; those that are not given stay.

    \b
    Examples:
      cmdbus domain configure payments --max-depth 10000 --warn-depth 5000
      cmdbus domain configure payments --keep 30d --reason "audit"
      cmdbus domain configure payments --closed
    """,
)
@click.argument("named", metavar="DOMAIN")
@option(
    "--max-depth",
    metavar="N",
    parse=parameters.limit,
    help="Number of waiting commands from which sends are refused; `none`: no limit.",
)
@option(
    "--warn-depth",
    metavar="N",
    parse=parameters.limit,
    help="Number of waiting commands from which senders log a warning; `none`: never.",
)
@option(
    "--keep",
    metavar="TIME",
    parse=parameters.span,
    help="How long finished commands and their ids stay, like 7d; an id is unique until then.",
)
@option("--accepting/--closed", default=None, help="Take sends, or refuse them all.")
@audit_options
@with_bus
def configure(bus: "CommandBus", named: str, **given: Any) -> Shown:
    settings = {key: value for key, value in given.items() if value is not None}
    for key in ("max_depth", "warn_depth"):
        if settings.get(key) == parameters.NO_LIMIT:
            settings[key] = None
    if not set(settings) - {"operator", "reason"}:
        raise UsageProblem(
            "no setting is given: --max-depth, --warn-depth, --keep, --accepting, --closed"
        )
    bus.configure(named, **settings)
    return _shown(bus, named)


def _shown(bus: "CommandBus", name: str) -> Shown:
    found = bus.domains(name)
    if not found:
        check_known(bus, name)
        raise click.ClickException(
            f"domain {name} has no settings and no commands that are not finished: "
            f"cmdbus domain list shows those that have"
        )
    audit = bus.domain_audit(name)
    facts = (f"  {fact:<10}  {value}" for fact, value in _facts(found[0]))
    return {**asdict(found[0]), "audit": audit}, chain([name], facts, audit_lines(audit))


def _row(record: "DomainRecord") -> tuple[object, ...]:
    return (
        record.domain,
        "accepted" if record.accepting else "refused",
        "paused" if record.paused else "active",
        record.all.ready + record.all.scheduled,
        "-" if record.warn_depth is None else record.warn_depth,
        "-" if record.max_depth is None else record.max_depth,
        _kept(record.keep),
    )


def _facts(record: "DomainRecord") -> Iterator[tuple[str, object]]:
    yield "accepting", "yes" if record.accepting else "no: sends are refused"
    yield "paused", f"yes: cmdbus resume {record.domain}" if record.paused else "no"
    yield "max depth", "none" if record.max_depth is None else record.max_depth
    yield "warn depth", _warned(record)
    yield "keep", f"{_kept(record.keep)} after they finish, commands and their ids are removed"
    yield "depth", record.all.ready + record.all.scheduled


def _warned(record: "DomainRecord") -> str:
    if record.warn_depth is None:
        return "none"
    if record.max_depth is None or record.warn_depth <= record.max_depth:
        return str(record.warn_depth)
    return f"{record.warn_depth}: never reached, as sends are refused from {record.max_depth}"


def _kept(keep: timedelta) -> str:
    """Exact, in the largest unit that divides it: 7d, 36h, 90s."""
    seconds = keep.total_seconds()
    for unit, letter in UNITS:
        if seconds and seconds % unit == 0:
            return f"{seconds / unit:.0f}{letter}"
    return f"{seconds:g}s"
