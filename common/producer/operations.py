"""The operator's sides of `CommandBus` that have a name of their own."""

from collections.abc import Sequence
from typing import Any

from cmdbus.producer.breakers import BreakerOperations
from cmdbus.producer.bridges import BridgeOperations
from cmdbus.producer.connections import Connections
from cmdbus.producer.limits import LimitOperations
from cmdbus.producer.requests import SendRules
from cmdbus.producer.schedules import ScheduleOperations
from cmdbus.producer.sending import Sender
from cmdbus.producer.store import AdmissionResult


class Operations:
    _connections: Connections
    _rules: SendRules
    _sender: Sender

    @property
    def limits(self) -> LimitOperations:
        """How many commands run at once, how many start in a time, and in which order: list, set,
        clear."""
        return LimitOperations(self._connections)

    @property
    def breakers(self) -> BreakerOperations:
        """Circuit breakers: list, open, close, reset, set, clear, audit."""
        return BreakerOperations(self._connections)

    @property
    def bridges(self) -> BridgeOperations:
        """Bridges between queues of PGMQ and domains: list, add, remove."""
        return BridgeOperations(self._connections)

    @property
    def schedules(self) -> ScheduleOperations:
        """Commands that are sent at certain times: list, add, remove, pause, resume, run, next."""

        def check(domain: str, reply: Sequence[Any], key: str | None) -> None:
            self._sender.check_admission(domain, AdmissionResult(*reply), 1, key)

        return ScheduleOperations(self._connections, self._rules, check)
