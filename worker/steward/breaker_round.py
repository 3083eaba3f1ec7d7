"""Lets the node's processes read the states of breakers again, at the poll interval while no
session listens for changes."""

from dataclasses import dataclass

from cmdbus.clock import time
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.steward.listening import Listening
from cmdbus.worker.steward.timer_round import TimerRound


@dataclass(slots=True)
class BreakerRound:
    listening: Listening
    #: Its poll interval applies here, too.
    timers: TimerRound
    #: Monotonic time of the next change that is counted.
    _due: float = 0.0

    def run(self, connection: Connection) -> float:
        now = time.monotonic()
        if self.listening.is_on:
            return float("inf")
        if now >= self._due:
            self.listening.count_breaker_change()
            self._due = now + self.timers.poll_interval
        return self._due - now
