"""Faults of handlers: commands that crash, block or leak."""

from fault_injection.handlers import domain_of
from fault_injection.kinds import Fault, Kind
from fault_injection.rig import Rig

#: Attempts in which a fault repeats itself: more than any command has.
_ALWAYS = 99


@Kind("segfault", "a handler that reads address 0", weight=2, slow_by=10)
def segfault(rig: Rig, fault: Fault) -> object:
    return _send(rig, fault, "Segfault", times=_times(fault))


@Kind("exit", "a handler that calls os._exit", weight=2, slow_by=10)
def exit_process(rig: Rig, fault: Fault) -> object:
    return _send(rig, fault, "Exit", times=_times(fault))


@Kind("abort-later", "a process aborts after a handler has returned", slow_by=10)
def abort_later(rig: Rig, fault: Fault) -> object:
    return _send(rig, fault, "AbortLater", times=_times(fault), seconds=0.01 * fault.rand)


@Kind("gil", "a handler that keeps the GIL for good", slow_by=30)
def keep_gil(rig: Rig, fault: Fault) -> object:
    return _send(rig, fault, "Gil", times=1)


@Kind("gil-short", "the same, with a timeout below the ladder's", slow_by=30)
def keep_gil_with_timeout(rig: Rig, fault: Fault) -> object:
    return _send(rig, fault, "GilShort", times=1)


@Kind("stuck", "a handler that does not come back", weight=2, slow_by=15)
def block_thread(rig: Rig, fault: Fault) -> object:
    seconds = rig.plan.options.thread + 2 + 4 * fault.rand
    return _send(rig, fault, "Stuck", times=1, seconds=seconds)


@Kind("log-hangs", "a log handler of the application that does not return")
def hang_log(rig: Rig, fault: Fault) -> object:
    return _send(rig, fault, "LogHangs", times=1)


@Kind("grow", "a handler that leaks more than --max-rss", slow_by=10)
def leak_memory(rig: Rig, fault: Fault) -> object:
    return _send(rig, fault, "Grow", times=4)


def _times(fault: Fault) -> int:
    return 1 if fault.rand < 0.7 else _ALWAYS


def _send(rig: Rig, fault: Fault, type_: str, **data: float) -> object:
    instance = rig.instances[fault.instance]
    id_ = rig.send(domain_of(instance.name), type_, "normal", **data)
    return None if id_ is None else lambda: rig.has_ended(instance, id_)
