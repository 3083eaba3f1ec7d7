"""Another system that handlers call, which fails or answers as a test wants, and counts."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from eventually import eventually
from handlers import running
from queries import rows

from cmdbus import (
    Breaker,
    Command,
    CommandBus,
    Context,
    HandlerRegistry,
    RetryPolicy,
    SendRequest,
    TransientCommandError,
)
from cmdbus.clock import time
from cmdbus.worker import Worker

#: Failures are not tried again soon.
LATER = RetryPolicy(max_attempts=9, backoff=(600,), jitter=0.0)


class OtherSide:
    def __init__(self) -> None:
        self.error: BaseException | None = None
        #: Monotonic times of calls.
        self.calls: list[float] = []
        #: Calls wait for it.
        self.answers = threading.Event()
        self.answers.set()

    def fail(self, error: BaseException | None = None) -> None:
        self.error = error or TransientCommandError("DOWN", "it is down")

    def __call__(self) -> str:
        self.calls.append(time.monotonic())
        self.answers.wait(20)
        if self.error is not None:
            raise self.error
        return "answered"


def bound_to(
    other: OtherSide, call: Callable[[Command, Context], object] | None = None, **terms: Any
) -> HandlerRegistry:
    """Charge of `payments` is bound to the breaker stripe, Ask of `payments` has a call inside it,
    and Noop has nothing to do with it."""
    registry = HandlerRegistry()
    registry.breaker(Breaker("stripe", **{"failures": 3, "window": 60, "cooldown": 0.3, **terms}))

    def charge(command: Command, context: Context) -> object:
        return call(command, context) if call else other()

    def ask(command: Command, context: Context) -> object:
        with context.breaker("stripe"):
            return charge(command, context)

    registry.register("payments", "Charge", charge, breaker="stripe", retry=LATER)
    registry.register("payments", "Ask", ask, retry=LATER)
    registry.register("payments", "Noop", lambda command, context: None)
    return registry


@contextmanager
def calling(dsn: str, other: OtherSide, threads: int = 2, **terms: Any) -> Iterator[Worker]:
    with running(dsn, bound_to(other, **terms), concurrency=threads) as worker:
        yield worker


def state(dsn: str) -> str:
    found = rows(dsn, "SELECT state FROM cmdbus.breaker")
    return str(found[0][0]) if found else ""


def await_state(dsn: str, wanted: str) -> None:
    eventually(lambda: state(dsn) == wanted)


def send(bus: CommandBus, type: str = "Charge", count: int = 1) -> list[object]:
    return [*bus.send_many([SendRequest("payments", type)] * count)]


def break_it(dsn: str, bus: CommandBus, other: OtherSide, *workers: Worker) -> None:
    """With commands of type Charge, of which none is left waiting; these workers know of it."""
    other.fail()
    send(bus, count=3)
    await_state(dsn, "OPEN")
    await_notifications(dsn, workers)


def await_notifications(dsn: str, workers: Sequence[Worker]) -> None:
    """Until each has heard of all changes up to now: notifications come in their order."""
    boards = [worker._telemetry.board for worker in workers]
    heard = [board.breaker_changes for board in boards]
    rows(dsn, "SELECT cmdbus.announce_breaker(b, false) FROM cmdbus.breaker b")
    for board, before in zip(boards, heard, strict=True):
        eventually(lambda board=board, before=before: board.breaker_changes > before)  # type: ignore[misc]


def scalar_of(dsn: str, expression: str) -> object:
    """Of the breaker; None before it is declared."""
    found = rows(dsn, f"SELECT {expression} FROM cmdbus.breaker")
    return found[0][0] if found else None
