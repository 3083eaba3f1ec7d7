"""Those who cause the faults. Each fault has a thread: it does what is to be done, undoes it
in time, and then waits until everything that it may have hurt works again.
"""

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import psutil
import psycopg
from loads.instances import Instance

from cmdbus import CommandBus, SendRequest
from cmdbus.board.records import Role
from cmdbus.errors import CmdbusError
from fault_injection.failpoint_faults import FailpointFaults
from fault_injection.handlers import DOMAIN, domain_of
from fault_injection.history import Recovery
from fault_injection.network import Network, PromiseError
from fault_injection.plan import HOSTS, KINDS, POINTS, SERVER, Fault
from fault_injection.restoring import restore
from fault_injection.seconds import start_second
from fault_injection.server import Server
from fault_injection.surroundings import Surroundings
from fault_injection.test_rig import TestRig, chosen, kill, within

_BUSY_S = 0.2
_TRIES = 5
_TRY_S = 0.7
#: Until something works again, at the most; from the storm's end, if others hurt it until then.
_RECOVERS_S = 60.0
_PATTERNS = {
    "lose-step": b'".complete(',
    "lose-settle": b"cmdbus.transaction', true)",
    "lose-commit": b"COMMIT;\nCLOSE",
    "lose-send": b'".enqueue(',
}


class FaultInjector:
    """Runs a plan's faults, each when it is its time."""

    def __init__(self, rig: TestRig, say: Callable[[str], None]) -> None:
        self._rig = rig
        self._say = say
        self._bus = CommandBus(rig.dsn)
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._guests = 0
        self._ends_at = 0.0
        failpoint_faults = FailpointFaults(rig, self._freeze, self._occupy)
        self.recoveries: list[Recovery] = []
        #: At the end: how often a moment came that was waited for.
        self.hits: Counter[str] = Counter()
        #: Kinds that cannot be here, and why.
        self.skipped: dict[str, str] = {}
        self._network = Network(rig)
        self._server = Server(rig, self.send, self.hits)
        self._surroundings = Surroundings(rig)
        self._faults: dict[str, Callable[[Fault], object]] = {
            "kill-worker": self._kill_worker,
            "kill-workers": self._kill_workers,
            "kill-steward": self._kill_steward,
            "kill-supervisor": self._kill_supervisor,
            "end-supervisor": self._end_supervisor,
            "end-worker": self._end_worker,
            "stop-worker": self._stop_worker,
            "stop-steward": self._stop_steward,
            "stop-supervisor": self._stop_supervisor,
            "freeze-node": self._freeze_node,
            "segfault": self._segfault,
            "exit": self._exit,
            "abort-later": self._abort_later,
            "gil": self._gil,
            "gil-short": self._gil_short,
            "stuck": self._stuck,
            "grow": self._grow,
            "hup": self._hup,
            "ttin": self._ttin,
            "ttou": self._ttou,
            "kill-producer": self._kill_producer,
            "second": lambda fault: start_second(rig, fault),
            "restore": lambda fault: restore(rig, fault),
            **dict.fromkeys([f"kill-at-{point}" for point in POINTS], failpoint_faults.kill),
            **dict.fromkeys([f"freeze-at-{point}" for point in POINTS], failpoint_faults.freeze),
            **dict.fromkeys(_PATTERNS, self._lose_replies),
            **self._network.faults,
            **self._server.faults,
            **self._surroundings.faults,
        }
        assert set(self._faults) == set(KINDS)

    def run(self, wait: Callable[[float], None]) -> None:
        began = time.monotonic()
        self._ends_at = began + self._rig.plan.storm_s
        for fault in self._rig.plan.faults:
            wait(began + fault.at - time.monotonic())
            if why := self._lacks(fault.kind):
                self.skipped[fault.kind] = why
                continue
            thread = threading.Thread(target=self._cause, args=(fault,), name=fault.kind)
            thread.daemon = True
            thread.start()
            self._threads.append(thread)
        wait(self._ends_at - time.monotonic())

    def _lacks(self, kind: str) -> str:
        if kind in SERVER and self._rig.server is None:
            return "not without a server of its own"
        if kind in HOSTS and not self._rig.hosts:
            return "not without --hosts"
        if kind in self._surroundings.lacking:
            return "not without control groups that this user may make"
        return ""

    def unfinished(self) -> list[str]:
        """The faults that go on, or are not recovered from."""
        return [thread.name for thread in self._threads if thread.is_alive()]

    def _cause(self, fault: Fault) -> None:
        began, broken = time.time(), ""
        self._say(f"fault {fault.number}: {fault.kind} ({KINDS[fault.kind].about})")
        try:
            is_well = self._faults[fault.kind](fault)
        except PromiseError as error:
            is_well, broken = None, str(error)
        except (psycopg.Error, psutil.Error, CmdbusError, OSError) as error:
            # Another fault was in its way.
            self._say(f"fault {fault.number}: {fault.kind} could not be: {error}")
            is_well = None
        ended = time.time()
        hurt = self._hurt(fault)
        timeout = max(_RECOVERS_S, self._ends_at + _RECOVERS_S - time.monotonic())
        seconds = within(timeout, lambda: self._is_well(hurt, is_well))
        seconds = None if seconds is None or (p := self._probed(hurt)) is None else seconds + p
        self.recoveries.append(
            Recovery(
                fault=fault.number,
                kind=fault.kind,
                began=began,
                ended=ended,
                seconds=seconds,
                broken=broken,
                instances=[instance.name for instance in hurt],
            )
        )
        shown = "NOT AGAIN" if seconds is None else f"{seconds:.2f} s"
        self._say(f"fault {fault.number}: {fault.kind} is over, everything works after {shown}")

    def _hurt(self, fault: Fault) -> list[Instance]:
        if fault.kind in self._server.faults or fault.kind == "restore":
            return self._rig.instances
        if fault.kind.startswith("proxy-") or fault.kind in _PATTERNS:
            return self._rig.instances[:1]
        return [self._rig.instances[fault.instance]]

    def _is_well(self, hurt: Sequence[Instance], is_well: object) -> bool:
        for instance in hurt:
            view = instance.look_alone()
            if view is None or len(instance.living(view)) < view.wanted or not view.listening:
                return False
        return not callable(is_well) or bool(is_well())

    def _probed(self, hurt: Sequence[Instance]) -> float | None:
        """After how long a command was run that was sent only now."""
        began = time.monotonic()
        for instance in hurt:
            if within(_RECOVERS_S, lambda i=instance: self._probe(i)) is None:  # type: ignore[misc]
                return None
        return time.monotonic() - began

    def _probe(self, instance: Instance) -> bool:
        id_ = self.send(domain_of(instance.name), "Noop")
        return id_ is not None and within(10.0, lambda: self._has_ended(instance, id_)) is not None

    def _has_ended(self, instance: Instance, id_: Any) -> bool:
        try:
            record = self._bus.get(domain_of(instance.name), id_)
        except CmdbusError:
            return False
        return record is not None and record.status not in ("PENDING", "IN_PROGRESS")

    def send(self, domain: str, type_: str, priority: str = "normal", **data: float) -> Any:
        """None if nobody knows whether it was sent."""
        with self._lock:
            self._guests += 1
            call = f"chaos-{self._guests}"
        journal = self._rig.journal
        journal.write("invoke", call, way="send", count=1)
        asked = {"call": call, "index": 0, **data}
        request = SendRequest(domain, type_, asked, priority=priority, max_attempts=3)
        try:
            [id_] = self._bus.send_many([request])
        except (psycopg.Error, CmdbusError) as error:
            journal.write("unknown", call, why=type(error).__name__)
            return None
        journal.write("ok", call, ids=[id_])
        return id_

    # Processes.

    def _kill_worker(self, fault: Fault) -> object:
        instance = self._rig.instances[fault.instance]
        pid = chosen(self._workers(instance), fault.rand)
        self._kill(instance, pid)
        return lambda: pid not in self._workers(instance)

    def _kill_workers(self, fault: Fault) -> object:
        instance = self._rig.instances[fault.instance]
        pids = self._workers(instance)
        for pid in pids:
            self._kill(instance, pid)
        return lambda: not set(pids) & set(self._workers(instance))

    def _kill_steward(self, fault: Fault) -> object:
        instance = self._rig.instances[fault.instance]
        pid = self._steward(instance)
        self._kill(instance, pid)
        return lambda: self._steward(instance) not in (pid, None)

    def _kill(self, instance: Instance, pid: int | None) -> None:
        if pid is not None:
            self._rig.killed(instance)
            kill(pid)

    def _end_worker(self, fault: Fault) -> object:
        instance = self._rig.instances[fault.instance]
        pid = chosen(self._workers(instance), fault.rand)
        if pid is not None:
            self._rig.killed(instance)
            kill(pid, signal.SIGTERM)
        return lambda: pid not in self._workers(instance)

    def _kill_supervisor(self, fault: Fault) -> object:
        return self._end(fault, signal.SIGKILL)

    def _end_supervisor(self, fault: Fault) -> object:
        return self._end(fault, signal.SIGTERM)

    def _end(self, fault: Fault, number: signal.Signals) -> object:
        instance = self._rig.instances[fault.instance]
        self._rig.expect_end(instance)
        pid = instance.pid
        kill(pid, number)
        return lambda: instance.pid != pid

    def _stop_worker(self, fault: Fault) -> None:
        instance = self._rig.instances[fault.instance]
        self._stop([chosen(self._workers(instance), fault.rand)], fault.lasts)

    def _stop_steward(self, fault: Fault) -> None:
        self._stop([self._steward(self._rig.instances[fault.instance])], fault.lasts)

    def _stop_supervisor(self, fault: Fault) -> None:
        self._stop([self._rig.instances[fault.instance].pid], fault.lasts)

    def _freeze_node(self, fault: Fault) -> None:
        options = self._rig.plan.options
        # All have work in their hands, which others will have when a frozen one comes back.
        self._occupy(options.instances * options.procs * options.threads)
        time.sleep(_BUSY_S)
        self._freeze(fault)

    def _occupy(self, threads: int) -> None:
        seconds = self._rig.plan.options.lease + 0.5
        for _ in range(threads):
            self.send(DOMAIN, "Long", priority="high", seconds=seconds)

    def _freeze(self, fault: Fault, first: int | None = None) -> None:
        pid = self._rig.instances[fault.instance].pid
        with ExitStack() as stack:
            if first is not None:
                stack.enter_context(self._rig.frozen(first))
            stack.enter_context(self._rig.frozen(pid))  # before it can start another one
            children = [child.pid for child in psutil.Process(pid).children(recursive=True)]
            self._stop(children, fault.lasts)

    def _stop(self, pids: Sequence[int | None], seconds: float) -> None:
        with ExitStack() as stack:
            for pid in pids:
                if pid is not None:
                    stack.enter_context(self._rig.frozen(pid))
            time.sleep(seconds)

    def _hup(self, fault: Fault) -> object:
        instance = self._rig.instances[fault.instance]
        pid, before = instance.pid, self._generations(instance)
        kill(pid, signal.SIGHUP)

        def all_are_replaced() -> bool:
            now = self._generations(instance)
            # A seat may be gone since: SIGTTOU takes some.
            newer = all(seat not in now or now[seat] > before[seat] for seat in before)
            return instance.pid != pid or newer

        return all_are_replaced

    def _ttin(self, fault: Fault) -> None:
        self._change(fault, signal.SIGTTIN, signal.SIGTTOU)

    def _ttou(self, fault: Fault) -> None:
        self._change(fault, signal.SIGTTOU, signal.SIGTTIN)

    def _change(self, fault: Fault, first: signal.Signals, then: signal.Signals) -> None:
        instance = self._rig.instances[fault.instance]
        pid = instance.pid
        kill(pid, first)
        time.sleep(fault.lasts)
        if instance.pid == pid:
            kill(pid, then)

    def _kill_producer(self, fault: Fault) -> None:
        producers = self._rig.plan.producers
        self._rig.kill_producer(producers[int(fault.rand * len(producers))])

    # Commands.

    def _segfault(self, fault: Fault) -> object:
        return self._guest(fault, "Segfault", times=1 if fault.rand < 0.7 else 99)

    def _exit(self, fault: Fault) -> object:
        return self._guest(fault, "Exit", times=1 if fault.rand < 0.7 else 99)

    def _gil(self, fault: Fault) -> object:
        return self._guest(fault, "Gil", times=1)

    def _gil_short(self, fault: Fault) -> object:
        return self._guest(fault, "GilShort", times=1)

    def _abort_later(self, fault: Fault) -> object:
        times = 1 if fault.rand < 0.7 else 99
        return self._guest(fault, "AbortLater", times=times, seconds=0.01 * fault.rand)

    def _stuck(self, fault: Fault) -> object:
        seconds = self._rig.plan.options.thread + 2 + 4 * fault.rand
        return self._guest(fault, "Stuck", times=1, seconds=seconds)

    def _grow(self, fault: Fault) -> object:
        return self._guest(fault, "Grow", times=4)

    def _guest(self, fault: Fault, type_: str, **data: float) -> object:
        instance = self._rig.instances[fault.instance]
        id_ = self.send(domain_of(instance.name), type_, "normal", **data)
        return None if id_ is None else lambda: self._has_ended(instance, id_)

    # Ambushes; see ambush.py for those at named points.

    def _lose_replies(self, fault: Fault) -> None:
        """Each carried out by the server, and unknown to who asked."""
        for _ in range(_TRIES):
            self._rig.proxy.lose_replies(fault.kind, _PATTERNS[fault.kind])
            time.sleep(_TRY_S / 2)

    def _workers(self, instance: Instance) -> list[int]:
        view = instance.look_alone()
        return [] if view is None else instance.living(view)

    def _generations(self, instance: Instance) -> dict[tuple[Role, int], int]:
        view = instance.look_alone()
        seats = view.seats if view is not None else []
        return {
            (seat.role, seat.number): seat.generation
            for seat in seats
            if seat.role in (Role.WORKER, Role.STEWARD)
        }

    def _steward(self, instance: Instance) -> int | None:
        view = instance.look_alone()
        stewards = view.with_role(Role.STEWARD) if view is not None else []
        return stewards[0].pid if stewards else None

    def close(self) -> None:
        self._surroundings.close()
        self.hits.update(self._rig.failpoints.hits() + self._rig.proxy.lost)
        self._bus.close()


def singled(recoveries: Sequence[Recovery], near: float = 2.0) -> list[Recovery]:
    """With which of them no other fault was near."""
    found = []
    for one in recoveries:
        end = one.ended + (one.seconds or 0.0)
        others = [
            other
            for other in recoveries
            if other is not one
            and other.began < end + near
            and other.ended + (other.seconds or 0.0) + near > one.began
        ]
        found.append(Recovery(**{n: getattr(one, n) for n in _FIELDS}, single=not others))
    return found


_FIELDS = ("fault", "kind", "began", "ended", "seconds", "broken", "instances")
