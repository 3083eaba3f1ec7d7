"""A fleet for a scenario: `cmdbus-supervise` with the scenario's handlers.

The handlers travel by name in an environment variable; in the fleet's processes this module
is its app.
"""

import base64
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from loads.instances import SUPERVISE

from cmdbus.command import Command
from cmdbus.context import Context
from cmdbus.registry import HandlerFunction, HandlerRegistry

#: The domain of what fleets run, and a type that each of them knows: it does nothing.
DOMAIN, WARM = "working", "Warm"

_HANDLERS = "CMDBUS_BENCH_HANDLERS"
_LEAVE_S = 20.0


def nothing(command: Command, context: Context) -> None:
    return None


def registry() -> HandlerRegistry:
    """The app."""
    made = HandlerRegistry()
    handlers = pickle.loads(base64.b64decode(os.environ[_HANDLERS]))
    for type_, function in {WARM: nothing, **handlers}.items():
        made.register(DOMAIN, type_, function)
    return made


class Fleet:
    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def check(self) -> None:
        if self._process.poll() is not None:
            raise RuntimeError("the fleet has ended; what it said is above")


@contextmanager
def fleet(
    dsn: str, handlers: Mapping[str, HandlerFunction], *, processes: int, threads: int
) -> Iterator[Fleet]:
    """Handlers by type, which must be functions of a module: they are looked up there by each
    process. It is booting when this yields, and dies with the bench."""
    environment = {
        **os.environ,
        _HANDLERS: base64.b64encode(pickle.dumps(dict(handlers))).decode(),
        "CMDBUS_DSN": dsn,
        "PYTHONPATH": str(Path(__file__).resolve().parent.parent),
    }
    with tempfile.TemporaryDirectory(prefix="cmdbus-bench-") as directory:
        Path(directory).chmod(0o700)
        command = [
            sys.executable,
            *("-c", SUPERVISE.format(prelude="pass"), str(os.getpid())),
            *("--app", "benches.fleet:registry", "--runtime-dir", directory),
            *("--procs", str(processes), "--threads", str(threads)),
            *("--log-level", "warning", "--drain-timeout", "5"),
        ]
        process = subprocess.Popen(command, env=environment, cwd=directory)
        try:
            yield Fleet(process)
        finally:
            process.terminate()
            process.wait(_LEAVE_S)
