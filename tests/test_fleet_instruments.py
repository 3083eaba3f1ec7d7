"""What a steward has to say to its log and to instruments, and what keeps it from that."""

from pathlib import Path

import pytest
from eventually import eventually
from fleet import Fleet, kill, write_app


@pytest.mark.fleet(started=False)
def test_one_that_hangs_keeps_the_steward_from_nothing(fleet: Fleet, tmp_path: Path) -> None:
    """Timers and other rescues go on meanwhile, and what is left of the log is written at the
    stop."""
    sign = tmp_path / "hangs"
    write_app(
        tmp_path,
        "from hanging_instrument import hang\n"
        "from fleet_app import registry as registry\n"
        f"hang({str(sign)!r})",
    )
    fleet.start()
    fleet.wait_until_ready()
    steward = fleet.steward()
    fleet.send("Abort", max_attempts=1)
    eventually(sign.exists, 20)
    fleet.await_completed(fleet.send("Noop", delay=0.1))
    ids = fleet.start_gates(1)
    [killed] = fleet.executing("Gate")
    kill(killed)
    fleet.open_gate()
    fleet.await_completed(ids)
    assert fleet.steward() == steward
    last = f"pid {killed}: 1 run again"
    assert not fleet.logged(last), "it comes after what hangs"
    assert fleet.stop() == 0
    assert len(fleet.logged("the commands of quarantine, pid")) == len(fleet.logged(last)) == 1


WITHOUT_A_THREAD = """
import threading
from pathlib import Path
from fleet_app import registry as registry

_start = threading.Thread.start

def start(thread):
    of_steward = any(each.name == "steward" for each in threading.enumerate())
    if of_steward and thread.name == "log" and not Path({sign!r}).exists():
        Path({sign!r}).touch()
        raise RuntimeError("can't start new thread")
    _start(thread)

threading.Thread.start = start
"""


@pytest.mark.fleet(started=False, procs=1)
def test_a_steward_that_gets_no_thread_for_its_log_writes_it_later(
    fleet: Fleet, tmp_path: Path
) -> None:
    sign = tmp_path / "refused"
    write_app(tmp_path, WITHOUT_A_THREAD.format(sign=str(sign)))
    fleet.start()
    fleet.wait_until_ready()
    steward = fleet.steward()
    fleet.send("Abort", max_attempts=1)
    eventually(sign.exists, 20)
    fleet.await_saying("the commands of quarantine, pid")
    assert fleet.steward() == steward
