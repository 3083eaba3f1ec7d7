"""The view `limits`: what is in force, what apps declare, what operators have set, and how much of
it is taken now."""

from collections.abc import Sequence
from typing import Any

from cmdbus.limits import Limit
from cmdbus.producer.bus import CommandBus
from cmdbus.producer.limits import LimitRecord
from cmdbus.producer.records import DomainRecord, Waiting
from cmdbus.web.covers import domains_covered, waiting_of
from cmdbus.web.query import Query
from cmdbus.web.views.records import set_by


def read(bus: CommandBus, query: Query) -> object:
    domain = query.text("domain")
    query.check()
    records = bus.limits.list()
    if domain is not None:
        records = [each for each in records if domain in domains_covered(each.covers)]
    names = domains_covered(cover for each in records for cover in each.covers)
    domains = bus.domains(*names) if names else []
    return {"limits": [limit(each, domains) for each in records]}


def limit(record: LimitRecord, domains: Sequence[DomainRecord]) -> dict[str, Any]:
    return {
        "name": record.name,
        "is_shared": "/" not in record.name,
        "covers": record.covers,
        "in_force": _terms(record.in_force),
        "declared": [
            {"app": each.app, "declared_at": each.declared_at, **_declared(each.limit)}
            for each in record.declared
        ],
        "set": set_by(record.set),
        "usage": _usage(waiting_of(record.covers, domains)),
    }


def _terms(limit: Limit | None) -> dict[str, Any] | None:
    return None if limit is None else {"text": str(limit), **limit.terms}


def _declared(limit: Limit) -> dict[str, Any]:
    return {"text": str(limit), "terms": limit.terms}


def _usage(waiting: Waiting) -> dict[str, Any]:
    """What runs, what waits at a limit, and what is ready."""
    return {"running": waiting.in_progress, "limited": waiting.limited, "ready": waiting.ready}
