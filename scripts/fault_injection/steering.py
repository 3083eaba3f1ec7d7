"""What operators do with processes: signals, cancels, retries and decisions about commands that
are in troubleshooting."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg

from cmdbus import CommandBus, CommandNotFoundError, InvalidOperationError, ProcessNotFoundError
from cmdbus.errors import DatabaseUnavailableError
from fault_injection.flows import FLOWS
from fault_injection.journal import Journal
from fault_injection.lanes import LANES, WIDE

UNSURE = (psycopg.Error, DatabaseUnavailableError)
_REFUSED = (InvalidOperationError, CommandNotFoundError, ProcessNotFoundError)
_BATCH = "process:batch"
_TROUBLE = "IN_TROUBLESHOOTING_QUEUE"
#: Processes that are decided about in one look.
_AT_ONCE = 50
#: Decisions about a process until its command may not fail again, and until it is given up.
_DECISIONS, _MAX_DECISIONS = 3, 12


class Operator:
    def __init__(self, name: str, dice: random.Random, journal: Journal) -> None:
        self._name, self._dice, self._journal = name, dice, journal
        self._decisions: Counter[UUID] = Counter()
        self._calls = 0

    def tend(self, bus: CommandBus) -> bool:
        """Decides about processes that wait for that; False if none does, or for too long."""
        waiting = bus.query_processes(status="WAITING_FOR_TSQ", domain=FLOWS, limit=_AT_ONCE)
        for record in waiting:
            self._decisions[record.process_id] += 1
            for_good = self._decisions[record.process_id] > _DECISIONS
            self._calls += 1
            self.decide(bus, f"{self._name}-{self._calls}", record.process_id, for_good=for_good)
        return any(self._decisions[each.process_id] <= _MAX_DECISIONS for each in waiting)

    def decide_in_lanes(self, bus: CommandBus) -> None:
        """About commands with limits that are in troubleshooting, where ordered ones may stand in
        the way of others."""
        for domain in (LANES, WIDE):
            try:
                found = bus.troubleshooting.list(domain, limit=_AT_ONCE)
            except UNSURE:
                return
            for record in found:
                id_ = record.command_id
                self._decisions[id_] += 1
                self._calls += 1
                call = f"{self._name}-{self._calls}"
                for_good = self._decisions[id_] > _DECISIONS
                self._resolve(bus, call, (domain, id_), for_good=for_good)

    def clear_limits(self, bus: CommandBus) -> None:
        """All that operators have set: hundreds of commands may wait at one of 1 at a time."""
        for record in bus.limits.list():
            if record.set is not None:
                domain, type_ = record.name.split("/")
                bus.limits.clear(domain, type_, operator=self._name)

    def steer(self, bus: CommandBus, call: str, id_: UUID, *, again: bool) -> None:
        """`again`: also lets failed compensations run again."""
        action = self._dice.choice(("signal", "signal", "cancel", "decide", "decide", "retry"))
        if action == "signal":
            self.do(call, "signal", id_, lambda: bus.signal_process(id_, "noted", call))
        elif action == "cancel":
            self.do(
                call,
                "cancel-process",
                id_,
                lambda: bus.cancel_process(id_, operator=self._name, reason=call),
            )
        elif action == "decide":
            self.decide(bus, call, id_)
        elif again:
            self._retry(bus, call, id_)

    def decide(self, bus: CommandBus, call: str, id_: UUID, *, for_good: bool = False) -> None:
        """About one of the commands that a process waits for, or about the process's own."""
        try:
            key = self._trouble(bus, id_)
        except UNSURE:
            return
        if key is None:
            self._retry(bus, call, id_)
            return
        self._resolve(bus, call, key, for_good=for_good)

    def _resolve(
        self, bus: CommandBus, call: str, key: tuple[str, UUID], *, for_good: bool
    ) -> None:
        queue = bus.troubleshooting
        done: Any = {"operator": self._name, "reason": call}
        actions: list[tuple[str, Callable[[], object]]] = [
            ("complete", lambda: queue.complete(*key, **done)),
            ("cancel", lambda: queue.cancel(*key, **done)),
            ("retry", lambda: queue.retry(*key, **done)),
        ]
        way, action = self._dice.choice(actions[:1] if for_good else actions)
        self.do(call, way + "-trouble", key[1], action)

    def do(self, call: str, way: str, id_: UUID, action: Callable[[], object]) -> None:
        self._journal.write("invoke", call, way=way, count=0, ids=[id_])
        try:
            action()
        except _REFUSED:
            self._journal.write("fail", call)
        except UNSURE as error:
            self._journal.write("unknown", call, why=type(error).__name__)
        else:
            self._journal.write("ok", call)

    def _retry(self, bus: CommandBus, call: str, id_: UUID) -> None:
        self.do(
            call,
            "retry-process",
            id_,
            lambda: bus.retry_process(id_, operator=self._name, reason=call),
        )

    def _trouble(self, bus: CommandBus, id_: UUID) -> tuple[str, UUID] | None:
        """The domain and id of what the process waits for, if that is in troubleshooting."""
        steps = bus.process_steps(id_)
        if not steps or steps[-1].outcome is not None:
            return None
        latest = steps[-1]
        if latest.type == _BATCH:
            found = bus.batch_commands(latest.command_id, _TROUBLE, limit=1)
            return (found[0].domain, found[0].command_id) if found else None
        record = bus.get(latest.domain, latest.command_id)
        is_there = record is not None and record.status == _TROUBLE
        return (latest.domain, latest.command_id) if is_there else None
