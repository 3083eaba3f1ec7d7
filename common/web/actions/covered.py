"""How many commands a limit or breaker is about now."""

from collections.abc import Sequence
from dataclasses import replace

from cmdbus.producer.bus import CommandBus
from cmdbus.producer.records import Waiting
from cmdbus.web.actions.answers import commands, number


def waiting_of(bus: CommandBus, covers: Sequence[str]) -> Waiting:
    """Of these types, given as domain/type, and domains."""
    total = Waiting()
    domains = sorted({cover.partition("/")[0] for cover in covers})
    for record in bus.domains(*domains) if domains else []:
        for type_, waiting in record.types.items():
            if record.domain in covers or f"{record.domain}/{type_}" in covers:
                total += replace(waiting, oldest_age=0.0)
    return total


def sentence(waiting: Waiting) -> str:
    """`Now 1,204 commands wait, and 8 run.`"""
    running = waiting.in_progress
    runs = "runs" if running == 1 else "run"
    return f"Now {commands(waiting.depth, 'waits', 'wait')}, and {number(running)} {runs}."
