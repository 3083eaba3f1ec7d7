"""The fault injector. Each fault has a thread, which causes it, undoes it in time, and then waits
until everything that it may have hurt works again.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import psutil
import psycopg
from lab.instances import Instance

from cmdbus.errors import CmdbusError
from fault_injection.handlers import domain_of
from fault_injection.history import Recovery
from fault_injection.kinds import CAUSES, KINDS, Fault, Hurts, Kind, Needs, PromiseError
from fault_injection.machine_faults import control_groups_are_there
from fault_injection.rig import Rig, within

#: Seconds until everything must work again; from the end of the run, if others hurt it until then.
_RECOVERS_S = 60.0


class FaultInjector:
    """Runs a plan's faults, each when it is its time."""

    def __init__(self, rig: Rig, say: Callable[[str], None]) -> None:
        self._rig = rig
        self._say = say
        self._threads: list[threading.Thread] = []
        self._ends_at = 0.0
        self.recoveries: list[Recovery] = []
        #: At the end: how often the moment of a fault came that had to wait for it.
        self.hits: Counter[str] = Counter()
        #: Kinds that cannot be here, and why.
        self.skipped: dict[str, str] = {}

    def run(self, wait: Callable[[float], None]) -> None:
        began = time.monotonic()
        self._ends_at = began + self._rig.plan.storm_s
        for fault in self._rig.plan.faults:
            wait(began + fault.at - time.monotonic())
            if why := self._lacks(KINDS[fault.kind]):
                self.skipped[fault.kind] = why
                continue
            thread = threading.Thread(target=self._cause, args=(fault,), name=fault.kind)
            thread.daemon = True
            thread.start()
            self._threads.append(thread)
        wait(self._ends_at - time.monotonic())

    def _lacks(self, kind: Kind) -> str:
        missing = {
            Needs.OWN_SERVER: self._rig.server is None,
            Needs.HOSTS: not self._rig.hosts,
            Needs.CONTROL_GROUPS: not control_groups_are_there(),
        }
        return kind.needs.value if missing.get(kind.needs) else ""

    def unfinished(self) -> list[str]:
        """The faults that go on, or are not recovered from."""
        return [thread.name for thread in self._threads if thread.is_alive()]

    def _cause(self, fault: Fault) -> None:
        began, broken = time.time(), ""
        self._say(f"fault {fault.number}: {fault.kind} ({KINDS[fault.kind].about})")
        try:
            is_well = CAUSES[fault.kind](self._rig, fault)
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
        instances = self._rig.instances
        return {
            Hurts.ALL: instances,
            Hurts.BEHIND_PROXY: instances[:1],
            Hurts.ITS_INSTANCE: [instances[fault.instance]],
        }[KINDS[fault.kind].hurts]

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
        id_ = self._rig.send(domain_of(instance.name), "Noop")
        return (
            id_ is not None and within(10.0, lambda: self._rig.has_ended(instance, id_)) is not None
        )

    def close(self) -> None:
        self.hits = self._rig.hits + self._rig.failpoints.hits() + self._rig.proxy.lost


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
