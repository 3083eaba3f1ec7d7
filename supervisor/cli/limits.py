"""`cmdbus limit`: limits that apps declare, and the options that operators set."""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from cmdbus.checks import did_you_mean
from cmdbus.supervisor.cli.options import audit_options, option
from cmdbus.supervisor.cli.output import Shown, ago, remark_text
from cmdbus.supervisor.cli.parameters import NO_LIMIT, limit, rate
from cmdbus.supervisor.cli.session import UsageProblem, with_bus

if TYPE_CHECKING:
    from cmdbus.producer.bus import CommandBus
    from cmdbus.producer.limits import LimitRecord

_named = click.argument("named", metavar="DOMAIN TYPE | NAME", nargs=-1, required=True)


@click.group("limit", help="Show and change how many commands run at once, start, and in order.")
def limit_() -> None:
    pass


@limit_.command(
    "list",
    help="""Show every limit: what is in force, what apps declare, what operators have set.

    \b
    Examples:
      cmdbus limit list
      cmdbus limit list --json | jq '.limits[] | {name, in_force}'
    """,
)
@with_bus
def list_(bus: "CommandBus") -> Shown:
    found = bus.limits.list()
    lines = chain.from_iterable(map(_lines, found))
    return {"limits": [*map(_value, found)]}, lines if found else ["no limit is declared or set"]


@limit_.command(
    "set",
    help="""Set a limit of a type, or one that several types share; it holds until `clear`.

    What is not given stays as it was set before, or as apps declare it.

    \b
    Examples:
      cmdbus limit set payments Charge --concurrency 2 --reason "slow provider"
      cmdbus limit set mail Send --rate 100/min --burst 10
      cmdbus limit set stripe --concurrency none
    """,
)
@_named
@option(
    "--concurrency",
    metavar="N",
    parse=limit,
    help="Number of commands that run at once; `none`: any.",
)
@option("--rate", metavar="RATE", parse=rate, help="Starts, like 5/s, 100/min, 10/day; or `none`.")
@option("--burst", metavar="N", parse=limit, help="Number of commands that may start at once.")
@option("--ordered/--unordered", default=None, help="One at a time as they were sent, or not.")
@option(
    "--on-trouble",
    type=click.Choice(["block", "skip"]),
    help="Whether ordered commands wait for one in troubleshooting.",
)
@option("--fair/--unfair", default=None, help="Let keys take turns, or not.")
@audit_options
@with_bus
def set_(
    bus: "CommandBus", named: tuple[str, ...], operator: str, reason: str | None, **options: Any
) -> Shown:
    given = dict(_option(*each) for each in options.items() if each[1] is not None)
    if not given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in options)
        raise UsageProblem(f"nothing is given to set: {names}")
    bus.limits.set(**_names(named), **given, operator=operator, reason=reason)
    value, lines = _changed(bus, named)
    return value, chain(lines, _remarks(bus, named))


@limit_.command(
    help="""Remove what is set of a limit: what apps declare holds again.

    \b
    Examples:
      cmdbus limit clear payments Charge --reason "the provider is back"
      cmdbus limit clear stripe
    """,
)
@_named
@audit_options
@with_bus
def clear(bus: "CommandBus", named: tuple[str, ...], **remark: Any) -> Shown:
    bus.limits.clear(**_names(named), **remark)
    return _changed(bus, named)


def _option(name: str, value: Any) -> tuple[str, Any]:
    """False is equal to NO_LIMIT."""
    return name, None if value == NO_LIMIT and not isinstance(value, bool) else value


def _names(named: tuple[str, ...]) -> dict[str, Any]:
    match named:
        case (name,):
            return {"name": name}
        case (domain, type_):
            return {"domain": domain, "type": type_}
    raise UsageProblem("a limit is named by DOMAIN TYPE, or by its NAME if several types share it")


def _changed(bus: "CommandBus", named: tuple[str, ...]) -> Shown:
    """The limit as it is now; None, if nothing is left of it."""
    name = "/".join(named)
    found = [record for record in bus.limits.list() if record.name == name]
    lines = chain.from_iterable(map(_lines, found))
    return _value(found[0]) if found else None, lines if found else [f"{name}: no limit"]


def _remarks(bus: "CommandBus", named: tuple[str, ...]) -> Iterator[str]:
    """A limit that no app declares may have a mistyped name."""
    declared = [record.name for record in bus.limits.list() if record.declared]
    name = "/".join(named)
    if name not in declared and not bus.query(named[0], type=named[-1], limit=1):
        question = did_you_mean(name, declared) or "is that its name?"
        yield f"no app declares a limit of {name}, and none of its commands is kept: {question}"


def _lines(record: "LimitRecord") -> Iterator[str]:
    yield f"{record.name}  {record.in_force or 'no limit'}{_scope(record)}"
    for each in record.declared:
        yield f"  declared  {each.limit}  by {each.app}, {ago(each.declared_at)}"
    if record.set is not None:
        values = ", ".join(
            f"{name.replace('_', ' ')} {_text(value)}" for name, value in record.set.values.items()
        )
        yield f"  set       {values}  {remark_text(record.set, record.set.set_at)}"


def _scope(record: "LimitRecord") -> str:
    if "/" in record.name:
        return ", by key"
    return f", for {', '.join(record.covers) or 'no type'}"


def _text(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
    return str(value)


def _value(record: "LimitRecord") -> dict[str, object]:
    """For --json: limits as they are declared."""
    return {
        **asdict(record),
        "in_force": record.in_force and record.in_force.terms,
        "declared": [{**asdict(each), "limit": each.limit.terms} for each in record.declared],
    }
