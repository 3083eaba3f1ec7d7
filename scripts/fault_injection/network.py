"""Faults of the network between instances and their server."""

import time
from collections.abc import Callable

from loads.instances import Instance

from cmdbus.board.health import Health
from cmdbus.board.records import Role
from fault_injection.handlers import DOMAINS
from fault_injection.plan import Fault
from fault_injection.test_rig import TestRig, within

_SLOW_S = 0.03
#: A partition is noticed so soon.
_NOTICED_S = 10.0
_HELD = "SELECT count(*) FROM cmdbus.ready WHERE claimer = ANY (%s) AND domain = ANY (%s)"


class PromiseError(Exception):
    """Something was not as it is promised for while a fault lasts."""


class Network:
    def __init__(self, rig: TestRig) -> None:
        self._rig = rig
        self.faults: dict[str, Callable[[Fault], object]] = {
            "proxy-silent": self._be_silent,
            "proxy-slow": self._be_slow,
            "proxy-trickle": self._trickle,
            "proxy-cut": self._cut,
            "link-down": self._pull_plug,
        }

    def _be_silent(self, fault: Fault) -> None:
        with self._rig.proxy.silent():
            time.sleep(fault.lasts)

    def _be_slow(self, fault: Fault) -> None:
        with self._rig.proxy.slow(_SLOW_S):
            time.sleep(fault.lasts)

    def _trickle(self, fault: Fault) -> None:
        with self._rig.proxy.trickling():
            time.sleep(fault.lasts)

    def _cut(self, fault: Fault) -> None:
        self._rig.proxy.cut()

    def _pull_plug(self, fault: Fault) -> None:
        host = self._rig.hosts[fault.instance]
        instance = self._rig.instances[fault.instance]
        with self._rig.undoing(host.pull_plug, host.plug_in):
            ends_at = time.monotonic() + fault.lasts
            noticed = within(_NOTICED_S, lambda: _is_cut_off(instance))
            claimers = _incarnations(instance)
            left = fault.lasts - 0.1 - (noticed or _NOTICED_S)
            taken = within(left, lambda: not self._held(claimers))
            time.sleep(max(0.0, ends_at - time.monotonic()))
        if noticed is None:
            raise PromiseError(f"it was not noticed within {_NOTICED_S:g} s")
        if taken is None:
            raise PromiseError(f"no other host had its commands after {fault.lasts:g} s")

    def _held(self, claimers: list[int]) -> bool:
        with self._rig.connect() as connection:
            rows = connection.execute(_HELD, (claimers, [*DOMAINS])).fetchall()
        return bool(rows[0][0])


def _is_cut_off(instance: Instance) -> bool:
    """Its steward knows, and so do all workers but those that wait for somebody to ring."""
    view = instance.look_alone()
    if view is None:
        return False
    stewards, workers = view.with_role(Role.STEWARD), view.with_role(Role.WORKER)
    return any(steward.levels.database_away for steward in stewards) and all(
        worker.parked or worker.health is Health.DATABASE_AWAY for worker in workers
    )


def _incarnations(instance: Instance) -> list[int]:
    view = instance.look_alone()
    seats = view.seats if view is not None else []
    return [seat.incarnation for seat in seats if seat.incarnation is not None]
