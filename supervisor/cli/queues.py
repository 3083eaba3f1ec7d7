"""`cmdbus status`, `pause` and `resume`: domains and what waits in them."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from cmdbus.supervisor.cli.operators import operator_option, reason_option
from cmdbus.supervisor.cli.output import age, show, show_json, show_lines, table
from cmdbus.supervisor.cli.session import check_known, with_bus

if TYPE_CHECKING:
    from cmdbus.producer.bus import CommandBus
    from cmdbus.producer.records import DomainRecord, Waiting

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
    for name in sorted(set(domain) - {each.domain for each in found}):
        check_known(bus, name)
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
        name, depth = record.domain, record.all.ready + record.all.scheduled
        if record.paused:
            yield f"{name} is paused: cmdbus resume {name}"
        if not record.accepting:
            yield f"{name} refuses sends: cmdbus domain configure {name} --accepting"
        if record.max_depth is not None and depth >= record.max_depth:
            yield f"{name} is full: depth {depth}, and sends are refused from {record.max_depth}"
        elif record.warn_depth is not None and depth >= record.warn_depth:
            yield f"{name} has depth {depth}, and senders log a warning from {record.warn_depth}"
        for type_ in record.unhandled:
            yield (
                f"{name}/{type_} waits for {age(record.types[type_].oldest_age)} and none "
                f"runs: does a worker have a handler for it?"
            )
