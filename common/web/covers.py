"""What a limit or breaker is for: types, given as domain/type, and whole domains. Pure."""

from collections.abc import Collection, Iterable
from dataclasses import replace

from cmdbus.producer.records import DomainRecord, Waiting


def domains_covered(covers: Iterable[str]) -> list[str]:
    return sorted({cover.partition("/")[0] for cover in covers})


def waiting_of(covers: Collection[str], records: Iterable[DomainRecord]) -> Waiting:
    """How many commands it is about now; `records`: of its domains, and perhaps of others."""
    total = Waiting()
    for record in records:
        for type_, waiting in record.types.items():
            if record.domain in covers or f"{record.domain}/{type_}" in covers:
                total += replace(waiting, oldest_age=0.0)
    return total
