"""What a process does with its threads and its CPU time, from counters that are kept anyway."""

from cmdbus.board.counters import LoadView
from cmdbus.clock import time
from cmdbus.proc import CpuLoad
from cmdbus.worker.load_sample import LoadSample
from cmdbus.worker.pipeline.telemetry import Telemetry
from cmdbus.worker.thread_pool import ThreadPool

#: Seconds between two readings at least.
_READ_SECONDS = 0.9


class LoadMeter:
    """Used by the main thread."""

    def __init__(self, threads: ThreadPool, telemetry: Telemetry) -> None:
        self._threads, self._telemetry = threads, telemetry
        self._cpu_load = CpuLoad()
        self._read_at = time.monotonic()
        self._sums = self._read(self._read_at)

    def sample(self) -> LoadSample | None:
        """Since the last one; None until it is time for the next."""
        now = time.monotonic()
        seconds = now - self._read_at
        if seconds < _READ_SECONDS:
            return None
        load_before, busy_before, cpu_before = self._sums
        self._read_at, self._sums = now, self._read(now)
        load, busy, cpu = self._sums
        return LoadSample(
            seconds=seconds,
            ended=load.ended - load_before.ended,
            # A command that has timed out does not run, and its end is not counted yet.
            busy=max(0.0, busy - busy_before),
            claims=load.claims - load_before.claims,
            empty=load.empty - load_before.empty,
            cpu=cpu - cpu_before,
            machine=self._cpu_load.share() * seconds,
        )

    def _read(self, now: float) -> tuple[LoadView, float, float]:
        """Sums since the start: the load; the seconds in handlers, also in those that run now; and
        the CPU seconds."""
        load = self._telemetry.board.load(self._telemetry.seat.index)
        busy = load.seconds + self._threads.running_seconds(now)
        return load, busy, time.process_time()
