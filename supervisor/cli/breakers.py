"""`cmdbus breaker`: circuit breakers that apps declare, their states, and what operators change."""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from cmdbus.counting import seconds_text
from cmdbus.supervisor.cli.options import audit_options, option
from cmdbus.supervisor.cli.output import Shown, ago, audit_lines, one_named, remark_text, state_text
from cmdbus.supervisor.cli.session import UsageProblem, add_change, named_argument, with_bus
from cmdbus.supervisor.cli.values import seconds, whole

if TYPE_CHECKING:
    from cmdbus.producer.breakers import BreakerRecord
    from cmdbus.producer.bus import CommandBus


@click.group(help="Show circuit breakers, open and close them, and change their terms.")
def breaker() -> None:
    pass


@breaker.command(
    "list",
    help="""Show every breaker: its state, its terms, what apps declare, what operators have set.

    \b
    Examples:
      cmdbus breaker list
      cmdbus breaker list --json | jq '.breakers[] | {name, state}'
    """,
)
@with_bus
def list_(bus: "CommandBus") -> Shown:
    found = bus.breakers.list()
    lines = chain.from_iterable(map(_lines, found))
    return {"breakers": found}, lines if found else ["there is no breaker"]


@breaker.command(
    "show",
    help="""Show a breaker, and its latest changes.

    \b
    Examples:
      cmdbus breaker show stripe
      cmdbus breaker show stripe --limit 100
    """,
)
@named_argument
@option("--limit", type=click.IntRange(1, 1000), default=20, metavar="N", help="How many changes.")
@with_bus
def show_(bus: "CommandBus", named: str, limit: int) -> Shown:
    found = [record for record in bus.breakers.list() if record.name == named]
    if not found:
        raise click.ClickException(
            f"there is no breaker {named!r}: cmdbus breaker list shows those that there are"
        )
    audit = bus.breakers.audit(named)[-limit:]
    return {**asdict(found[0]), "audit": audit}, chain(_lines(found[0]), audit_lines(audit))


@breaker.command(
    "set",
    help="""Set terms of a breaker; they hold until `clear`.

    What is not given stays as it was set before, or as apps declare it.

    \b
    Examples:
      cmdbus breaker set stripe --failures 20 --window 30s
      cmdbus breaker set stripe --cooldown 5m --reason "they are slow to recover"
    """,
)
@named_argument
@option("--failures", metavar="N", parse=whole, help="Failures that open it.")
@option("--window", metavar="TIME", parse=seconds, help="Time within which they count, like 60s.")
@option("--cooldown", metavar="TIME", parse=seconds, help="Time until the first probe, like 30s.")
@option("--probes", metavar="N", parse=whole, help="Calls that are let through at a time then.")
@audit_options
@with_bus
def set_(bus: "CommandBus", named: str, operator: str, reason: str | None, **terms: Any) -> Shown:
    given = {name: value for name, value in terms.items() if value is not None}
    if not given:
        raise UsageProblem("nothing is given to set: --failures, --window, --cooldown, --probes")
    bus.breakers.set(named, **given, operator=operator, reason=reason)
    return _changed(bus, named)


def _changed(bus: "CommandBus", name: str) -> Shown:
    """The breaker as it is now; one that no app declares may be forgotten."""
    none = f"{name}: no breaker, as no app declares it"
    return one_named(bus.breakers.list(), name, _lines, none)


add_change(
    breaker,
    "open",
    lambda bus: bus.breakers.open,
    _changed,
    """Let no calls through, until an operator closes or resets the breaker.

    \b
    Examples:
      cmdbus breaker open stripe --reason "maintenance"
    """,
)
add_change(
    breaker,
    "close",
    lambda bus: bus.breakers.close,
    _changed,
    """Let calls through again; failures open the breaker again.

    \b
    Examples:
      cmdbus breaker close stripe --reason "it is back"
    """,
)
add_change(
    breaker,
    "reset",
    lambda bus: bus.breakers.reset,
    _changed,
    """Let calls through again, and forget the failures on record.

    \b
    Examples:
      cmdbus breaker reset stripe
    """,
)
add_change(
    breaker,
    "clear",
    lambda bus: bus.breakers.clear,
    _changed,
    """Remove what is set of a breaker: what apps declare holds again.

    \b
    Examples:
      cmdbus breaker clear stripe
    """,
)


def _lines(record: "BreakerRecord") -> Iterator[str]:
    yield f"{record.name}  {state_text(record)}"
    covers = f", for {', '.join(record.covers)}" if record.covers else ""
    yield f"  {record.in_force}{covers}"
    for each in record.declared:
        counts = f", counts {', '.join(each.counts)}"
        yield f"  declared  {each.terms}{counts}  by {each.app}, {ago(each.declared_at)}"
    if not record.declared:
        yield "  declared  by no app"
    if record.set is not None:
        values = ", ".join(_term(name, value) for name, value in record.set.values.items())
        yield f"  set       {values}  {remark_text(record.set, record.set.set_at)}"


def _term(name: str, value: float) -> str:
    return f"{name} {value if name in ('failures', 'probes') else seconds_text(value)}"
