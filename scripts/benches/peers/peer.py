"""What each system must be able to do to be measured, and the processes of its workers."""

import json
import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import ClassVar

from lab.instances import SCRIPTS

_EXIT_S = 15.0

Payload = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Of one worker process, as its program reads them."""

    address: str
    #: Where its handlers write their times.
    directory: str
    #: Commands that it runs at the same time.
    concurrency: int
    #: Whether handlers return at once.
    quick: bool


class Peer(ABC):
    """One system, with its tables or queues in place. Its module also has its workers' `main`."""

    name: ClassVar[str]
    #: Its share of the commands of a drain: slower systems get fewer.
    share: ClassVar[float]

    def __init__(self, address: str) -> None:
        """`address`: of the server that has its queue."""
        self.address = address

    @abstractmethod
    def send(self, payloads: Sequence[Payload]) -> None:
        """In as few steps as it can."""

    @abstractmethod
    def close(self) -> None: ...

    @contextmanager
    def workers(
        self, directory: str, processes: int, threads: int, *, quick: bool
    ) -> Iterator[None]:
        """Workers, which may still be starting when this yields."""
        options = WorkerOptions(
            address=self.address, directory=directory, concurrency=threads, quick=quick
        )
        start = f"from {type(self).__module__} import main; main()"
        program = [sys.executable, "-c", start, json.dumps(asdict(options))]
        environment = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
        started = [
            subprocess.Popen(program, env=environment, stdin=subprocess.DEVNULL)
            for _ in range(processes)
        ]
        try:
            yield
        finally:
            _end(started)


def read_options() -> WorkerOptions:
    """In a worker's process."""
    return WorkerOptions(**json.loads(sys.argv[1]))


def _end(started: "Sequence[subprocess.Popen[bytes]]") -> None:
    for process in started:
        process.terminate()
    deadline = time.monotonic() + _EXIT_S
    for process in started:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
