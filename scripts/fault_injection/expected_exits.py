"""Which exits of supervisors have a fault as their cause."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from lab.instances import Instance

from cmdbus.exits import Exit
from fault_injection.failpoints import KILL, Failpoints, pid_of

#: Seconds within which a supervisor that is refused at its start has exited.
_REFUSED_S = 6.0
#: Kills in a minute after which a supervisor may give up: it cannot know that a fault kills its
#: workers, and not the application.
_MAX_KILLS = 4
_MINUTE_S = 60.0


class ExpectedExits:
    def __init__(self, failpoints: Failpoints) -> None:
        self._failpoints = failpoints
        #: Supervisors that were ended on purpose.
        self._pids: set[int] = set()
        #: When a fault killed a process of an instance, by its name.
        self._kills: dict[str, list[float]] = {}
        self._refusals = 0
        self._refused_at = float("-inf")

    def expect(self, instance: Instance) -> None:
        self._pids.add(instance.pid)

    def add_kill(self, instance: Instance) -> None:
        self._kills.setdefault(instance.name, []).append(time.monotonic())

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Meanwhile a supervisor may exit at its start: only an operator can repair the cause."""
        self._refusals += 1
        try:
            yield
        finally:
            self._refused_at = time.monotonic()
            self._refusals -= 1

    def is_expected(self, instance: Instance, code: int) -> bool:
        """Of the latest exit of an instance."""
        if instance.pid in self._pids:
            self._pids.discard(instance.pid)
            return True
        now = time.monotonic()
        if code == -signal.SIGKILL:
            victims = self._failpoints.victims(instance.name, what=KILL)
            return instance.pid in map(pid_of, victims)
        if code == Exit.CANNOT_START:
            return bool(self._refusals) or now < self._refused_at + _REFUSED_S
        recent = [at for at in self._kills.get(instance.name, ()) if at > now - _MINUTE_S]
        return code == Exit.CRASH_LOOP and len(recent) >= _MAX_KILLS
