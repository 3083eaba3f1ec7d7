"""Many concurrent senders: processes with threads, started once, driven through pipes.

Started by spawn, so that a sender inherits no end of another's pipe: when the bench
dies, each reads the end of its own and leaves.
"""

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from benches.comparison import rate_of
from cmdbus.bus import CommandBus

#: A round begins so long after its order, so that nobody is late.
_LEAD_S = 0.02
_ANSWER_S = 60.0
_LEAVE_S = 5.0

Send = Callable[[CommandBus], object]


class Team:
    def __init__(self, members: "list[Connection[Any, Any]]") -> None:
        self._members = members

    def rate(self, seconds: float) -> float:
        """Commands per second of all senders together."""
        begin = time.monotonic() + _LEAD_S
        for member in self._members:
            member.send((begin, seconds))
        return sum(_answer(member, seconds) for member in self._members)


@contextmanager
def team(dsn: str, send: Send, *, processes: int, threads: int) -> Iterator[Team]:
    """`send` must be a function of a module: it is looked up there by each process."""
    context = multiprocessing.get_context("spawn")
    members, started = [], []
    try:
        for _ in range(processes):
            ours, theirs = context.Pipe()
            members.append(ours)
            process = context.Process(target=_be_member, args=(theirs, dsn, send, threads))
            process.start()
            started.append(process)
            theirs.close()
        for member in members:
            _answer(member, 0)  # it is there, and connected
        yield Team(members)
    finally:
        for member in members:
            member.close()
        deadline = time.monotonic() + _LEAVE_S
        for process in started:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def _answer(member: "Connection[Any, Any]", seconds: float) -> float:
    if not member.poll(seconds + _ANSWER_S):
        raise TimeoutError(f"a sender has not answered for {seconds + _ANSWER_S:.0f} s")
    try:
        return float(member.recv())
    except EOFError:
        raise RuntimeError("a sender died; what it said is above") from None


def _be_member(orders: "Connection[Any, Any]", dsn: str, send: Send, threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the bench, which closes the pipe

    def run(begin: float, seconds: float) -> float:
        time.sleep(max(0.0, begin - time.monotonic()))
        return rate_of(lambda: send(bus), seconds)

    with CommandBus(dsn) as bus, ThreadPoolExecutor(threads) as pool:
        sum(pool.map(run, [time.monotonic() + _LEAD_S] * threads, [_LEAD_S] * threads))
        orders.send(0)
        while True:
            try:
                begin, seconds = orders.recv()
                orders.send(sum(pool.map(run, [begin] * threads, [seconds] * threads)))
            except (EOFError, BrokenPipeError, ConnectionResetError):
                return
