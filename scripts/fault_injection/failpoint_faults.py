"""Faults at failpoints: one is armed, and what makes a process reach it is done if none does."""

import time

from lab.instances import Instance

from cmdbus import failpoints as points
from cmdbus.board.records import Role
from fault_injection.failpoints import FREEZE, KILL, pid_of
from fault_injection.kinds import Fault, Kind
from fault_injection.process_faults import freeze_instance, occupy
from fault_injection.rig import Rig, chosen, kill, within

#: Seconds until a process is made to reach the failpoint, and until the fault gives up.
_PROVOKE_S, _HIT_WITHIN_S = 0.7, 4.0
_LOOK_S = 0.01
#: Share of the freezes that freeze a whole instance, not only the process at the failpoint.
_WHOLE = 0.3
#: What processes do at each failpoint.
_POINTS = {
    points.AFTER_CLAIM: "whose claim is committed",
    points.BEFORE_EFFECT: "that is about to call a handler",
    points.BEFORE_COMMIT: "that is about to commit",
    points.AFTER_COMMIT: "that has committed",
    points.AFTER_RETURN: "whose handler has returned",
    points.SETTLED: "that has settled",
    points.ARMED: "that has armed",
    points.PROMOTED: "that has promoted",
    points.BEFORE_TICK: "that is about to send for a tick",
    points.AFTER_TICK: "that has sent for a tick",
    points.BEFORE_MOVE: "that is about to move messages over a bridge",
    points.AFTER_MOVE: "that has moved messages over a bridge",
    points.IN_RESCUE: "that has ended the sessions of a dead one",
    points.AFTER_RESCUE: "that has handed back",
    points.BEFORE_FORK: "that is about to fork",
    points.IN_CHILD: "that was just forked",
    points.AFTER_FORK: "that has forked",
    points.IN_REAP: "that has reaped",
}
#: Failpoints that an undisturbed fleet does not reach, and the role whose crash leads to them.
_PROVOKED_BY = {
    points.ARMED: Role.STEWARD,
    points.IN_RESCUE: Role.WORKER,
    points.AFTER_RESCUE: Role.WORKER,
    points.BEFORE_FORK: Role.WORKER,
    points.IN_CHILD: Role.WORKER,
    points.AFTER_FORK: Role.WORKER,
    points.IN_REAP: Role.WORKER,
}


def _kill(rig: Rig, fault: Fault) -> None:
    """One process after another, as long as the fault lasts."""
    instance = rig.instances[fault.instance]
    deadline = time.monotonic() + fault.lasts
    while (left := deadline - time.monotonic()) > 0:
        if _hit(rig, fault, KILL, min(left, _HIT_WITHIN_S)) is not None:
            rig.exits.add_kill(instance)


def _freeze(rig: Rig, fault: Fault) -> None:
    whole = fault.rand < _WHOLE
    if whole:
        occupy(rig, rig.plan.options.procs)
    victim = _hit(rig, fault, FREEZE, _HIT_WITHIN_S)
    if victim is None:
        return
    try:
        if whole:
            freeze_instance(rig, fault, pid_of(victim))
            return
        with rig.freezer.frozen(pid_of(victim)):
            time.sleep(fault.lasts)
    finally:
        rig.failpoints.release(victim)


for _point, _who in _POINTS.items():
    Kind(
        f"kill-at-{_point}",
        f"SIGKILL to one {_who}",
        lasts=(4.0, 7.0),
        slow_by=20,
        at_failpoint=True,
    )(_kill)
    Kind(
        f"freeze-at-{_point}",
        f"SIGSTOP to one {_who}",
        weight=0.4,
        lasts=(0.2, 6.0),
        slow_by=5,
        at_failpoint=True,
    )(_freeze)


def _hit(rig: Rig, fault: Fault, what: str, seconds: float) -> str | None:
    """The process that has hit the failpoint; None if none has in time."""
    instance = rig.instances[fault.instance]
    point = fault.kind.partition("-at-")[2]
    before = len(rig.failpoints.victims(instance.name, point, what))
    armed = rig.failpoints.arm(instance.name, point, what)
    deadline = time.monotonic() + seconds
    while armed.exists() and (left := deadline - time.monotonic()) > 0:
        _provoke(rig, instance, point, fault.rand)
        within(min(left, _PROVOKE_S), lambda: not armed.exists(), _LOOK_S)
    armed.unlink(missing_ok=True)
    victims = rig.failpoints.victims(instance.name, point, what)[before:]
    return victims[0] if victims else None


def _provoke(rig: Rig, instance: Instance, point: str, rand: float) -> None:
    """Spares starting processes: a fleet that is killed faster than it starts goes nowhere."""
    view = instance.look_alone()
    if view is None or (role := _PROVOKED_BY.get(point)) is None:
        return
    ready = [seat.pid for seat in view.with_role(role) if seat.ready and seat.pid]
    whole = len(ready) >= view.wanted if role is Role.WORKER else view.armed > 0
    pid = chosen(ready, rand)
    if whole and pid is not None and instance.is_child(pid):
        rig.exits.add_kill(instance)
        kill(pid)
