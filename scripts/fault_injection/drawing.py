"""Draws commands: their types, what their handlers do, their domains and payloads."""

import random
from dataclasses import dataclass
from typing import Any

from cmdbus import SendRequest
from fault_injection.handlers import DOMAIN, DOMAINS, REPLIES
from fault_injection.header_drawing import draw_headers
from fault_injection.iterating import ITERATE

_KINDS = {
    "Noop": 80,
    "Tx": 50,
    "Io": 24,
    "Transient": 12,
    "Undone": 8,
    ITERATE: 8,
    "Long": 2,
    "Rule": 8,
    "Permanent": 4,
    "OddResult": 2,
    "OddError": 2,
    "SystemExit": 2,
    "KeyboardInterrupt": 2,
    "CancelledError": 2,
    "Keep": 2,
}
#: One request in this many has a large payload, of up to this many bytes: in some runs that is
#: more than a process may claim ahead of its threads.
_LARGE_ONE_IN, _LARGE_BYTES = 100, 400_000
#: The payloads of big commands, in bytes.
_BIG_BYTES = (500_000, 1_000_000)
#: What handlers add to their batches, or a part of it.
ADDED = ("Tx", "Noop", "Tx")
#: Share of the requests that are for the first domain.
_FIRST_DOMAIN = 0.5
#: Share of the requests that have headers.
_WITH_HEADERS = 0.15
_PRIORITIES = ("high", "normal", "normal", "normal", "low", 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    #: Seconds that a handler takes at most.
    longest: float
    #: The number of domains that commands are for.
    domains: int


class Drawing:
    def __init__(self, dice: random.Random, limits: Limits) -> None:
        self._dice, self._limits = dice, limits

    def request(self, call: str, index: int, **more: Any) -> SendRequest:
        kind = self._dice.choices([*_KINDS], [*_KINDS.values()])[0]
        return self.of_type(kind, call, index, **more)

    def of_type(
        self, kind: str, call: str, index: int, *, delay: float | None = None, **more: Any
    ) -> SendRequest:
        dice = self._dice
        data: dict[str, object] = {"call": call, "index": index}
        if delay is not None:
            data["delay"] = delay
        if kind == "Io" or (kind in ("Tx", "Undone") and dice.random() < 0.3):
            data["seconds"] = round(dice.uniform(0.001, 0.3), 3)
        elif kind == "Long":
            data["seconds"] = round(dice.uniform(0.5, self._limits.longest), 2)
        elif kind == "Transient":
            data["times"] = dice.choice((1, 2, 3))
        elif kind == ITERATE:
            data["rows"], data["seconds"] = dice.randint(1, 8), round(dice.uniform(0.001, 0.05), 3)
        elif kind == "Adds":
            data["adds"] = ADDED[: dice.randint(1, len(ADDED))]
        if kind == "Big":
            data["size"] = size = dice.randint(*_BIG_BYTES)
            data["payload"] = dice.randbytes(size // 2 + 1).hex()[:size]
        elif dice.randrange(_LARGE_ONE_IN) == 0:
            data["payload"] = dice.randbytes(dice.randint(1, _LARGE_BYTES // 2)).hex()
        headers = draw_headers(dice) if dice.random() < _WITH_HEADERS else None
        if headers is not None:
            data["headers"] = headers
        others = DOMAINS[: self._limits.domains]
        return SendRequest(
            DOMAIN if dice.random() < _FIRST_DOMAIN else dice.choice(others),
            kind,
            data,
            delay=delay,
            priority=dice.choice(_PRIORITIES),
            reply_to=REPLIES if dice.random() < 0.1 else None,
            headers=headers,
            **more,
        )
