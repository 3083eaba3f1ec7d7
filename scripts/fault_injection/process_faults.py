"""Faults of an instance's processes: signals that end, stop or replace them."""

import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack

import psutil
from lab.debugger import held
from lab.instances import Instance

from cmdbus.board.records import Role
from fault_injection.handlers import DOMAIN
from fault_injection.kinds import Fault, Kind
from fault_injection.rig import Rig, chosen, kill

#: Seconds in which all threads have begun what they were sent.
_BUSY_S = 0.2
#: Seconds that a supervisor's start takes at most, and between two looks at its board.
_START_S, _LOOK_S = 10.0, 0.05


@Kind("kill-worker", "SIGKILL to a worker", weight=5)
def kill_worker(rig: Rig, fault: Fault) -> object:
    instance = rig.instances[fault.instance]
    pid = chosen(instance.workers_now(), fault.rand)
    _kill(rig, instance, pid)
    return lambda: pid not in instance.workers_now()


@Kind("kill-held", "SIGKILL to a worker that a debugger holds", lasts=(1.0, 6.0))
def kill_held(rig: Rig, fault: Fault) -> object:
    instance = rig.instances[fault.instance]
    pid = chosen(instance.workers_now(), fault.rand)
    if pid is not None:
        with held(pid):
            _kill(rig, instance, pid)
            time.sleep(fault.lasts)
    return lambda: pid not in instance.workers_now()


@Kind("kill-workers", "SIGKILL to all workers of an instance", weight=2)
def kill_workers(rig: Rig, fault: Fault) -> object:
    instance = rig.instances[fault.instance]
    pids = instance.workers_now()
    for pid in pids:
        _kill(rig, instance, pid)
    return lambda: not set(pids) & set(instance.workers_now())


@Kind("kill-steward", "SIGKILL to a steward", weight=3)
def kill_steward(rig: Rig, fault: Fault) -> object:
    instance = rig.instances[fault.instance]
    pid = instance.steward_now()
    _kill(rig, instance, pid)
    return lambda: instance.steward_now() not in (pid, None)


def _kill(
    rig: Rig,
    instance: Instance,
    pid: int | None,
    number: signal.Signals = signal.SIGKILL,
) -> None:
    if pid is not None:
        rig.exits.add_kill(instance)
        kill(pid, number)


@Kind("kill-supervisor", "SIGKILL to a supervisor; it is started again", weight=2)
def kill_supervisor(rig: Rig, fault: Fault) -> object:
    return _end(rig, fault, signal.SIGKILL)


@Kind("end-supervisor", "SIGTERM to a supervisor; it is started again")
def end_supervisor(rig: Rig, fault: Fault) -> object:
    return _end(rig, fault, signal.SIGTERM)


def _end(rig: Rig, fault: Fault, number: signal.Signals) -> object:
    instance = rig.instances[fault.instance]
    rig.exits.expect(instance)
    pid = instance.pid
    kill(pid, number)
    return lambda: instance.pid != pid


@Kind("end-worker", "SIGTERM to a worker, which its supervisor has not sent")
def end_worker(rig: Rig, fault: Fault) -> object:
    instance = rig.instances[fault.instance]
    pid = chosen(instance.workers_now(), fault.rand)
    _kill(rig, instance, pid, signal.SIGTERM)
    return lambda: pid not in instance.workers_now()


@Kind("stop-worker", "SIGSTOP to a worker", weight=4, lasts=(0.5, 9.0))
def stop_worker(rig: Rig, fault: Fault) -> None:
    instance = rig.instances[fault.instance]
    _stop(rig, [chosen(instance.workers_now(), fault.rand)], fault.lasts)


@Kind("stop-steward", "SIGSTOP to a steward", weight=2, lasts=(0.5, 6.0))
def stop_steward(rig: Rig, fault: Fault) -> None:
    _stop(rig, [rig.instances[fault.instance].steward_now()], fault.lasts)


@Kind("stop-supervisor", "SIGSTOP to a supervisor", lasts=(1.0, 8.0))
def stop_supervisor(rig: Rig, fault: Fault) -> None:
    _stop(rig, [rig.instances[fault.instance].pid], fault.lasts)


@Kind("freeze-node", "SIGSTOP to a whole instance", weight=2, lasts=(4.0, 9.0))
def freeze_node(rig: Rig, fault: Fault) -> None:
    options = rig.plan.options
    # All threads have work, which other processes will run before a frozen one resumes.
    occupy(rig, options.instances * options.procs * options.threads)
    time.sleep(_BUSY_S)
    freeze_instance(rig, fault)


def occupy(rig: Rig, threads: int) -> None:
    """Sends a command that runs for longer than a lease to each of the threads."""
    seconds = rig.plan.options.lease + 0.5
    for _ in range(threads):
        rig.send(DOMAIN, "Long", priority="high", seconds=seconds)


def freeze_instance(rig: Rig, fault: Fault, first: int | None = None) -> None:
    """Stops all processes of the fault's instance, the one with the pid `first` before others."""
    pid = rig.instances[fault.instance].pid
    with ExitStack() as stack:
        if first is not None:
            stack.enter_context(rig.freezer.frozen(first))
        stack.enter_context(rig.freezer.frozen(pid))  # before it can start another one
        children = [child.pid for child in psutil.Process(pid).children(recursive=True)]
        _stop(rig, children, fault.lasts)


def _stop(rig: Rig, pids: Sequence[int | None], seconds: float) -> None:
    with ExitStack() as stack:
        for pid in pids:
            if pid is not None:
                stack.enter_context(rig.freezer.frozen(pid))
        time.sleep(seconds)


@Kind("hup", "SIGHUP: all processes are replaced", weight=2, slow_by=20)
def replace_processes(rig: Rig, fault: Fault) -> object:
    instance = rig.instances[fault.instance]
    _await_handlers(instance)
    pid, before = instance.pid, _generations(instance)
    kill(pid, signal.SIGHUP)

    def all_are_replaced() -> bool:
        now = _generations(instance)
        # A seat may be gone since: SIGTTOU takes some.
        newer = all(seat not in now or now[seat] > before[seat] for seat in before)
        return instance.pid != pid or newer

    return all_are_replaced


def _await_handlers(instance: Instance) -> None:
    """A supervisor with a board handles signals. A process that has just started does not: the
    kernel's default would end or stop it."""
    deadline = time.monotonic() + _START_S
    while instance.look_alone() is None and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


def _generations(instance: Instance) -> dict[tuple[Role, int], int]:
    view = instance.look_alone()
    seats = view.seats if view is not None else []
    return {
        (seat.role, seat.number): seat.generation
        for seat in seats
        if seat.role in (Role.WORKER, Role.STEWARD)
    }


@Kind("ttin", "SIGTTIN, later SIGTTOU", lasts=(2.0, 6.0))
def grow_fleet(rig: Rig, fault: Fault) -> None:
    _resize(rig, fault, signal.SIGTTIN, signal.SIGTTOU)


@Kind("ttou", "SIGTTOU, later SIGTTIN", lasts=(2.0, 6.0), slow_by=5)
def shrink_fleet(rig: Rig, fault: Fault) -> None:
    _resize(rig, fault, signal.SIGTTOU, signal.SIGTTIN)


def _resize(rig: Rig, fault: Fault, first: signal.Signals, then: signal.Signals) -> None:
    instance = rig.instances[fault.instance]
    _await_handlers(instance)
    pid = instance.pid
    kill(pid, first)
    time.sleep(fault.lasts)
    if instance.pid == pid:
        kill(pid, then)


@Kind("kill-producer", "SIGKILL to a producer")
def kill_producer(rig: Rig, fault: Fault) -> None:
    rig.producers.kill(fault.rand)
