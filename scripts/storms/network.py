"""Faults of the network between the first instance and its server."""

import time
from collections.abc import Callable

from storms.plan import Fault
from storms.world import World

_SLOW_S = 0.03


class Network:
    def __init__(self, world: World) -> None:
        self._world = world
        self.faults: dict[str, Callable[[Fault], object]] = {
            "proxy-silent": self._be_silent,
            "proxy-slow": self._be_slow,
            "proxy-cut": self._cut,
        }

    def _be_silent(self, fault: Fault) -> None:
        with self._world.proxy.silent():
            time.sleep(fault.lasts)

    def _be_slow(self, fault: Fault) -> None:
        with self._world.proxy.slow(_SLOW_S):
            time.sleep(fault.lasts)

    def _cut(self, fault: Fault) -> None:
        self._world.proxy.cut()
