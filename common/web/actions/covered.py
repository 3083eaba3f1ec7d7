"""How many commands a limit or breaker is about now."""

from collections.abc import Sequence

from cmdbus.producer.bus import CommandBus
from cmdbus.producer.records import Waiting
from cmdbus.web.actions.answers import commands, number
from cmdbus.web.covers import domains_covered, waiting_of


def read_waiting(bus: CommandBus, covers: Sequence[str]) -> Waiting:
    return waiting_of(covers, bus.domains(*domains_covered(covers)) if covers else [])


def sentence(waiting: Waiting) -> str:
    """`Now 1,204 commands wait, and 8 run.`"""
    running = waiting.in_progress
    runs = "runs" if running == 1 else "run"
    return f"Now {commands(waiting.depth, 'waits', 'wait')}, and {number(running)} {runs}."
