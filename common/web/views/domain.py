"""The view `domain/NAME`: its settings, its types with what keeps them waiting, the limits,
breakers and schedules that are for it, and what operators have changed."""

from dataclasses import asdict
from datetime import timedelta
from typing import Any

from cmdbus.checks import check_name
from cmdbus.producer.bus import CommandBus
from cmdbus.producer.records import DomainRecord, Waiting
from cmdbus.web.covers import domains_covered
from cmdbus.web.query import Query
from cmdbus.web.views.breakers import breaker
from cmdbus.web.views.bridges import bridge
from cmdbus.web.views.limits import limit
from cmdbus.web.views.records import events, why_unclaimed
from cmdbus.web.views.schedules import schedule

_SETTINGS = ("max_depth", "warn_depth", "max_waiting_per_key", "keep")
#: Changes that are shown, at most: the latest.
_EVENTS = 100
#: Of a domain that has no settings.
_KEEP = timedelta(days=7)


def read(bus: CommandBus, query: Query) -> object:
    name = check_name("domain", query.part(0, "the name of a domain"))
    query.check()
    restricted = not bus.rights().reads_data
    found = bus.domains(name)
    record = found[0] if found else _unknown(name)
    return {
        "domain": name,
        #: Something of it is unfinished, or set.
        "known": bool(found),
        "paused": record.paused,
        "accepting": record.accepting,
        "settings": {name: getattr(record, name) for name in _SETTINGS},
        "depth": record.all.depth,
        **asdict(record.all),
        "types": [_type(record, type_) for type_ in record.types],
        "limits": [
            limit(e, [record]) for e in bus.limits.list() if name in domains_covered(e.covers)
        ],
        "breakers": [
            breaker(e, None) for e in bus.breakers.list() if name in domains_covered(e.covers)
        ],
        "schedules": [schedule(e, False) for e in bus.schedules.list() if e.domain == name],
        "bridges": [bridge(e) for e in bus.bridges.list() if name in (e.domain, e.reply_to)],
        "audit": None if restricted else events(bus.domain_audit(name, latest=_EVENTS)),
        "restricted": restricted,
    }


def _unknown(name: str) -> DomainRecord:
    limits = None, None, None
    return DomainRecord(name, False, True, *limits, _KEEP, Waiting(), {}, [], {}, {})


def _type(record: DomainRecord, type_: str) -> dict[str, Any]:
    return {"type": type_, **asdict(record.types[type_]), "why": why_unclaimed(record, type_)}
