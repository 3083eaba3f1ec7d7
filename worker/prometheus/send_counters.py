"""Counters of what the buses of this process send."""

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from threading import Lock
from types import TracebackType
from typing import Self
from uuid import UUID

from cmdbus import instruments
from cmdbus.board.counters import OTHER, HistogramView
from cmdbus.board.layout import BUCKETS
from cmdbus.clock import time
from cmdbus.errors import (
    DuplicateCommandError,
    QueueFullError,
    SendRefusedError,
    ShutdownError,
)
from cmdbus.instruments import Instrument, Request, Sending
from cmdbus.worker.probes.families import Family, Sample
from cmdbus.worker.probes.samples import Samples, histograms

#: Series of one family; the others count as one.
_MAX_SERIES = 1000
_SENT = Family(
    "cmdbus_sent_commands_total",
    "counter",
    "Commands that this program has sent; also in transactions that it rolled back.",
)
_REFUSALS = Family(
    "cmdbus_send_refusals_total",
    "counter",
    "Calls of this program that sent nothing, as an argument was wrong or the domain or a hook "
    "refused them, by reason.",
)
_FAILURES = Family(
    "cmdbus_send_failures_total",
    "counter",
    "Calls of this program that were to send and failed otherwise, by error.",
)
_SECONDS = Family(
    "cmdbus_send_seconds", "histogram", "Seconds that calls took that have sent, by operation."
)
FAMILIES = (_SENT, _REFUSALS, _FAILURES, _SECONDS)
_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (DuplicateCommandError, "duplicate"),
    (ShutdownError, "closed"),
    (SendRefusedError, "hook"),
    (ValueError, "argument"),
)


class SendCounters(Instrument):
    """Counts while a collector wants it."""

    def __init__(self) -> None:
        #: One for each process, by its pid: a fork counts what it does itself, and never waits for
        #: its parent's lock.
        self._counts: dict[int, _Counts] = {}
        self._lock, self._collectors = Lock(), 0

    def begin(self) -> None:
        with self._lock:
            self._collectors += 1
            instruments.install(self)

    def end(self) -> None:
        """The counts stay, for the next collector."""
        with self._lock:
            self._collectors -= 1
            if not self._collectors:
                instruments.remove(self)

    def sending(self, requests: Sequence[Request], operation: str) -> "_CountedSend":
        return _CountedSend(self._own(), requests, operation)

    def samples(self) -> Samples:
        return self._own().samples()

    def _own(self) -> "_Counts":
        pid = os.getpid()
        return self._counts.get(pid) or self._counts.setdefault(pid, _Counts())


class _Counts:
    """The counts of one process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._sent: Counter[tuple[str, ...]] = Counter()
        self._refusals: Counter[tuple[str, ...]] = Counter()
        self._failures: Counter[tuple[str, ...]] = Counter()
        #: A count for each bucket, and the sum, by operation.
        self._seconds: dict[str, list[float]] = {}

    def sent(self, counted: Counter[tuple[str, str]]) -> None:
        with self._lock:
            for name, count in counted.items():
                _add(self._sent, name, OTHER, count)

    def ended(self, operation: str, seconds: float) -> None:
        with self._lock:
            row = self._seconds.setdefault(operation, [0] * (len(BUCKETS) + 2))
            row[bisect_left(BUCKETS, seconds)] += 1
            row[-1] += seconds

    def failed(self, error: BaseException) -> None:
        with self._lock:
            if (reason := _reason_of(error)) is not None:
                _add(self._refusals, (_domain_of(error), reason), ("", reason))
            else:
                _add(self._failures, (type(error).__name__,), ("other",))

    def samples(self) -> Samples:
        with self._lock:
            sent, refusals = dict(self._sent), dict(self._refusals)
            failures = dict(self._failures)
            seconds = {(operation,): _histogram(row) for operation, row in self._seconds.items()}
        return {
            _SENT.name: _samples(sent, "domain", "type"),
            _REFUSALS.name: _samples(refusals, "domain", "reason"),
            _FAILURES.name: _samples(failures, "error"),
            _SECONDS.name: histograms(seconds, ("operation",)),
        }


class _CountedSend(Sending):
    def __init__(self, counts: _Counts, requests: Sequence[Request], operation: str) -> None:
        self._counts, self._requests, self._operation = counts, requests, operation
        self._began = time.monotonic()

    def sent(self, ids: Sequence[UUID]) -> None:
        counted = Counter((request.domain, request.type) for request in self._requests)
        if lacking := self.count - counted.total():  # those of an iterator
            counted[OTHER] += lacking
        self._counts.sent(counted)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._counts.ended(self._operation, time.monotonic() - self._began)
        else:
            self._counts.failed(error)


def _add(
    counts: Counter[tuple[str, ...]], key: tuple[str, ...], other: tuple[str, ...], count: int = 1
) -> None:
    counts[key if key in counts or len(counts) < _MAX_SERIES else other] += count


def _reason_of(error: BaseException) -> str | None:
    """None if it is a failure and no refusal."""
    if isinstance(error, QueueFullError):
        return "full" if error.key is None else "key_full"
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return reason
    return None


def _domain_of(error: BaseException) -> str:
    """Empty if it is not known, or was not checked."""
    domain = getattr(error, "domain", None)
    checked = isinstance(error, SendRefusedError) and type(error) is not SendRefusedError
    return domain if checked and isinstance(domain, str) else ""


def _histogram(row: Sequence[float]) -> HistogramView:
    return HistogramView(tuple(int(count) for count in accumulate(row[:-1])), row[-1])


def _samples(counts: Mapping[tuple[str, ...], int], *names: str) -> Iterator[Sample]:
    for values, count in sorted(counts.items()):
        yield "", dict(zip(names, values, strict=True)), count


SEND_COUNTERS = SendCounters()
