"""The view `overview`: every domain with what waits, runs, comes and goes, and what needs an
operator."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from weakref import WeakKeyDictionary

from cmdbus.clock import time
from cmdbus.errors import MissingRightError
from cmdbus.producer.bus import CommandBus
from cmdbus.producer.records import AuditEvent, DomainRecord, Waiting
from cmdbus.rollups import Times
from cmdbus.web.fleet_watch import watch_fleet
from cmdbus.web.query import Query
from cmdbus.web.views.attention import MAX_ENTRIES, Observed, attention
from cmdbus.web.views.rates import LiveRates, Rates

#: Domains that are shown: those with the most that waits, runs or fails.
_MAX_DOMAINS = 200
#: Seconds for which what changes rarely is not read again.
_KEPT_SECONDS = 5.0
#: The age of a last minute from its beginning on, at most.
_LAST_MINUTES = timedelta(minutes=3)


@dataclass(slots=True)
class _ReadRarely:
    """What changes rarely, or is much to read."""

    #: The monotonic time after which it is read again.
    until: float
    restricted: bool
    #: All but the domains.
    seen: Observed


@dataclass(slots=True)
class _Kept:
    """What one reading leaves for the next one, of one bus."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    rates: LiveRates = field(default_factory=LiveRates)
    rarely: _ReadRarely | None = None


_kept: WeakKeyDictionary[CommandBus, _Kept] = WeakKeyDictionary()


def read(bus: CommandBus, query: Query) -> object:
    query.check()
    watch_fleet(bus)
    kept = _kept.setdefault(bus, _Kept())
    records = bus.domains()
    counters = bus.fleet_counters()
    now = time.monotonic()
    rarely = kept.rarely
    if rarely is None or now > rarely.until:
        rarely = kept.rarely = _read_rarely(bus, records)
    seen = replace(rarely.seen, now=datetime.now(UTC), domains=records)
    found = {each.domain: each for each in records}
    names = found.keys() | (seen.minutes.keys() - {""})
    with kept.lock:
        kept.rates.observe(counters, {each.domain: _unfinished(each.all) for each in records}, now)
        rates = {name: _rates(kept.rates.of(name), name, seen) for name in names}
    entries = attention(seen)
    values = [_domain(name, found.get(name), rates[name]) for name in sorted(names)]
    return {
        "domains": _busiest(values),
        "hidden": max(0, len(values) - _MAX_DOMAINS),
        "totals": _totals(records, list(rates.values())),
        "attention": entries[:MAX_ENTRIES],
        "more": max(0, len(entries) - MAX_ENTRIES),
        "nodes": {
            "live": sum(not each.gone for each in seen.nodes),
            "gone": sum(each.gone for each in seen.nodes),
        },
        "live": kept.rates.is_known,
        "restricted": rarely.restricted,
    }


def _read_rarely(bus: CommandBus, records: Sequence[DomainRecord]) -> _ReadRarely:
    restricted = not bus.rights().reads_data
    paused = [each.domain for each in records if each.paused]
    pauses = {} if restricted else {name: _pause(bus, name) for name in paused[:10]}
    seen = Observed(
        now=datetime.now(UTC),
        nodes=bus.fleet(),
        breakers=bus.breakers.list(),
        schedules=bus.schedules.list(),
        bridges=bus.bridges.list(),
        minutes=bus.recent_minutes(),
        pauses={name: event for name, event in pauses.items() if event is not None},
    )
    return _ReadRarely(time.monotonic() + _KEPT_SECONDS, restricted, seen)


def _pause(bus: CommandBus, domain: str) -> AuditEvent | None:
    try:
        audit = bus.domain_audit(domain, latest=50)
    except MissingRightError:
        return None
    return next((event for event in reversed(audit) if event.kind == "PAUSED"), None)


def _rates(live: Rates, domain: str, seen: Observed) -> Rates:
    """Of the last minute, as long as nodes have not published twice."""
    minutes = seen.minutes.get(domain)
    if live.ending is not None or not minutes or minutes[-1].at < seen.now - _LAST_MINUTES:
        return live
    last = minutes[-1]
    arriving = None if last.arrived is None else last.arrived / 60
    return Rates(arriving, last.ended.over / 60, last.ended.waited, last.ended.ran)


def _domain(name: str, record: DomainRecord | None, rates: Rates) -> dict[str, Any]:
    """None: nothing of it is unfinished, and nothing is set."""
    counts = record.all if record else Waiting()
    return {
        "domain": name,
        "paused": record is not None and record.paused,
        "accepting": record is None or record.accepting,
        **_counts(counts),
        "oldest_age": round(counts.oldest_age, 1),
        "rate_in": _rounded(rates.arriving),
        "rate_out": _rounded(rates.ending),
        "waited": _times(rates.waited),
        "ran": _times(rates.ran),
    }


def _counts(counts: Waiting) -> dict[str, Any]:
    return {
        "waiting": counts.ready,
        "limited": counts.limited,
        "later": counts.scheduled,
        "running": counts.in_progress,
        "in_trouble": counts.troubleshooting,
    }


def _busiest(values: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if len(values) <= _MAX_DOMAINS:
        return values
    states = "in_trouble", "waiting", "limited", "running", "later"
    by_size = sorted(values, key=lambda each: [-each[state] for state in states])
    return sorted(by_size[:_MAX_DOMAINS], key=lambda each: str(each["domain"]))


def _totals(records: Sequence[DomainRecord], rates: Sequence[Rates]) -> dict[str, Any]:
    counts = sum((each.all for each in records), Waiting())
    arriving = [each.arriving for each in rates if each.arriving is not None]
    ending = [each.ending for each in rates if each.ending is not None]
    return {
        **_counts(counts),
        "oldest_age": round(counts.oldest_age, 1),
        "rate_in": _rounded(sum(arriving)) if arriving else None,
        "rate_out": _rounded(sum(ending)) if ending else None,
    }


def _unfinished(counts: Waiting) -> int:
    return counts.depth + counts.in_progress


def _times(times: Times) -> dict[str, float | None]:
    return {name: _rounded(getattr(times, name)) for name in ("p50", "p95", "p99")}


def _rounded(value: float | None) -> float | None:
    """To three digits: a figure that only trembles is not sent again."""
    return None if value is None else float(f"{value:.3g}")
