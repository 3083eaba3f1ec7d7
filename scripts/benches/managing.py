"""What a process manager costs: the app of its fleet, and the measurement."""

import time
from enum import StrEnum
from typing import Any

from benches import bare, cpu
from benches.comparison import Found, Place
from benches.fleet import DOMAIN, TYPE, Fleet, fleet, nothing
from benches.yard import Cost, Yard, rates_and_cpu, yard
from cmdbus import HandlerRegistry, ProcessManager, Reply, SendRequest

_MANAGED, _REPLIES = "managing", "replies"
#: The type whose handler writes a row.
_WRITE = "Write"
#: Of --commands.
_PART = 5
_PROCESSES, _THREADS = 2, 8
_LOOK_S, _PATIENCE_S = 0.01, 120.0
_CLEAR = "TRUNCATE cmdbus.ready, cmdbus.finished, cmdbus.managed_process, cmdbus.process_step"
_LEFT = "SELECT FROM cmdbus.ready LIMIT 1"


class FourSteps(ProcessManager[dict[str, Any]]):
    domain, type = _MANAGED, "FourSteps"

    class Step(StrEnum):
        ONE = "ONE"
        TWO = "TWO"
        THREE = "THREE"
        FOUR = "FOUR"

    def first_step(self, state: dict[str, Any]) -> Step:
        return self.Step.ONE

    def build_command(self, step: Step, state: dict[str, Any]) -> SendRequest:
        return SendRequest(DOMAIN, state["type"])

    def next_step(self, state: dict[str, Any], step: Step, reply: Reply) -> Step | None:
        following = {"ONE": self.Step.TWO, "TWO": self.Step.THREE, "THREE": self.Step.FOUR}
        return following.get(step)


def registry() -> HandlerRegistry:
    """The app."""
    made = HandlerRegistry()
    made.register(DOMAIN, TYPE, nothing)
    made.register(DOMAIN, _WRITE, bare.insert)
    made.register(_REPLIES, "Reply", nothing)
    made.register_process(FourSteps())
    return made


def process(slot: Place) -> Found:
    """Processes of four steps, against as many commands with replies that a handler takes which
    does nothing: workers of 2 x 8. The handler of each step inserts a row through
    context.connection; in process-empty it does nothing. Commands in a second, from the first
    claim to the last end."""
    count = max(1, slot.sizes.commands // _PART // 4)
    configuration = {"of_processes": count, "processes": _PROCESSES, "threads": _THREADS}
    with slot.connect() as connection:
        connection.execute(bare.EFFECT)
    with (
        yard(slot) as here,
        fleet(
            slot.dsn,
            {},
            app="benches.managing:registry",
            processes=_PROCESSES,
            threads=_THREADS,
        ) as running,
    ):

        def compare(name: str, type_: str) -> Found:
            pairs = slot.alternate(
                lambda seconds: _replied(here, running, type_, _part(slot, count, seconds)),
                lambda seconds: _managed(here, running, type_, _part(slot, count, seconds)),
            )
            return rates_and_cpu(name, pairs, **configuration)

        return {**compare("process", _WRITE), **compare("process-empty", TYPE)}


def _replied(here: Yard, running: Fleet, type_: str, count: int) -> Cost:
    here.connection.execute(_CLEAR)
    here.bus.pause(DOMAIN)
    here.bus.send_many([SendRequest(DOMAIN, type_, reply_to=_REPLIES)] * (4 * count))
    return _cost_of(here, running, DOMAIN, count)


def _managed(here: Yard, running: Fleet, type_: str, count: int) -> Cost:
    here.connection.execute(_CLEAR)
    here.bus.pause(_MANAGED)
    for _ in range(count):
        here.bus.start_process(_MANAGED, "FourSteps", {"type": type_})
    return _cost_of(here, running, _MANAGED, count)


def _cost_of(here: Yard, running: Fleet, domain: str, count: int) -> Cost:
    """Of the commands of steps, once the domain is resumed."""
    server = here.server()
    seconds, spent = cpu.of(lambda: _drain(here, running, domain), [*running.pids(), *server])
    return Cost(4 * count / seconds, 1e6 * spent / (4 * count) if server else None)


def _drain(here: Yard, running: Fleet, domain: str) -> float:
    """The seconds that it takes."""
    began = time.monotonic()
    here.bus.resume(domain)
    while here.connection.execute(_LEFT).fetchone() is not None:
        running.check()
        if time.monotonic() > began + _PATIENCE_S:
            raise TimeoutError(f"{domain} is not drained after {_PATIENCE_S:.0f} s")
        time.sleep(_LOOK_S)
    return time.monotonic() - began


def _part(slot: Place, count: int, seconds: float) -> int:
    return max(1, int(count * seconds / slot.sizes.seconds))
