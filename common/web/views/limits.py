"""The view `limits`: what is in force, what apps declare, what operators have set, and how much of
it is taken now."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from cmdbus.limits import Limit
from cmdbus.producer.bus import CommandBus
from cmdbus.producer.limits import LimitRecord
from cmdbus.producer.records import Waiting
from cmdbus.web.query import Query
from cmdbus.web.views.records import concerns, remark

#: By type, as domain/type.
Counts = Mapping[str, Waiting]


def read(bus: CommandBus, query: Query) -> object:
    domain = query.text("domain")
    query.check()
    records = bus.limits.list()
    if domain is not None:
        records = [each for each in records if concerns(each.covers, domain)]
    domains = sorted({cover.partition("/")[0] for each in records for cover in each.covers})
    counts = {
        f"{found.domain}/{type_}": waiting
        for found in (bus.domains(*domains) if domains else [])
        for type_, waiting in found.types.items()
    }
    return {"limits": [limit(each, counts) for each in records]}


def limit(record: LimitRecord, counts: Counts) -> dict[str, Any]:
    set_ = record.set
    return {
        "name": record.name,
        "is_shared": "/" not in record.name,
        "covers": record.covers,
        "in_force": _terms(record.in_force),
        "declared": [
            {"app": each.app, "declared_at": each.declared_at, **_declared(each.limit)}
            for each in record.declared
        ],
        "set": None
        if set_ is None
        else {"values": set_.values, **remark(set_.operator, set_.reason, set_.set_at)},
        "usage": usage(record.covers, counts),
    }


def _terms(limit: Limit | None) -> dict[str, Any] | None:
    return None if limit is None else {"text": str(limit), **limit.terms}


def _declared(limit: Limit) -> dict[str, Any]:
    return {"text": str(limit), "terms": limit.terms}


def usage(covers: Iterable[str], counts: Counts) -> dict[str, Any]:
    """Of the types that the limit is for: what runs, what waits at a limit, and what is ready."""
    whole = [cover for cover in covers if "/" not in cover]
    total = Waiting()
    for type_, waiting in counts.items():
        if type_ in covers or type_.partition("/")[0] in whole:
            total += replace(waiting, oldest_age=0.0)
    return {"running": total.in_progress, "limited": total.limited, "ready": total.ready}
