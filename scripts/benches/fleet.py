"""Fleets for a measurement: instances of `cmdbus-supervise` with the measurement's handlers.

The handlers travel by name in an environment variable; in the fleet's processes this module
is its app.
"""

import base64
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lab.instances import Instance, InstanceOptions, end

from benches import cpu
from cmdbus.command import Command
from cmdbus.context import Context
from cmdbus.handlers import HandlerFunction
from cmdbus.registry import HandlerRegistry

#: The domain of what fleets run, and the type of the commands that are measured.
DOMAIN, TYPE = "working", "Work"

_HANDLERS = "CMDBUS_BENCH_HANDLERS"
_READY_S, _LOOK_S = 120.0, 0.05


def registry() -> HandlerRegistry:
    """The app."""
    handlers, domains = pickle.loads(base64.b64decode(os.environ[_HANDLERS]))
    made = HandlerRegistry()
    for domain in (DOMAIN, *(f"{DOMAIN}-{number}" for number in range(1, domains))):
        for type_, function in handlers.items():
            made.register(domain, type_, function)
    return made


# Handlers.


def nothing(command: Command, context: Context) -> None:
    return None


def sleep(seconds: float, command: Command, context: Context) -> list[float]:
    """Returns when it began and ended."""
    began = time.time()
    time.sleep(seconds)
    return [began, time.time()]


def compute(seconds: float, command: Command, context: Context) -> None:
    """Uses the CPU for this time, waits for it and for the interpreter lock excluded."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(200))


def sleep_and_compute(sleeps: float, computes: float, command: Command, context: Context) -> None:
    time.sleep(sleeps)
    compute(computes, command, context)


def show_start(command: Command, context: Context) -> float:
    return time.time()


class Fleet:
    def __init__(self, instances: list[Instance]) -> None:
        self._instances = instances

    def start(self) -> None:
        for instance in self._instances:
            instance.start()

    def await_ready(self) -> None:
        deadline = time.monotonic() + _READY_S
        while not all(instance.is_ready for instance in self._instances):
            self.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all instances were ready within {_READY_S:.0f} s")
            time.sleep(_LOOK_S)

    def check(self) -> None:
        for instance in self._instances:
            if instance.code is not None:
                raise RuntimeError(f"a fleet has exited:\n{instance.last_output()}")

    def pids(self) -> list[int]:
        return [pid for instance in self._instances for pid in cpu.tree(instance.pid)]


@contextmanager
def fleet(
    dsn: str,
    handlers: Mapping[str, HandlerFunction],
    *,
    processes: int,
    threads: int | str,
    instances: int = 1,
    domains: int = 1,
    started: bool = True,
    app: str = "benches.fleet:registry",
    environment: Mapping[str, str] | None = None,
) -> Iterator[Fleet]:
    """Handlers by type, which must be functions of a module: each process looks them up there.
    All processes are ready when this yields, unless the caller is to start them."""
    with tempfile.TemporaryDirectory(prefix="cmdbus-bench-") as directory:
        options = InstanceOptions(
            app=app,
            dsn=dsn,
            procs=processes,
            threads=threads,
            options=("--log-level", "warning", "--drain-timeout", "5"),
            environment={
                _HANDLERS: base64.b64encode(pickle.dumps((dict(handlers), domains))).decode(),
                **(environment or {}),
            },
        )
        made = [Instance(f"bench-{n}", options, Path(directory)) for n in range(instances)]
        try:
            running = Fleet(made)
            if started:
                running.start()
                running.await_ready()
            yield running
        finally:
            end(made)
            for instance in made:
                sys.stderr.write(instance.last_output() if instance.log.exists() else "")
