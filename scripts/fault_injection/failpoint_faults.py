"""Faults at named points of the code: a trap is laid there, and what makes somebody come by is
done if nobody does.
"""

import time
from collections.abc import Callable

from loads.instances import Instance

from cmdbus import failpoints as points
from cmdbus.board.records import Role
from fault_injection.failpoints import FREEZE, KILL, pid_of
from fault_injection.plan import Fault
from fault_injection.test_rig import TestRig, chosen, kill, within

#: Until somebody is made to come by again, and until it is given up.
_COMES_S, _AMBUSH_S = 0.7, 4.0
_LOOK_S = 0.01
#: For so much of the dice a whole instance is frozen with its victim, else the victim alone.
_WHOLE = 0.3
#: Where nobody comes by of himself: whose death makes somebody.
_LURES = {
    points.ARMED: Role.STEWARD,
    points.IN_RESCUE: Role.WORKER,
    points.AFTER_RESCUE: Role.WORKER,
    points.BEFORE_FORK: Role.WORKER,
    points.IN_CHILD: Role.WORKER,
    points.AFTER_FORK: Role.WORKER,
    points.IN_REAP: Role.WORKER,
}


class FailpointFaults:
    def __init__(
        self, rig: TestRig, freeze: Callable[[Fault, int], None], occupy: Callable[[int], None]
    ) -> None:
        """`freeze` does it to the fault's instance, one pid of it first; `occupy` gives all
        instances so many commands that run for longer than a lease."""
        self._rig = rig
        self._failpoints = rig.failpoints
        self._freeze_all = freeze
        self._occupy = occupy

    def kill(self, fault: Fault) -> None:
        """One after another, as long as it lasts."""
        instance = self._rig.instances[fault.instance]
        deadline = time.monotonic() + fault.lasts
        while (left := deadline - time.monotonic()) > 0:
            if self._spring(fault, KILL, min(left, _AMBUSH_S)) is not None:
                self._rig.killed(instance)

    def freeze(self, fault: Fault) -> None:
        whole = fault.rand < _WHOLE
        if whole:
            self._occupy(self._rig.plan.options.procs)
        victim = self._spring(fault, FREEZE, _AMBUSH_S)
        if victim is None:
            return
        try:
            if whole:
                self._freeze_all(fault, pid_of(victim))
                return
            with self._rig.frozen(pid_of(victim)):
                time.sleep(fault.lasts)
        finally:
            self._failpoints.release(victim)

    def _spring(self, fault: Fault, what: str, seconds: float) -> str | None:
        """Who was caught; None if nobody was."""
        instance = self._rig.instances[fault.instance]
        point = fault.kind.partition("-at-")[2]
        before = len(self._failpoints.victims(instance.name, point, what))
        trap = self._failpoints.arm(instance.name, point, what)
        deadline = time.monotonic() + seconds
        while trap.exists() and (left := deadline - time.monotonic()) > 0:
            self._lure(instance, point, fault.rand)
            within(min(left, _COMES_S), lambda: not trap.exists(), _LOOK_S)
        trap.unlink(missing_ok=True)
        caught = self._failpoints.victims(instance.name, point, what)[before:]
        return caught[0] if caught else None

    def _lure(self, instance: Instance, point: str, rand: float) -> None:
        """Nobody who has just begun: a fleet that is killed faster than it starts goes nowhere."""
        view = instance.look_alone()
        if view is None or (role := _LURES.get(point)) is None:
            return
        ready = [seat.pid for seat in view.with_role(role) if seat.ready and seat.pid]
        whole = len(ready) >= view.wanted if role is Role.WORKER else view.armed > 0
        pid = chosen(ready, rand)
        if whole and pid is not None and instance.is_child(pid):
            self._rig.killed(instance)
            kill(pid)
