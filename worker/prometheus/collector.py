"""A collector for a registry of prometheus_client."""

import logging
import os
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from prometheus_client import Metric

from cmdbus.board.views import BoardView
from cmdbus.checks import check_seconds, shown
from cmdbus.producer.bus import CommandBus
from cmdbus.prometheus.database import DatabaseGauge
from cmdbus.prometheus.send_counters import FAMILIES as FAMILIES_OF_SENDS
from cmdbus.prometheus.send_counters import SEND_COUNTERS
from cmdbus.worker.probes.families import FAMILIES, Family, Sample
from cmdbus.worker.probes.responses import Gauges
from cmdbus.worker.probes.samples import Samples, of_board, of_database

if TYPE_CHECKING:
    from cmdbus.asynchronous.bus import AsyncCommandBus
    from cmdbus.worker.worker import Worker

logger = logging.getLogger(__name__)

#: Seconds for which a collector that ends waits for its thread, which closes its session.
_STOP_SECONDS = 1.0
#: Domains whose queues are shown also when they are empty again.
_MAX_DOMAINS = 10_000


class Collector:
    """The metrics of one process and of its database, with the names of the page `/metrics`.

    Register it in one registry: `REGISTRY.register(Collector(bus))`. A scrape never fails: what
    is not known has no samples, and `cmdbus_database_up` says whether the database answers.
    """

    def __init__(
        self,
        bus: "CommandBus | AsyncCommandBus | None" = None,
        worker: "Worker | None" = None,
        *,
        sends: bool = True,
        timeout: float = 1.0,
    ) -> None:
        """`bus`: of which database queues, batches, processes, breakers and nodes are counted, at
        most every 5 seconds, on one more session of each process that is scraped; its role needs
        the rights of a monitor. `worker`: one that this process runs. `sends`: whether what any
        bus of this process sends is counted, from now on. `timeout`: seconds for which a scrape
        waits for the database."""
        self._bus = None if bus is None else _bus_of(bus)
        self._worker = None if worker is None else _checked(worker)
        self._timeout = check_seconds("timeout", timeout)
        self._counts_sends = sends
        self._families = tuple(self._chosen())
        if not self._families:
            raise ValueError("Collector has nothing to show: give it a bus or a worker")
        if sends:
            SEND_COUNTERS.begin()
        #: One for each process, by its pid: a fork has no threads of its parent's, and must not use
        #: its session. The pid is compared at each use, because a fork in C, as uWSGI's, runs no
        #: hooks.
        self._gauges: dict[int, DatabaseGauge] = {}
        self._domains: frozenset[str] = frozenset()
        self._closed = False
        self._end = weakref.finalize(self, _end, self._gauges, sends)

    def describe(self) -> Iterable[Metric]:
        """What it may collect; registries ask for it, and refuse names that they have already."""
        return [_metric(family, ()) for family in self._families]

    def collect(self) -> Iterator[Metric]:
        samples = self._samples()
        for family in self._families:
            yield _metric(family, samples[family.name])

    def close(self) -> None:
        """Ends its thread and its session, and its counting of sends."""
        self._closed = True
        self._end()

    def _chosen(self) -> Iterator[Family]:
        for family in FAMILIES:
            if (self._bus if family.of_database else self._worker) is not None:
                yield family
        if self._counts_sends:
            yield from FAMILIES_OF_SENDS

    def _samples(self) -> Samples:
        samples: Samples = {}
        domains: Iterable[str] = ()
        if self._worker is not None:
            counters = self._worker._telemetry.board.counters()
            samples |= of_board(_view_of(self._worker), counters)
            domains = {domain for domain, _ in counters.dequeue_latency}
        if self._bus is not None:
            gauges = self._read(self._bus)
            samples |= of_database(gauges, self._shown(gauges, domains))
        if self._counts_sends:
            samples |= SEND_COUNTERS.samples()
        return samples

    def _shown(self, gauges: Gauges, domains: Iterable[str]) -> Iterable[str]:
        """A domain whose queue becomes empty keeps its series."""
        if len(self._domains) < _MAX_DOMAINS:
            self._domains |= {domain for domain, _ in gauges.depths or ()}
        return self._domains.union(domains)

    def _read(self, bus: CommandBus) -> Gauges:
        if self._closed:
            return Gauges()
        pid = os.getpid()
        gauge = self._gauges.get(pid)
        if gauge is None:
            made = DatabaseGauge(bus, self._timeout)
            # Scrapes that come together agree on one: setdefault is atomic.
            gauge = self._gauges.setdefault(pid, made)
            if gauge is made:
                try:
                    gauge.start()
                except RuntimeError as error:  # No thread for it.
                    del self._gauges[pid]
                    logger.warning("the metrics of the database are not known: %s", error)
                    return Gauges()
        return gauge.read()


def _end(gauges: dict[int, DatabaseGauge], sends: bool) -> None:
    """In a forked child the gauge of its parent is kept as it is."""
    if sends:
        SEND_COUNTERS.end()
    gauge = gauges.pop(os.getpid(), None)
    if gauge is not None:
        gauge.stop(_STOP_SECONDS)


def _metric(family: Family, samples: Iterable[Sample]) -> Metric:
    name = family.name
    metric = Metric(name.removesuffix("_total"), family.description, family.type)
    for suffix, labels, value in samples:
        metric.add_sample(name + suffix, dict(labels), value)
    return metric


def _bus_of(bus: "CommandBus | AsyncCommandBus") -> CommandBus:
    if isinstance(bus, CommandBus):
        return bus
    from cmdbus.asynchronous.bus import AsyncCommandBus

    if not isinstance(bus, AsyncCommandBus):
        raise ValueError(f"bus must be a CommandBus or an AsyncCommandBus, not {shown(bus)}")
    return bus._bus


def _checked(worker: "Worker") -> "Worker":
    from cmdbus.worker.worker import Worker

    if not isinstance(worker, Worker):
        raise ValueError(f"worker must be a Worker, not {shown(worker)}")
    return worker


def _view_of(worker: "Worker") -> BoardView:
    """A view as a supervisor would have of its only process."""
    view = worker._telemetry.board.snapshot(claims=False)
    runs = worker._runner is not None
    seats = [
        replace(seat, levels=worker.health, ready=seat.ready if runs else None)
        for seat in view.seats
    ]
    return replace(view, wanted=1, seats=tuple(seats))
