"""A worker in a process of its own, which has no steward.

It leaves one effect row for each command, in the command's transaction, and then waits for as many
seconds as the data say, or until there is the file that they name; TERM stops it.
"""

import os
import signal
import time
import traceback
from contextlib import closing
from pathlib import Path

from eventually import eventually
from handlers import handling, leave_effect

from cmdbus import Command, Context, RetryPolicy, Timeouts
from cmdbus.board.board import Board
from cmdbus.board.records import Role
from cmdbus.board.wake_pipe import WakePipe
from cmdbus.worker import Worker
from cmdbus.worker.pipeline.telemetry import SLOTS, Telemetry


def debit(command: Command, context: Context) -> None:
    leave_effect(command, context)
    if isinstance(command.data, str):
        eventually(Path(command.data).exists, 20)
    elif command.data:
        time.sleep(command.data)


class WorkerProcess:
    """It is ready; the test ends it."""

    def __init__(self, dsn: str, lease: float = 1.0, board: Path | None = None) -> None:
        self._code: int | None = None
        with closing(WakePipe(1)) as ready:
            self.pid = os.fork()
            if self.pid == 0:
                try:
                    _run(dsn, lease, board, ready)
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
            eventually(ready.take)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Its exit code, or minus the number of the signal that killed it."""
        if self._code is None:
            self.send(signal.SIGCONT)
            self.send(number)
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code


def _run(dsn: str, lease: float, path: Path | None, ready: WakePipe) -> None:
    timeouts = Timeouts(lease * 0.8, lease, lease, lease * 10, lease * 20)
    registry = handling(debit, retry=RetryPolicy(max_attempts=50, backoff=(0.05,)))
    worker = Worker(dsn, registry, concurrency=4, timeouts=timeouts)
    if path is not None:
        board = Board.create(path, seats=1, slots=SLOTS)
        seat = board.seat(0)
        seat.assign(Role.WORKER, number=0, generation=1)
        seat.enter(pid=os.getpid(), generation=1, now=time.monotonic_ns())
        worker._telemetry = Telemetry(board, seat)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop(timeout=10))
    ready.put()
    worker.run()
