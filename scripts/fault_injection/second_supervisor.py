"""A second supervisor of an instance's name, which must be refused."""

import subprocess
from contextlib import suppress

from cmdbus.exits import Exit
from fault_injection.kinds import Fault, Kind, PromiseError
from fault_injection.rig import Rig, within

_REFUSED_WITHIN_S = 20.0
_EXITS_WITHIN_S = 15.0
#: Share of the faults before which the pidfile is removed, as programs that clean up do.
_REMOVED = 0.5


@Kind("second", "a second supervisor of an instance's name", weight=2, slow_by=5)
def start_second(rig: Rig, fault: Fault) -> None:
    instance = rig.instances[fault.instance]
    first = instance.pid

    def first_lives() -> bool:
        return instance.pid == first and instance.code is None

    with rig.exits.refusing():
        if fault.rand < _REMOVED:
            instance.pidfile.unlink(missing_ok=True)
        second = instance.start_second()
        try:
            within(_REFUSED_WITHIN_S, lambda: second.poll() is not None or not first_lives())
            code, had_first = second.poll(), first_lives()
        finally:
            second.terminate()
            with suppress(subprocess.TimeoutExpired):
                second.wait(_EXITS_WITHIN_S)
            second.kill()
            second.wait()
    if had_first and code != Exit.CANNOT_START:
        raise PromiseError(f"a second supervisor of its name was not refused, but ended as {code}")
