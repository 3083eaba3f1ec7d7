"""`cmdbus status`, `pause`, `resume` and `domain`: domains, their queues and settings."""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from cmdbus.breakers import BreakerState
from cmdbus.checks import did_you_mean
from cmdbus.selection import listed, priorities_text
from cmdbus.supervisor.cli.options import audit_options, option, time_option
from cmdbus.supervisor.cli.output import (
    UNITS,
    Shown,
    age,
    audit_lines,
    state_text,
    table,
    timestamp,
)
from cmdbus.supervisor.cli.parameters import NO_LIMIT, limit, span
from cmdbus.supervisor.cli.session import UsageProblem, check_known, with_bus

if TYPE_CHECKING:
    from cmdbus.producer.breakers import BreakerRecord
    from cmdbus.producer.bridges import BridgeRecord
    from cmdbus.producer.bus import CommandBus
    from cmdbus.producer.records import DomainRecord, Waiting

_STATUS_HEAD = ("", "READY", "LATER", "LIMITED", "RUNNING", "TROUBLE", "OLDEST")
#: What ended within this time stays, whatever its domain keeps: see the function retain_domain.
_MIN_KEPT = timedelta(minutes=1)
_SETTINGS_HEAD = ("", "SENDS", "STATE", "DEPTH", "WARN AT", "FULL AT", "PER KEY", "KEEP")


@click.command(
    help="""Count the commands that wait, run or need an operator, by domain and type.

    READY could be claimed now, LATER waits for its time, LIMITED at a limit of its
    type, TROUBLE for an operator. OLDEST is how long the first of those that are ready
    or limited has waited. Circuit breakers that are not closed and bridges that
    fail follow, but those of other domains than the given ones.

    \b
    Examples:
      cmdbus status
      cmdbus status payments --json
    """,
)
@click.argument("domain", nargs=-1)
@with_bus
def status(bus: "CommandBus", domain: tuple[str, ...]) -> Shown:
    found, bridges = bus.domains(*domain), bus.bridges.list()
    known = {each.domain for each in found} | {each.domain for each in bridges}
    for name in sorted(set(domain) - known):
        check_known(bus, name)
    breakers = [
        each
        for each in bus.breakers.list()
        if each.state is not BreakerState.CLOSED and _concerns(each, domain)
    ]
    failing = [
        each for each in bridges if each.error is not None and (not domain or each.domain in domain)
    ]
    lines = table(_STATUS_HEAD, _rows(found), left=range(1))
    lines = lines if found else ["nothing waits, nothing runs"]
    open_ = (f"breaker {each.name} is {state_text(each)}" for each in breakers)
    value = {"domains": found, "breakers": breakers, "bridges": failing}
    return value, chain(lines, _remarks(found), open_, map(_failure, failing))


def _concerns(breaker: "BreakerRecord", domains: tuple[str, ...]) -> bool:
    """Whether types of these domains are bound to it; one without any concerns all, as its calls
    may be anywhere."""
    bound = {name.split("/")[0] for name in breaker.covers}
    return not (domains and bound) or not bound.isdisjoint(domains)


def _failure(bridge: "BridgeRecord") -> str:
    since = "" if bridge.failed_at is None else f" since {timestamp(bridge.failed_at)}"
    return f"bridge {bridge.name} has been failing{since}: {bridge.error}"


@click.command(
    help="""Let workers claim nothing more of a domain; running commands end, sends are accepted.

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
    others = {record.domain for record in bus.domains()}.difference(unknown) if unknown else ()
    lines = []
    for domain in domains:
        (bus.pause if paused else bus.resume)(domain, **remark)
        lines.append(f"{'paused' if paused else 'resumed'} {domain}")
        if domain in unknown:
            question = did_you_mean(domain, others) or "is that its name?"
            lines[-1] += f", but no command was ever sent to it, or none is kept: {question}"
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
        waiting.limited,
        waiting.in_progress,
        waiting.troubleshooting,
        age(waiting.oldest_age) if waiting.ready or waiting.limited else "-",
    )


def _remarks(found: "list[DomainRecord]") -> Iterator[str]:
    for record in found:
        name, depth = record.domain, record.all.depth
        if record.paused:
            yield f"{name} is paused; to resume it: cmdbus resume {name}"
        if not record.accepting:
            accept = f"cmdbus domain configure {name} --accepting"
            yield f"{name} refuses sends; to accept them: {accept}"
        if record.max_depth is not None and depth >= record.max_depth:
            yield f"{name} is full: depth {depth}, and sends are refused from {record.max_depth}"
        elif record.warn_depth is not None and depth >= record.warn_depth:
            yield f"{name} has depth {depth}, and senders log a warning from {record.warn_depth}"
        for type_, missing in record.missing_tags.items():
            yield f"{name}/{type_} waits: no living node has {listed(missing)}, which it needs"
        for type_, priorities in record.unclaimed_priorities.items():
            yield f"{name}/{type_} waits: no living node claims {priorities_text(priorities)} of it"
        for type_ in record.unhandled:
            if type_ not in record.missing_tags:
                yield (
                    f"{name}/{type_} waits for {age(record.types[type_].oldest_age)} and none "
                    f"runs: does a worker have a handler for it?"
                )


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
    lines = table(_SETTINGS_HEAD, map(_row, found), left=range(3))
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
    parse=limit,
    help="Number of waiting commands from which sends are refused; `none`: no limit.",
)
@option(
    "--warn-depth",
    metavar="N",
    parse=limit,
    help="Number of waiting commands from which senders log a warning; `none`: never.",
)
@option(
    "--max-waiting-per-key",
    metavar="N",
    parse=limit,
    help="Number of waiting commands with one key from which sends with it are refused; `none`: no "
    "limit.",
)
@time_option(
    "--keep",
    parse=span,
    help="How long finished commands and their ids stay, like 7d, but at least a minute; an id is "
    "unique until then.",
)
@option("--accepting/--closed", default=None, help="Take sends, or refuse them all.")
@audit_options
@with_bus
def configure(bus: "CommandBus", named: str, **given: Any) -> Shown:
    settings = {key: value for key, value in given.items() if value is not None}
    for key in ("max_depth", "warn_depth", "max_waiting_per_key"):
        if settings.get(key) == NO_LIMIT:
            settings[key] = None
    if not set(settings) - {"operator", "reason"}:
        raise UsageProblem(
            "no setting is given: --max-depth, --warn-depth, --max-waiting-per-key, --keep, "
            "--accepting, --closed"
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
        record.all.depth,
        "-" if record.warn_depth is None else record.warn_depth,
        "-" if record.max_depth is None else record.max_depth,
        "-" if record.max_waiting_per_key is None else record.max_waiting_per_key,
        _kept(record.keep),
    )


def _facts(record: "DomainRecord") -> Iterator[tuple[str, object]]:
    yield "accepting", "yes" if record.accepting else "no: sends are refused"
    yield "paused", f"yes; to resume it: cmdbus resume {record.domain}" if record.paused else "no"
    yield "max depth", "none" if record.max_depth is None else record.max_depth
    yield "warn depth", _warned(record)
    most = record.max_waiting_per_key
    yield "per key", "no limit" if most is None else f"{most}: sends with the key are refused then"
    kept = _kept(max(record.keep, _MIN_KEPT))
    yield "keep", f"{kept} after they finish, commands and their ids are removed"
    yield "depth", record.all.depth


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
