"""Faults of the machine around an instance, by control groups and limits."""

import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import psutil
from lab.control_groups import ControlGroup, can_make
from lab.instances import Instance

from fault_injection.kinds import Fault, Kind, Needs
from fault_injection.rig import Rig, chosen, kill

#: Less than what any process touches next.
_LITTLE_BYTES = 1 << 20
_PAUSE_S = 0.05
_numbers = count(1)


@Kind("oom", "a worker has no memory left, and is killed by the kernel", needs=Needs.CONTROL_GROUPS)
def use_up_memory(rig: Rig, fault: Fault) -> object:
    """Of one worker: the kernel kills it, wherever it is."""
    instance = rig.instances[fault.instance]
    pid = _worker(rig, fault)
    if pid is None:
        return None
    rig.exits.add_kill(instance)
    with _group(rig, "memory") as group:
        group.limit(_LITTLE_BYTES)
        group.add(pid)
        deadline = time.monotonic() + 5.0
        while instance.is_child(pid) and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
    return lambda: not instance.is_child(pid)


@Kind(
    "fork-fails",
    "an instance can start no process and no thread",
    lasts=(0.5, 2.5),
    slow_by=30,
    needs=Needs.CONTROL_GROUPS,
)
def let_no_process_start(rig: Rig, fault: Fault) -> None:
    """Nor a thread, in the whole instance, of which one worker is killed."""
    instance = rig.instances[fault.instance]
    pid = _worker(rig, fault)
    with _group(rig, "pids") as group:
        group.add(instance.pid, *_children(instance))
        group.limit(1)
        if pid is not None:
            rig.exits.add_kill(instance)
            kill(pid)
        time.sleep(fault.lasts)
        group.limit(None)


@Kind("no-descriptors", "a steward gets no more descriptors", lasts=(0.5, 5.0), slow_by=10)
def let_no_file_open(rig: Rig, fault: Fault) -> None:
    """By a steward, which opens sessions now and then."""
    instance = rig.instances[fault.instance]
    pid = instance.steward_now()
    if pid is None or not instance.is_child(pid):
        return
    with suppress(OSError):  # It has ended.
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (_highest(pid) + 1, before[1]))
        time.sleep(fault.lasts)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


# It lasts until the watchdog finds the process and gives it up.
@Kind(
    "freeze-undead",
    "a worker is killed, and cannot die",
    lasts=(11.0, 13.0),
    slow_by=10,
    needs=Needs.CONTROL_GROUPS,
)
def freeze_and_kill(rig: Rig, fault: Fault) -> object:
    """A worker that cannot die before it is thawed."""
    instance = rig.instances[fault.instance]
    pid = _worker(rig, fault)
    if pid is None:
        return None
    rig.exits.add_kill(instance)
    with _group(rig, "freezer") as group:
        group.add(pid)
        group.freeze()
        kill(pid, signal.SIGKILL)
        time.sleep(fault.lasts)
    return lambda: not instance.is_child(pid)


def _worker(rig: Rig, fault: Fault) -> int | None:
    return chosen(rig.instances[fault.instance].workers_now(), fault.rand)


@contextmanager
def _group(rig: Rig, controller: str) -> Iterator[ControlGroup]:
    """Removed by the end of the run, if that comes first."""
    group = ControlGroup(controller, f"cmdbus-chaos-{os.getpid()}-{next(_numbers)}")
    with rig.undoing(group.make, group.remove):
        yield group


def control_groups_are_there() -> bool:
    """All controllers that the faults need, and this user may use."""
    return all(map(can_make, ("memory", "pids", "freezer")))


def _children(instance: Instance) -> list[int]:
    with suppress(psutil.Error):
        return [child.pid for child in psutil.Process(instance.pid).children(recursive=True)]
    return []


def _highest(pid: int) -> int:
    """Descriptor of a process."""
    return max(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir())
