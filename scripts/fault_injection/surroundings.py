"""Faults of the machine around an instance, by control groups of version 1 and limits."""

import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from loads.instances import Instance

from cmdbus.board.records import Role
from fault_injection.plan import Fault
from fault_injection.test_rig import TestRig, chosen, kill

_GROUPS = Path("/sys/fs/cgroup")
#: What each kind needs.
_CONTROLLERS = {"oom": "memory", "fork-fails": "pids", "freeze-undead": "freezer"}
#: Less than what any process touches next.
_LITTLE_BYTES = 1 << 20
_PAUSE_S = 0.05
#: What is in a group goes out of it at once, unless it waits for a disk.
_LEAVES_S = 10.0


class Surroundings:
    def __init__(self, rig: TestRig) -> None:
        self._rig = rig
        self._lock = threading.Lock()
        self._made = 0
        self._groups: set[Path] = set()
        self.faults: dict[str, Callable[[Fault], object]] = {
            "oom": self._use_up_memory,
            "fork-fails": self._let_no_process_start,
            "freeze-undead": self._freeze_and_kill,
            "no-descriptors": self._let_no_file_open,
        }
        #: Kinds that this machine cannot have.
        self.lacking = {
            kind
            for kind, controller in _CONTROLLERS.items()
            if not os.access(_GROUPS / controller / "cgroup.procs", os.W_OK)
        }

    def _use_up_memory(self, fault: Fault) -> object:
        """Of one worker: the kernel kills it, wherever it is."""
        instance = self._rig.instances[fault.instance]
        pid = self._worker(fault)
        if pid is None:
            return None
        self._rig.killed(instance)
        with self._group("memory") as group:
            (group / "memory.limit_in_bytes").write_text(f"{_LITTLE_BYTES}")
            _move([pid], group)
            deadline = time.monotonic() + 5.0
            while instance.is_child(pid) and time.monotonic() < deadline:
                time.sleep(_PAUSE_S)
        return lambda: not instance.is_child(pid)

    def _let_no_process_start(self, fault: Fault) -> None:
        """Nor a thread, in the whole instance, of which one worker is killed."""
        instance = self._rig.instances[fault.instance]
        pid = self._worker(fault)
        with self._group("pids") as group:
            _move([instance.pid, *_children(instance)], group)
            (group / "pids.max").write_text("1")
            if pid is not None:
                self._rig.killed(instance)
                kill(pid)
            time.sleep(fault.lasts)
            (group / "pids.max").write_text("max")

    def _let_no_file_open(self, fault: Fault) -> None:
        """By a steward, which opens sessions now and then."""
        instance = self._rig.instances[fault.instance]
        view = instance.look_alone()
        stewards = [] if view is None else view.with_role(Role.STEWARD)
        pid = stewards[0].pid if stewards else None
        if pid is None or not instance.is_child(pid):
            return
        with suppress(OSError):  # It has ended.
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (_highest(pid) + 1, before[1]))
            time.sleep(fault.lasts)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)

    def _freeze_and_kill(self, fault: Fault) -> object:
        """A worker that cannot die before it is let go."""
        instance = self._rig.instances[fault.instance]
        pid = self._worker(fault)
        if pid is None:
            return None
        self._rig.killed(instance)
        with self._group("freezer") as group:
            _move([pid], group)
            (group / "freezer.state").write_text("FROZEN")
            kill(pid, signal.SIGKILL)
            time.sleep(fault.lasts)
        return lambda: not instance.is_child(pid)

    def _worker(self, fault: Fault) -> int | None:
        instance = self._rig.instances[fault.instance]
        view = instance.look_alone()
        return None if view is None else chosen(instance.living(view), fault.rand)

    @contextmanager
    def _group(self, controller: str) -> Iterator[Path]:
        with self._lock:
            self._made += 1
            group = _GROUPS / controller / f"cmdbus-chaos-{os.getpid()}-{self._made}"
            group.mkdir()
            self._groups.add(group)
        try:
            yield group
        finally:
            self._remove(group)

    def _remove(self, group: Path) -> None:
        """What is in it goes on outside."""
        with suppress(OSError):
            (group / "freezer.state").write_text("THAWED")
        deadline = time.monotonic() + _LEAVES_S
        while group.exists() and time.monotonic() < deadline:
            with suppress(OSError):
                _move(map(int, (group / "cgroup.procs").read_text().split()), group.parent)
                group.rmdir()
            time.sleep(_PAUSE_S)
        self._groups.discard(group)

    def close(self) -> None:
        for group in list(self._groups):
            self._remove(group)


def _children(instance: Instance) -> list[int]:
    with suppress(psutil.Error):
        return [child.pid for child in psutil.Process(instance.pid).children(recursive=True)]
    return []


def _highest(pid: int) -> int:
    """Descriptor of a process."""
    return max(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir())


def _move(pids: Iterable[int], group: Path) -> None:
    for pid in pids:
        with suppress(OSError):  # It has ended.
            (group / "cgroup.procs").write_text(f"{pid}")
