"""A worker in a process of its own: python worker_process.py DSN [lease seconds [board]].

Leaves one effect row for each command, in the command's transaction; TERM stops it.
"""

import os
import signal
import sys
import time
from pathlib import Path

from cmdbus import Command, Context, HandlerRegistry, RetryPolicy, Timeouts
from cmdbus.board.board import Board
from cmdbus.worker import Worker
from cmdbus.worker.pipeline.telemetry import SLOTS, Telemetry

registry = HandlerRegistry()


@registry.handler("payments", "Debit", retry=RetryPolicy(max_attempts=50, backoff=(0.05,)))
def debit(command: Command, context: Context) -> None:
    context.connection.execute(
        "INSERT INTO effect VALUES (%s, %s)", (command.command_id, context.attempt)
    )
    if command.data:
        time.sleep(command.data)


def main() -> None:
    lease = float(sys.argv[2]) if len(sys.argv) > 2 else 1.0
    timeouts = Timeouts(lease * 0.8, lease, lease, lease * 10, lease * 20)
    worker = Worker(sys.argv[1], registry, concurrency=4, timeouts=timeouts)
    if len(sys.argv) > 3:
        board = Board.create(Path(sys.argv[3]), seats=1, slots=SLOTS)
        seat = board.seat(0)
        seat.enter(pid=os.getpid(), generation=0, now=time.monotonic_ns())
        worker._telemetry = Telemetry(board, seat)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop(timeout=10))
    print("ready", flush=True)
    worker.run()


if __name__ == "__main__":
    main()
