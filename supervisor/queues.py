"""`cmdbus status`, `pause` and `resume`: domains and what waits in them."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from cmdbus.supervisor.operators import operator_option, reason_option
from cmdbus.supervisor.output import age, show, show_json, show_lines, table
from cmdbus.supervisor.session import with_bus

if TYPE_CHECKING:
    from cmdbus.bus import CommandBus
    from cmdbus.records import DomainRecord, Waiting

_HEAD = ("", "READY", "LATER", "RUNNING", "TROUBLE", "OLDEST")


@click.command(
    help="""Show what waits, runs and needs an operator, by domain and type.

    READY could be claimed now, LATER waits for its time, TROUBLE for a person. OLDEST
    is how long the first of the ready ones has waited.

    \b
    Examples:
      cmdbus status
      cmdbus status payments --json
    """,
)
@click.argument("domain", nargs=-1)
@with_bus
def status(bus: "CommandBus", as_json: bool, domain: tuple[str, ...]) -> None:
    found = bus.domains(*domain)
    if as_json:
        show_json({"domains": [asdict(each) for each in found]})
    elif found:
        show_lines([*table(_HEAD, _rows(found), left=1), *_remarks(found)])
    else:
        show("nothing waits, nothing runs")


@click.command(
    help="""Let workers start nothing more of a domain; what runs, ends, and sends are taken.

    \b
    Examples:
      cmdbus pause payments --reason "wrong prices"
    """,
)
@click.argument("domain", nargs=-1, required=True)
@reason_option
@operator_option
@with_bus
def pause(bus: "CommandBus", as_json: bool, domain: tuple[str, ...], **remark: Any) -> None:
    _set_paused(bus, as_json, domain, paused=True, **remark)


@click.command(
    help="""Let workers start commands of a paused domain again.

    \b
    Examples:
      cmdbus resume payments
    """,
)
@click.argument("domain", nargs=-1, required=True)
@reason_option
@operator_option
@with_bus
def resume(bus: "CommandBus", as_json: bool, domain: tuple[str, ...], **remark: Any) -> None:
    _set_paused(bus, as_json, domain, paused=False, **remark)


def _set_paused(
    bus: "CommandBus", as_json: bool, domains: tuple[str, ...], *, paused: bool, **remark: Any
) -> None:
    unknown = []
    for domain in domains:
        (bus.pause if paused else bus.resume)(domain, **remark)
        hint = ""
        if not bus.query(domain, limit=1):
            unknown.append(domain)
            hint = ", but no command was ever sent to it, or none is kept: is that its name?"
        if not as_json:
            show(f"{'paused' if paused else 'resumed'} {domain}{hint}")
    if as_json:
        show_json({"domains": list(domains), "paused": paused, "unknown": unknown})


def _rows(found: "list[DomainRecord]") -> Iterator[tuple[object, ...]]:
    for record in found:
        yield (record.domain, *_counts(record.all))
        for name, waiting in record.types.items():
            yield (f"  {name}", *_counts(waiting))


def _counts(waiting: "Waiting") -> tuple[object, ...]:
    return (
        waiting.ready,
        waiting.scheduled,
        waiting.in_progress,
        waiting.troubleshooting,
        age(waiting.oldest_age) if waiting.ready else "-",
    )


def _remarks(found: "list[DomainRecord]") -> Iterator[str]:
    for record in found:
        if record.paused:
            yield f"{record.domain} is paused: cmdbus resume {record.domain}"
        if not record.accepting:
            yield f"{record.domain} refuses sends (accepting=False)"
        if record.max_depth is not None or record.warn_depth is not None:
            depth = record.all.ready + record.all.scheduled
            limits = {"max_depth": record.max_depth, "warn_depth": record.warn_depth}
            said = ", ".join(f"{name} {n}" for name, n in limits.items() if n is not None)
            yield f"{record.domain} has depth {depth}; {said}"
        for name in record.unhandled:
            yield (
                f"{record.domain}/{name} waits for {age(record.types[name].oldest_age)} and none "
                f"runs: does a worker have a handler for it?"
            )
