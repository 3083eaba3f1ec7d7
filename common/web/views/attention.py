"""What needs an operator, and why, from what the bus says; the worst comes first. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

from cmdbus.breakers import BreakerState
from cmdbus.counting import count_of
from cmdbus.producer.breakers import BreakerRecord
from cmdbus.producer.bridges import BridgeRecord
from cmdbus.producer.history import HistoryPoint
from cmdbus.producer.node_records import NodeRecord, NodeSeat
from cmdbus.producer.records import AuditEvent, DomainRecord
from cmdbus.producer.schedules import ScheduleRecord
from cmdbus.web.views.records import why_unclaimed

#: Entries that are shown.
MAX_ENTRIES = 50
#: Seconds for which a bridge may fail before that is bad: a role may just be granted its rights.
_FAILING_SECONDS = 60.0
_LATE_SECONDS, _TOO_LATE_SECONDS = 60.0, 300.0
#: The share of its greatest depth from which a domain is nearly full.
_NEARLY = 0.8
_GONE_SECONDS, _EXIT_SECONDS = 3600.0, 900.0
#: Minutes over which failures are counted, the least executions, and their share.
_MINUTES, _EXECUTIONS, _FAILING = 5, 20, 0.5
_LEVELS = ("bad", "warn")


@dataclass(frozen=True, slots=True)
class Attention:
    #: bad, or warn.
    level: str
    what: str
    why: str
    #: A hash of the page.
    link: str
    #: Of the page: its name and body.
    action: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What the bus says."""

    now: datetime
    domains: Sequence[DomainRecord] = ()
    nodes: Sequence[NodeRecord] = ()
    breakers: Sequence[BreakerRecord] = ()
    schedules: Sequence[ScheduleRecord] = ()
    bridges: Sequence[BridgeRecord] = ()
    #: The last hour, by domain and minute.
    minutes: Mapping[str, Sequence[HistoryPoint]] = field(default_factory=dict)
    #: The latest pause of each paused domain, if that may be read.
    pauses: Mapping[str, AuditEvent] = field(default_factory=dict)


def attention(seen: Observed) -> list[Attention]:
    found = [*_fleet(seen)]
    for record in seen.domains:
        found += _domain(record, seen)
    found += [entry for each in seen.breakers for entry in _breaker(each, seen.now)]
    found += [entry for each in seen.schedules for entry in _schedule(each)]
    found += [entry for each in seen.bridges for entry in _bridge(each, seen.now)]
    for node in seen.nodes:
        found += _node(node, seen.now)
    return sorted(found, key=lambda each: _LEVELS.index(each.level))


def _fleet(seen: Observed) -> Iterator[Attention]:
    waiting = sum(each.all.ready + each.all.limited for each in seen.domains)
    living = [each for each in seen.nodes if not each.gone]
    if waiting and not living:
        yield Attention(
            "bad",
            f"No fleet runs, and {count_of(waiting)} {_verb(waiting, 'wait')}",
            "Start one: cmdbus-supervise --procs 4 --threads 8",
            "#/fleet",
        )
    versions = sorted({each.version for each in living if each.version})
    if len(versions) > 1:
        yield Attention(
            "warn",
            f"Nodes run different versions of cmdbus: {', '.join(versions)}",
            "An upgrade is under way, or has not reached all of them.",
            "#/fleet",
        )


def _domain(record: DomainRecord, seen: Observed) -> Iterator[Attention]:
    name, counts = record.domain, record.all
    if counts.troubleshooting:
        many = count_of(counts.troubleshooting)
        yield Attention(
            "bad",
            f"{name}: {many} in troubleshooting",
            "They have failed for good, and wait for an operator to retry, cancel or complete "
            "them.",
            _link("troubleshooting", domain=name),
        )
    yield from _unclaimed(record)
    yield from _steered(record, seen)
    yield from _full(record)
    if not record.paused and not record.unhandled and not _is_explained(record, seen):
        yield from _late(record, seen.minutes.get(name, ()))
    yield from _failing(name, seen.minutes.get(name, ())[-_MINUTES:])


def _unclaimed(record: DomainRecord) -> Iterator[Attention]:
    for type_, waiting in record.types.items():
        many = waiting.ready + waiting.limited
        what = f"{record.domain}/{type_}: {count_of(many)} {_verb(many, 'wait')}"
        if why := why_unclaimed(record, type_):
            then = f"{why[0].upper()}{why[1:]}: start one that does, or correct the type."
            yield Attention("bad", what, then, _link(f"domain/{quote(record.domain, safe='')}"))
            continue
        limit = waiting.limited and not waiting.in_progress and not waiting.ready
        if limit and waiting.oldest_age >= _LATE_SECONDS and not record.paused:
            yield Attention(
                "warn",
                f"{what} at a limit, and none runs",
                "An ordered key may wait for a command in troubleshooting, or for a retry.",
                _link("limits", domain=record.domain),
            )


def _steered(record: DomainRecord, seen: Observed) -> Iterator[Attention]:
    name, target = record.domain, {"target": {"domain": record.domain}}
    link = _link(f"domain/{quote(name, safe='')}")
    if record.paused:
        depth = record.all.depth
        pause = seen.pauses.get(name)
        why = f"{count_of(depth)} {_verb(depth, 'wait')}."
        if pause is not None:
            operator = f" by {pause.operator}" if pause.operator else ""
            reason = f": {pause.message}" if pause.message else ""
            why = f"Paused {_ago(seen.now - pause.at)} ago{operator}{reason}. {why}"
        action = {"name": "resume", "label": "Resume", "body": target}
        yield Attention("warn", f"{name} is paused", why, link, action)
    if not record.accepting:
        body = {**target, "values": {"accepting": True}}
        action = {"name": "configure", "label": "Accept sends", "body": body}
        yield Attention("warn", f"{name} refuses sends", "It was closed.", link, action)


def _full(record: DomainRecord) -> Iterator[Attention]:
    depth, most = record.all.depth, record.max_depth
    link = _link(f"domain/{quote(record.domain, safe='')}")
    if most is not None and depth >= most:
        why = f"{depth:,} commands wait, and sends are refused from {most:,} on."
        yield Attention("bad", f"{record.domain} is full", why, link)
    elif most is not None and depth >= _NEARLY * most:
        why = f"{depth:,} commands wait, and sends are refused from {most:,} on."
        yield Attention("warn", f"{record.domain} is nearly full", why, link)
    elif record.warn_depth is not None and depth >= record.warn_depth:
        why = f"{depth:,} commands wait, and the warning is set to {record.warn_depth:,}."
        yield Attention("warn", f"{record.domain} has many commands waiting", why, link)


def _late(record: DomainRecord, minutes: Sequence[HistoryPoint]) -> Iterator[Attention]:
    age = record.all.oldest_age
    if age < _LATE_SECONDS:
        return
    ages = [point.oldest_age for point in minutes[-3:]]
    known = [each for each in ages if each is not None]
    grows = len(known) == 3 and known == sorted(known) and known[0] < known[-1]
    link = _link("commands", domain=record.domain, status="PENDING")
    what = f"{record.domain}: the oldest command has waited {_ago(timedelta(seconds=age))}"
    if age >= _TOO_LATE_SECONDS:
        why = "It gets longer: too little is done." if grows else "More waits than is done."
        why = why if record.all.ready else "What waits there is at a limit."
        yield Attention("bad" if grows and record.all.ready else "warn", what, why, link)
    elif grows and record.all.ready:
        yield Attention("warn", what, "It gets longer: too little is done.", link)


def _is_explained(record: DomainRecord, seen: Observed) -> bool:
    """Whether another entry says what keeps the commands of the domain waiting."""
    if not record.all.ready and not record.all.in_progress:
        return True  # At a limit.
    covers = (each.covers for each in seen.breakers if each.state is not BreakerState.CLOSED)
    return any(cover.partition("/")[0] == record.domain for each in covers for cover in each)


def _failing(name: str, minutes: Sequence[HistoryPoint]) -> Iterator[Attention]:
    ends = [point.ended for point in minutes]
    bad = sum(each.retry + each.trouble + each.lost for each in ends)
    all_ = bad + sum(each.completed + each.failed for each in ends)
    if all_ >= _EXECUTIONS and bad >= _FAILING * all_:
        yield Attention(
            "warn",
            f"{name}: {bad:,} of {all_:,} executions failed in the last {_MINUTES} minutes",
            "They are tried again as far as their attempts go.",
            _link("commands", domain=name, status="PENDING"),
        )


def _breaker(record: BreakerRecord, now: datetime) -> Iterator[Attention]:
    link, target = _link("breakers", name=record.name), {"target": {"name": record.name}}
    since = _ago(now - (record.opened_at or record.changed_at))
    bound = _some(record.covers) or "no type"
    if record.state is BreakerState.OPEN and record.retry_at is None:
        action = {"name": "close_breaker", "label": "Close", "body": target}
        why = f"An operator keeps it open for {since}: nothing of {bound} is claimed."
        yield Attention("warn", f"Breaker {record.name} is kept open", why, link, action)
    elif record.state is not BreakerState.CLOSED:
        why = f"Its calls have failed, for {since}: nothing of {bound} is claimed but probes."
        yield Attention("bad", f"Breaker {record.name} is open", why, link)


def _schedule(record: ScheduleRecord) -> Iterator[Attention]:
    link = _link("schedules", name=record.name)
    if record.last_error:
        yield Attention("bad", f"Schedule {record.name} fails", record.last_error, link)
    elif not record.handled and not record.paused:
        why = f"No living node handles {record.domain}/{record.type}."
        yield Attention("warn", f"Schedule {record.name} sends what is not handled", why, link)


def _bridge(record: BridgeRecord, now: datetime) -> Iterator[Attention]:
    if record.error is not None:
        failing = now - (record.failed_at or now)
        level = "bad" if failing.total_seconds() > _FAILING_SECONDS else "warn"
        what = f"Bridge {record.name} has been failing for {_ago(failing)}"
        yield Attention(level, what, record.error, _link("bridges", name=record.name))


def _node(node: NodeRecord, now: datetime) -> Iterator[Attention]:
    name, link = f"Node {node.name} on {node.host}", "#/fleet"
    if node.gone:
        silent = (now - node.published_at).total_seconds()
        if not node.stopped and silent < _GONE_SECONDS:
            why = (
                f"It has published nothing for {_ago(timedelta(seconds=silent))}, and did not stop."
            )
            yield Attention("bad", f"{name} has gone", why, link)
        return
    if node.undead:
        why = "They hang in the kernel, on a disk or network file system, and cannot be ended."
        many = f"{node.undead} processes" if node.undead > 1 else "A process"
        yield Attention("bad", f"{name}: {many} survived SIGKILL", why, link)
    yield from _unhealthy(name, [s for s in node.seats if s.health])
    recent = [e for e in node.exits if (now - e.at).total_seconds() < _EXIT_SECONDS]
    if recent:
        many = f"{len(recent)} processes" if len(recent) > 1 else "A process"
        why = f"The latest {recent[0].reason}."
        what = f"{name}: {many} crashed or had to be killed in the last 15 minutes"
        yield Attention("warn", what, why, link)


def _unhealthy(name: str, seats: Iterable[NodeSeat]) -> Iterator[Attention]:
    for level, health in ("bad", "CRITICAL"), ("warn", "DEGRADED"), ("warn", "DATABASE_AWAY"):
        ill = [seat for seat in seats if seat.health == health]
        if ill:
            reasons = list(dict.fromkeys(reason for seat in ill for reason in seat.reasons))
            are = "process is" if len(ill) == 1 else "processes are"
            what = f"{name}: {len(ill)} {are} {health.lower().replace('_', ' ')}"
            yield Attention(level, what, "; ".join(reasons[:3]) or "See the fleet.", "#/fleet")


def _link(path: str, **params: str) -> str:
    return f"#/{path}" + (f"?{urlencode(params)}" if params else "")


def _some(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _verb(count: int, verb: str) -> str:
    return f"{verb}s" if count == 1 else verb


def _ago(time: timedelta) -> str:
    """In one unit, as these change once a second."""
    seconds = max(0, int(time.total_seconds()))
    for size, unit in (86400, "d"), (3600, "h"), (60, "min"):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
