"""When a failed command is tried again. Pure: random numbers are passed in."""

from collections.abc import Sequence
from dataclasses import dataclass

from cmdbus.checks import check_seconds, check_whole

MAX_ATTEMPTS = 32767
#: Executions lost without an outcome (a crash, a lost session or node) before a command goes to
#: quarantine, and before it goes to troubleshooting.
SUSPECT_LOSSES = 2
MAX_LOSSES = 3


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a failing command is executed, and how long it waits in between.

    `max_attempts` counts executions, the first one included. `backoff` lists the pauses in
    seconds: the n-th follows the n-th failed execution, and the last one repeats. The default of
    three attempts therefore waits 10 s and 60 s; the 300 s apply only from the fourth attempt on,
    for example when a sender asks for more. `jitter` is the share of a pause by which it is
    randomly shortened or lengthened at most. A handler's `retry_after` replaces the pause.
    """

    max_attempts: int = 3
    backoff: Sequence[float] = (10, 60, 300)
    jitter: float = 0.1

    def __post_init__(self) -> None:
        check_whole("max_attempts", self.max_attempts, 1, MAX_ATTEMPTS)
        if isinstance(self.backoff, str) or not isinstance(self.backoff, Sequence):
            raise ValueError(f"backoff must be a sequence of seconds, not {self.backoff!r:.80}")
        if not self.backoff:
            raise ValueError("backoff must have at least one entry, for example (10, 60, 300)")
        object.__setattr__(
            self, "backoff", tuple(check_seconds("backoff", seconds) for seconds in self.backoff)
        )
        is_number = isinstance(self.jitter, int | float) and not isinstance(self.jitter, bool)
        if not (is_number and 0 <= self.jitter <= 1):
            raise ValueError(f"jitter must be a share from 0 to 1, not {self.jitter!r:.80}")

    def delay(self, attempt: int, rand: float) -> float:
        """Seconds to wait after the `attempt`-th execution failed; `rand` is from 0 to 1."""
        seconds = self.backoff[min(attempt, len(self.backoff)) - 1]
        return seconds * (1 + self.jitter * (2 * rand - 1))
