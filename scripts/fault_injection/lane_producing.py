"""The ways of a producer that have to do with limits: it sends commands that have them, changes
them, and decides about ordered commands that stand in the way of others."""

import random
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from cmdbus import CommandBus, InvalidOperationError, SendRequest
from fault_injection.drawing import Drawing, Limits
from fault_injection.group_producing import send_one, transaction
from fault_injection.handlers import DOMAIN
from fault_injection.journal import Journal
from fault_injection.lane_drawing import draw_limited
from fault_injection.lanes import LANES, TYPES
from fault_injection.steering import UNSURE, Operator

_MAX_TOGETHER, _OF_ONE_KEY = 8, 0.7
_IN_TRANSACTION = 0.2
#: Share of calls whose commands expire, and seconds until then.
_EXPIRING, _EXPIRES_S = 0.15, (0.1, 4.0)
#: What operators limit now and then: the first has a limit always, the others have no other one.
_CHANGED = ((LANES, "Changed"), (LANES, "Changed"), (DOMAIN, "Noop"), (DOMAIN, "Tx"))
_CONCURRENCIES = (1, 2, 5, 8)
_CLEARED = 0.4


class LaneProducer:
    def __init__(
        self, name: str, dice: random.Random, limits: Limits, dsn: str, journal: Journal
    ) -> None:
        self._dice, self._dsn, self._journal = dice, dsn, journal
        self._drawing = Drawing(dice, limits)
        self._operator = Operator(f"{name}-lanes", dice, journal)

    def send(self, bus: CommandBus, call: str) -> tuple[str, UUID] | None:
        """One command, or some in one call or in a transaction. Returns one that was sent."""
        dice = self._dice
        name = dice.choice([*TYPES])
        count = dice.choice((1, 1, dice.randint(2, _MAX_TOGETHER)))
        expires = round(dice.uniform(*_EXPIRES_S), 2) if dice.random() < _EXPIRING else None
        requests = [
            draw_limited(dice, self._drawing, call, index, name, expires) for index in range(count)
        ]
        if dice.random() < _OF_ONE_KEY:
            requests = [replace(request, key=requests[0].key) for request in requests]
        within = dice.random() < _IN_TRANSACTION
        self._journal.write("invoke", call, way="lane", count=count)
        try:
            ids = self._send(bus, requests, within=within)
        except UNSURE as error:
            self._journal.write("unknown", call, why=type(error).__name__)
        else:
            self._journal.write("ok", call, ids=ids)
            return requests[0].domain, ids[0]
        return None

    def _send(
        self, bus: CommandBus, requests: Sequence[SendRequest], *, within: bool
    ) -> list[UUID]:
        if within:
            with transaction(self._dsn) as connection:
                return bus.send_many(requests, connection=connection)
        if len(requests) > 1:
            return bus.send_many(requests)
        return [send_one(bus, requests[0])]

    def limit(self, bus: CommandBus, call: str) -> None:
        """As an operator sets or clears one."""
        domain, type_ = self._dice.choice(_CHANGED)
        concurrency = self._dice.choice(_CONCURRENCIES)
        cleared = self._dice.random() < _CLEARED
        self._journal.write("invoke", call, way="limit", count=0)
        try:
            if cleared:
                bus.limits.clear(domain, type_, operator="operator", reason=call)
            else:
                bus.limits.set(
                    domain, type_, concurrency=concurrency, operator="operator", reason=call
                )
        except InvalidOperationError:  # Nothing is set.
            self._journal.write("fail", call)
        except UNSURE as error:
            self._journal.write("unknown", call, why=type(error).__name__)
        else:
            self._journal.write("ok", call)

    def decide(self, bus: CommandBus, call: str) -> None:
        self._operator.decide_in_lanes(bus)
