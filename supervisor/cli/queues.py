"""`cmdbus status`, `pause` and `resume`: domains and what waits in them."""

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from cmdbus.supervisor.cli.options import audit_options
from cmdbus.supervisor.cli.output import Shown, age, table
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
def status(bus: "CommandBus", domain: tuple[str, ...]) -> Shown:
    found = bus.domains(*domain)
    for name in sorted(set(domain) - {each.domain for each in found}):
        check_known(bus, name)
    lines = chain(table(_HEAD, _rows(found), left=1), _remarks(found))
    return {"domains": found}, lines if found else ["nothing waits, nothing runs"]


@click.command(
    help="""Let workers start nothing more of a domain; what runs, ends, and sends are taken.

    \b
    Examples:
      cmdbus pause payments --reason "wrong prices"
    """,
)
@click.argument("domain", nargs=-1, required=True)
@audit_options
@with_bus
def pause(bus: "CommandBus", domain: tuple[str, ...], **remark: Any) -> Shown:
    return _set_paused(bus, domain, True, remark)


@click.command(
    help="""Let workers start commands of a paused domain again.

    \b
    Examples:
      cmdbus resume payments
    """,
)
@click.argument("domain", nargs=-1, required=True)
@audit_options
@with_bus
def resume(bus: "CommandBus", domain: tuple[str, ...], **remark: Any) -> Shown:
    return _set_paused(bus, domain, False, remark)


def _set_paused(
    bus: "CommandBus", domains: tuple[str, ...], paused: bool, remark: dict[str, Any]
) -> Shown:
    unknown = [domain for domain in domains if not bus.query(domain, limit=1)]
    lines = []
    for domain in domains:
        (bus.pause if paused else bus.resume)(domain, **remark)
        lines.append(f"{'paused' if paused else 'resumed'} {domain}")
        if domain in unknown:
            lines[-1] += ", but no command was ever sent to it, or none is kept: is that its name?"
    return {"domains": domains, "paused": paused, "unknown": unknown}, lines


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
