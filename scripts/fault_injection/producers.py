"""The processes that send, each started again when it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lab.instances import SCRIPTS

from fault_injection.bridging import HAS_PGMQ, QUEUE_IN, QUEUE_OUT
from fault_injection.plan import Plan, Producing

#: Ends with the thread that started it, however that ends: 1 is PR_SET_PDEATHSIG. One that is to
#: end before it has begun to send just exits.
_PRODUCE = (
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0);"
    " signal.signal(signal.SIGTERM, lambda *_: os._exit(0));"
    " from fault_injection.{module} import main; main()"
)
_ENDS_S, _LOOK_S = 10.0, 0.02


class Producers:
    def __init__(
        self, plan: Plan, directory: Path, dsn: str, proxy_dsn: str, wrong: list[str]
    ) -> None:
        """`proxy_dsn`: through the network that has faults; `wrong` receives what must not
        happen."""
        self._plan = plan
        self._producing = [each for each in plan.producers if HAS_PGMQ or not each.is_of_pgmq]
        self._directory = directory
        self._dsn = dsn
        self._proxy_dsn = proxy_dsn
        self._wrong = wrong
        #: By number: how often each was started, and its latest process.
        self._starts: dict[int, int] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        for producing in self._producing:
            self._start(producing)

    def tend(self) -> None:
        for producing in self._producing:
            if (code := self._processes[producing.number].poll()) is not None:
                if code != -signal.SIGKILL:  # a fault's
                    self._wrong.append(f"a producer ended with {code}: see producers.log")
                self._start(producing)

    def kill(self, rand: float) -> None:
        """One of them, which is started again as another one."""
        processes = list(self._processes.values())
        processes[int(rand * len(processes))].kill()

    def end(self, *, at_once: bool = False) -> None:
        for process in self._processes.values():
            process.kill() if at_once else process.terminate()
        left = running_after(_ENDS_S, [*self._processes.values()])
        for process in self._processes.values():
            if process not in left:
                if process.returncode and not at_once:
                    code = process.returncode
                    self._wrong.append(f"a producer ended with {code}: see producers.log")
                continue
            # It waits for a lost reply: what it sent last is unknown.
            process.kill()
            process.wait()

    def _start(self, producing: Producing) -> None:
        number = producing.number
        self._starts[number] = start = self._starts.get(number, 0) + 1
        name = f"p{number}.{start}"
        options = {
            "name": name,
            "seed": producing.seed + start,
            "calls_per_s": producing.calls_per_s,
            "directory": str(self._directory),
            # Longer than a lease, which must be renewed.
            "longest": self._plan.options.lease + 0.5,
            "domains": self._plan.domains,
            "queue_in": QUEUE_IN,
            "queue_out": QUEUE_OUT,
        }
        module = "pgmq_producing" if producing.is_of_pgmq else "producing"
        with (self._directory / "producers.log").open("ab") as log:
            self._processes[number] = subprocess.Popen(
                [sys.executable, "-c", _PRODUCE.format(module=module), json.dumps(options)],
                env={
                    **os.environ,
                    "CMDBUS_DSN": self._proxy_dsn if producing.by_proxy else self._dsn,
                    "PYTHONPATH": str(SCRIPTS),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def running_after(
    seconds: float, processes: Sequence["subprocess.Popen[bytes]"]
) -> list["subprocess.Popen[bytes]"]:
    """Those that have not ended. Reaps each of the others as soon as it has."""
    deadline = time.monotonic() + seconds
    left = [*processes]
    while left and time.monotonic() < deadline:
        left = [process for process in left if process.poll() is None]
        time.sleep(_LOOK_S)
    return left
