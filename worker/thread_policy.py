"""How many threads a worker process runs, if it may choose from a range. Pure.

The policy climbs: it takes a step, and keeps it only if the figures of the next seconds are as
good as the step promises.

    steady      the figures decide which step is tried: more threads while commands wait, fewer if
                the CPU is busy or handlers have become slower
    trial       a window of figures after that step: keep the number, or step back
    idle        for some seconds fewer threads were busy: a step towards as many

A step doubles or halves the number; near the best number it is smaller. Each trial that fails
doubles the pause before the next one of its direction, until the load changes.
"""

from dataclasses import dataclass
from math import ceil

from cmdbus.board.threads import StepReason
from cmdbus.settings import ThreadRange
from cmdbus.worker.load_sample import LoadSample

#: Seconds after a step whose figures are ignored: threads connect, or end their commands.
_SETTLE_SECONDS = 0.9
#: Seconds of a window, at least.
_WINDOW_SECONDS = 1.9
#: Ended commands that make a window of this length enough.
_ENOUGH_ENDED = 30
#: Seconds of a window in which fewer commands end, at most.
_MAX_WINDOW_SECONDS = 3.9
#: Busy threads, as a share of all, that a step for idle ones aims at.
_TARGET = 0.75
#: Seconds for which threads are idle before some end.
_IDLE_SECONDS = 10.0
#: Share of the throughput that a step to twice as many threads must add; a smaller one in
#: proportion. Times the share of threads that a step removes, it is what that may lose.
_GAIN = 0.1
#: Threads up to this number are kept unless they do less: while one claims, others compute.
_FEW = 4
#: Factor of the number in the first steps.
_FAR = 2.0
#: Factor of the number in steps near the best one.
_NEAR = 1.4
#: Seconds until the next trial of a direction after the first that failed; each failure doubles
#: them.
_SOON_SECONDS = 3.0
#: The same after a small step.
_HOLD_SECONDS = 15.0
#: Seconds between two trials of a direction, at most.
_MAX_HOLD_SECONDS = 300.0
#: Seconds between two trials of fewer threads that no figure suggests.
_PROBE_SECONDS = 60.0
#: Seconds without growth after the system had nothing left for more threads.
_REFUSED_SECONDS = 60.0
#: Factor by which handlers take longer than before, from which fewer threads are tried.
_SLOWER = 1.5
#: Factor of the throughput, up or down, that shows a changed load.
_CHANGED = 1.4
#: CPUs, more or fewer, that show a changed load.
_CHANGED_CPU = 0.4
#: Seconds between two changes of the load that count.
_CHANGE_SECONDS = 20.0


class _Direction:
    """Steps up or steps down: when the next one may be tried, and how large it is."""

    def __init__(self) -> None:
        self.factor = _FAR
        self.at = 0.0
        self._pause = _SOON_SECONDS

    def hold(self, now: float, seconds: float) -> None:
        self.at = max(self.at, now + seconds)

    def succeed(self, now: float, *, is_far: bool) -> None:
        """`is_far`: the best number seems to lie far beyond."""
        if is_far:
            self.factor = _FAR
        elif self.factor == _NEAR:
            self.hold(now, _HOLD_SECONDS)

    def fail(self, now: float, *, is_last: bool) -> None:
        """`is_last`: no number lies between the two that were compared."""
        if is_last or self.factor == _NEAR:
            self._pause = max(_HOLD_SECONDS, self._pause)
        self.factor = _NEAR
        self.hold(now, self._pause)
        self._pause = min(max(_HOLD_SECONDS, 2 * self._pause), _MAX_HOLD_SECONDS)


@dataclass(frozen=True, slots=True)
class _Trial:
    #: The number of threads before the step, and its figures.
    threads: int
    before: LoadSample


class ThreadPolicy:
    def __init__(self, bounds: ThreadRange, threads: int) -> None:
        self.bounds = bounds
        #: The number that is due, and why.
        self.threads = min(max(threads, bounds.least), bounds.most)
        self.reason = StepReason.STARTED
        #: Seconds that were observed.
        self._now = 0.0
        self._settled_at = 0.0
        self._window = LoadSample()
        self._more, self._fewer = _Direction(), _Direction()
        self._trial: _Trial | None = None
        #: The latest trial found that fewer threads do more.
        self._fewer_gains = False
        self._probe_at, self._probe_pause = _PROBE_SECONDS, _PROBE_SECONDS
        #: The figures of the latest decision; a change of the load differs from them.
        self._reference: LoadSample | None = None
        self._changed_at, self._differs = 0.0, False
        #: The time since which threads idle, and the most that were busy since then.
        self._idle_since: float | None = None
        self._idle_peak = 0.0

    def observe(self, sample: LoadSample) -> bool:
        """Takes what was done since the last call; whether another number is due."""
        before = self.threads
        began = self._now
        self._now += sample.seconds
        if sample.seconds > 0 and began >= self._settled_at:
            self._window += sample
            if self._is_full(self._window):
                window, self._window = self._window, LoadSample()
                self._decide(window)
        return self.threads != before

    def forget(self) -> None:
        """After an outage or a stall, whose figures say nothing."""
        self._window, self._trial, self._idle_since = LoadSample(), None, None

    def refuse(self, threads: int) -> None:
        """Nothing was left for as many threads or connections; there are so many now."""
        fewer = self._fewer_by(_NEAR)
        if self._trial is not None and self._trial.threads < self.threads:
            fewer = self._trial.threads
        self.forget()
        self._more.hold(self._now, _REFUSED_SECONDS)
        self._step(max(self.bounds.least, min(threads, fewer)), StepReason.NO_RESOURCES)

    def _is_full(self, window: LoadSample) -> bool:
        enough = window.ended >= _ENOUGH_ENDED or not window.has_waiting_work(self.threads)
        return window.seconds >= (_WINDOW_SECONDS if enough else _MAX_WINDOW_SECONDS)

    def _decide(self, window: LoadSample) -> None:
        trial, self._trial = self._trial, None
        if not window.has_waiting_work(self.threads):
            self._check_idle(window)
            return
        self._idle_since = None
        if trial is not None and not self._accepts(trial, window):
            return
        changed = trial is None and self._has_changed(window)
        if changed:
            self._begin_anew()
        self._try_next(window)
        if changed:
            self._reference = window

    def _check_idle(self, window: LoadSample) -> None:
        if not window.has_idle_threads(self.threads):
            self._idle_since = None
            return
        if self._idle_since is None:
            self._idle_since, self._idle_peak = self._now - window.seconds, 0.0
        self._idle_peak = max(self._idle_peak, window.busy_threads)
        if self._now - self._idle_since < _IDLE_SECONDS:
            return
        needed = max(self.bounds.least, ceil(self._idle_peak / _TARGET), self.threads // 2)
        if needed < self.threads:
            if window.finds_work:  # Commands are too short for more threads: these do not help.
                self._more.fail(self._now, is_last=True)
            else:
                self._begin_anew()
            self._step(needed, StepReason.THREADS_IDLE)
            self._idle_since, self._idle_peak = self._now - _IDLE_SECONDS / 2, 0.0
        else:
            self._idle_since, self._idle_peak = self._now, 0.0

    def _begin_anew(self) -> None:
        """What has failed may help another load."""
        self._more, self._fewer = _Direction(), _Direction()
        self._probe_pause = _PROBE_SECONDS

    def _has_changed(self, window: LoadSample) -> bool:
        """Whether two windows in a row differ from the figures of the latest decision."""
        reference = self._reference
        if reference is None or not (reference.is_telling and window.is_telling):
            self._reference = window
            return False
        factor = window.rate / reference.rate
        cpus = abs(window.cpus - reference.cpus)
        differs = not 1 / _CHANGED < factor < _CHANGED or cpus > _CHANGED_CPU
        differed, self._differs = self._differs, differs
        if not (differed and differs) or self._now < self._changed_at + _CHANGE_SECONDS:
            return False
        self._changed_at = self._now
        return True

    def _accepts(self, trial: _Trial, window: LoadSample) -> bool:
        """Whether the trial's step was good; else takes it back."""
        if self.threads > trial.threads:
            tried, other, good = self._more, self._fewer, _has_gained(trial, self.threads, window)
        else:
            tried, other, good = (
                self._fewer,
                self._more,
                _did_as_much(trial, self.threads, window),
            )
        if good:
            gain = window.rate / trial.before.rate if trial.before.ended else 1.0
            self._fewer_gains = tried is self._fewer and gain > 1 + _GAIN / 2
            self._reference = window
            tried.succeed(self._now, is_far=_is_far(trial, self.threads, window))
            # The number before was no better.
            other.factor = _NEAR
            other.hold(self._now, _HOLD_SECONDS)
            return True
        self._fewer_gains, self._reference = False, trial.before
        tried.fail(self._now, is_last=abs(self.threads - trial.threads) == 1)
        if tried is self._fewer:
            self._probe_pause = min(2 * self._probe_pause, 2 * _MAX_HOLD_SECONDS)
        reason = StepReason.NO_GAIN if tried is self._more else StepReason.FEWER_DID_LESS
        self._step(trial.threads, reason)
        return False

    def _try_next(self, window: LoadSample) -> None:
        more = fewer = False
        are_few = self.threads <= _FEW
        if self.threads > self.bounds.least:
            fewer = self._now >= self._fewer.at
        if self.threads < self.bounds.most:
            more = self._now >= self._more.at
        if fewer and not are_few and window.is_cpu_busy:
            threads = max(_FEW, self._fewer_by(self._fewer.factor))
            self._try(threads, StepReason.CPU_BUSY, window)
        elif fewer and (self._fewer_gains or (not are_few and self._is_slower(window))):
            self._try(self._fewer_by(self._fewer.factor), StepReason.HANDLERS_SLOWER, window)
        elif more:
            self._try(self._more_by(self._more.factor), StepReason.WORK_WAITS, window)
        elif fewer and self._now >= self._probe_at:
            self._try(self._fewer_by(_NEAR), StepReason.FEWER_MAY_DO, window)

    def _is_slower(self, window: LoadSample) -> bool:
        reference = self._reference
        if reference is None or not (reference.is_telling and window.is_telling):
            return False
        return window.busy / window.ended > _SLOWER * reference.busy / reference.ended

    def _try(self, threads: int, reason: StepReason, window: LoadSample) -> None:
        self._trial = _Trial(self.threads, window)
        self._step(threads, reason)

    def _more_by(self, factor: float) -> int:
        return min(self.bounds.most, max(self.threads + 1, round(self.threads * factor)))

    def _fewer_by(self, factor: float) -> int:
        return max(self.bounds.least, min(self.threads - 1, round(self.threads / factor)))

    def _step(self, threads: int, reason: StepReason) -> None:
        self.threads, self.reason = threads, reason
        self._settled_at = self._now + _SETTLE_SECONDS
        self._probe_at = self._now + self._probe_pause
        self._window = LoadSample()


def _has_gained(trial: _Trial, threads: int, window: LoadSample) -> bool:
    """Whether more threads did more. Of long commands few end: then more of them help as long as
    they leave CPU."""
    if not (trial.before.is_telling and window.is_telling):
        return not window.is_cpu_busy
    if threads <= _FEW:
        return window.rate >= trial.before.rate * (1 - _GAIN / 2)
    share = min(1.0, threads / trial.threads - 1)
    return window.rate >= trial.before.rate * (1 + _GAIN * share)


def _did_as_much(trial: _Trial, threads: int, window: LoadSample) -> bool:
    """Whether fewer threads did as much."""
    if not (trial.before.is_telling and window.is_telling):
        return window.is_cpu_busy
    if threads < _FEW:
        return window.rate >= trial.before.rate * (1 + _GAIN / 2)
    loss = _GAIN * (1 - threads / trial.threads)
    if window.is_bound_by_one_cpu:
        loss *= 2  # They use the CPU as before: most of the loss is noise.
    return window.rate >= trial.before.rate * (1 - loss)


def _is_far(trial: _Trial, threads: int, window: LoadSample) -> bool:
    """Whether a step that was good promises as much of the next one: throughput grew with most of
    the added threads, or did not fall at all."""
    if not (trial.before.is_telling and window.is_telling):
        return True
    grown = max(0.0, threads / trial.threads - 1)
    return window.rate >= trial.before.rate * (1 + grown / 2)
