"""What a registry of prometheus_client says when it is scraped."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from cmdbus.prometheus import Collector

Samples = dict[tuple[tuple[str, str], ...], float]


@contextmanager
def registered(*arguments: Any, **options: Any) -> Iterator[CollectorRegistry]:
    registry = CollectorRegistry(auto_describe=True)
    with closing(Collector(*arguments, **options)) as collector:
        registry.register(collector)
        yield registry


def read(page: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(page)}


def scraped(registry: CollectorRegistry) -> dict[str, Metric]:
    """Families by name, in both formats, which say the same."""
    plain = read(generate_latest(registry).decode())
    text = generate_openmetrics(registry).decode()  # type: ignore[no-untyped-call]
    families = {family.name: family for family in read_openmetrics(text)}  # type: ignore[no-untyped-call]
    assert {name: family.type for name, family in families.items()} == {
        name: family.type for name, family in plain.items()
    }
    return families


def values_of(family: Metric) -> set[tuple[str, frozenset[tuple[str, str]], float]]:
    found = {(s.name, frozenset(s.labels.items()), float(s.value)) for s in family.samples}
    assert len(found) == len(family.samples)
    return found


def samples(registry: CollectorRegistry, name: str, suffix: str = "") -> Samples:
    """Values by labels, of the only family of this name."""
    [family] = [family for family in registry.collect() if family.name == name]
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for sample in family.samples
        if sample.name.endswith(suffix)
    }
