"""Processes that a measurement drives: started once, each at the end of a pipe, where it gets an
order and sends an answer.

They are started by spawn, so that none inherits an end of another's pipe: when the bench closes
its ends, or dies, each process reads the end of its own pipe and exits.
"""

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from typing import Any

#: Seconds that a process has to start, and to exit.
_START_S, _EXIT_S = 60.0, 10.0

#: A context, entered once in each process, of the function that answers an order.
Work = Callable[..., AbstractContextManager[Callable[[Any], Any]]]


class Crew:
    def __init__(self, pipes: "list[Connection[Any, Any]]", pids: list[int]) -> None:
        self._pipes = pipes
        self.pids = pids

    def order(self, order: object = None) -> None:
        for pipe in self._pipes:
            pipe.send(order)

    def answers(self, seconds: float) -> list[Any]:
        """One of each process, within these seconds."""
        found = []
        for pipe in self._pipes:
            if not pipe.poll(seconds):
                raise TimeoutError(f"a process of the bench did not answer within {seconds:.0f} s")
            try:
                found.append(pipe.recv())
            except EOFError:
                raise RuntimeError("a process of the bench died; its message is above") from None
        return found


@contextmanager
def crew(count: int, work: Work, *args: object) -> Iterator[Crew]:
    """`work` must be a function of a module: each process imports it. All of them are ready when
    this yields."""
    context = multiprocessing.get_context("spawn")
    pipes, started = [], []
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            pipes.append(ours)
            process = context.Process(target=_serve, args=(theirs, work, args))
            process.start()
            started.append(process)
            theirs.close()
        made = Crew(pipes, [process.pid for process in started if process.pid])
        made.answers(_START_S)
        yield made
    finally:
        for pipe in pipes:
            pipe.close()
        deadline = time.monotonic() + _EXIT_S
        for process in started:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def _serve(pipe: "Connection[Any, Any]", work: Work, args: tuple[object, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the bench, which closes the pipe
    with work(*args) as answer:
        try:
            pipe.send(None)
            while True:
                pipe.send(answer(pipe.recv()))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return
