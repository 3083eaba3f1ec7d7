"""One producer: a process that sends in every way there is, and says in its journal what it
did. It draws what it sends from its seed; it ends with its parent.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

from cmdbus import (
    CommandBus,
    CommandNotFoundError,
    DuplicateCommandError,
    InvalidOperationError,
    SendRequest,
)
from cmdbus.database.dsn import complete, connect, parse
from cmdbus.errors import DatabaseUnavailableError
from fault_injection.handlers import DOMAIN, DOMAINS, REPLIES, UNHANDLED
from fault_injection.journal import Journal

_WEIGHTS = {
    "send": 40,
    "many": 12,
    "batch": 4,
    "own": 15,
    "commit": 10,
    "rollback": 8,
    "delayed": 8,
    "cancel": 7,
    "crowd": 0.15,
    "big": 1,
}
_KINDS = {
    "Noop": 80,
    "Tx": 50,
    "Io": 24,
    "Transient": 12,
    "Undone": 8,
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
#: The payloads of big commands, in bytes, and how many are sent together at most.
_BIG_BYTES, _BIG_AT_ONCE = (500_000, 1_000_000), 4
#: Commands that become due at the same time, and seconds until then.
_CROWD, _CROWD_DELAY_S = (150, 400), (0.5, 6.0)
#: Commands without a handler, in front of all others, and in front of other domains.
_IN_FRONT, _IN_FRONT_ELSEWHERE = 3_000, 50
#: Share of the requests that are for the first domain.
_FIRST_DOMAIN = 0.5
_PRIORITIES = ("high", "normal", "normal", "normal", "low", 3)
#: A send with an id of its own is repeated until its result is known.
_AGAIN_S = 0.3
_UNSURE = (psycopg.Error, DatabaseUnavailableError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    #: Seconds that a handler takes at most.
    longest: float
    #: The number of domains that commands are for.
    domains: int


class Producer:
    def __init__(
        self, name: str, seed: int, rate: float, *, limits: Limits, dsn: str, journal: Journal
    ) -> None:
        self._name = name
        self._dice = random.Random(seed)
        self._pause = 1.0 / rate
        self._limits = limits
        self._dsn = dsn
        self._journal = journal
        self._calls = 0
        self._stopping = False
        #: Some of those that it sent, to be canceled.
        self._known: list[tuple[str, UUID]] = []

    def stop(self) -> None:
        self._stopping = True

    def run(self) -> None:
        ways: dict[str, Callable[[CommandBus, str], None]] = {
            "send": self._send,
            "many": self._many,
            "batch": self._batch,
            "own": self._own,
            "commit": self._commit,
            "rollback": self._rollback,
            "delayed": self._delayed,
            "cancel": self._cancel,
            "crowd": self._crowd,
            "big": self._big,
        }
        with CommandBus(self._dsn) as bus:
            while not self._stopping:
                way = self._dice.choices([*_WEIGHTS], [*_WEIGHTS.values()])[0]
                self._calls += 1
                ways[way](bus, f"{self._name}-{self._calls}")
                time.sleep(self._dice.expovariate(1 / self._pause))

    def _send(self, bus: CommandBus, call: str) -> None:
        request = self._request(call, 0)
        self._try(call, "send", [request], lambda: [_send(bus, request)])

    def _many(self, bus: CommandBus, call: str) -> None:
        requests = [self._request(call, index) for index in range(self._dice.randint(2, 12))]
        self._try(call, "many", requests, lambda: bus.send_many(requests))

    def _batch(self, bus: CommandBus, call: str) -> None:
        """What it sends when it is over is a call of its own, which nobody answers."""
        requests = [self._request(call, index) for index in range(self._dice.randint(1, 30))]
        close = self._of_type("Noop", f"{call}-over", 0)
        self._journal.write("invoke", f"{call}-over", way="batch", count=1)
        self._journal.write("invoke", call, way="batch", count=len(requests))
        try:
            bus.create_batch(DOMAIN, requests, name=call, on_complete=close)
        except _UNSURE as error:
            self._journal.write("unknown", call, why=type(error).__name__)
        else:
            self._journal.write("ok", call)

    def _crowd(self, bus: CommandBus, call: str) -> None:
        """Hundreds that become due together, some big ones among them."""
        delay = round(self._dice.uniform(*_CROWD_DELAY_S), 2)
        bigs = self._dice.randint(0, _BIG_AT_ONCE)
        requests = [
            self._of_type("Big" if index < bigs else "Noop", call, index, delay=delay)
            for index in range(self._dice.randint(*_CROWD))
        ]
        self._try(call, "crowd", requests, lambda: bus.send_many(requests), delay=delay)

    def _big(self, bus: CommandBus, call: str) -> None:
        count = self._dice.randint(1, _BIG_AT_ONCE)
        requests = [self._of_type("Big", call, index) for index in range(count)]
        self._try(call, "big", requests, lambda: bus.send_many(requests))

    def _delayed(self, bus: CommandBus, call: str) -> None:
        delay = round(self._dice.uniform(0.1, 4.0), 2)
        request = self._request(call, 0, delay=delay)
        self._try(call, "delayed", [request], lambda: [_send(bus, request)], delay=delay)

    def _own(self, bus: CommandBus, call: str) -> None:
        """As often as it takes: with an id of its own it cannot double."""
        id_ = UUID(int=self._dice.getrandbits(128), version=4)
        request = self._request(call, 0, command_id=id_)
        self._journal.write("invoke", call, way="own", count=1, ids=[id_])
        while not self._stopping:
            try:
                _send(bus, request)
            except DuplicateCommandError:
                pass
            except _UNSURE as error:
                self._journal.write("again", call, why=type(error).__name__)
                time.sleep(_AGAIN_S)
                continue
            self._journal.write("ok", call, ids=[id_])
            return
        self._journal.write("unknown", call)

    def _commit(self, bus: CommandBus, call: str) -> None:
        requests = [self._request(call, index) for index in range(2)]
        self._try(call, "commit", requests, lambda: self._within(bus, requests))

    def _rollback(self, bus: CommandBus, call: str) -> None:
        """In a transaction of the caller's, which is rolled back: nothing was ever sent."""
        self._journal.write("invoke", call, way="rollback", count=2)
        try:
            requests = [self._request(call, index) for index in range(2)]
            self._within(bus, requests, roll_back=True)
        except (_RolledBack, *_UNSURE):
            self._journal.write("fail", call)

    def _within(
        self, bus: CommandBus, requests: Sequence[SendRequest], *, roll_back: bool = False
    ) -> list[UUID]:
        parts = complete(parse(self._dsn), application_name="cmdbus:bus", settings={})
        with connect(parts) as connection, connection.transaction():
            ids = [_send(bus, requests[0], connection=connection)]
            ids += bus.send_many(requests[1:], connection=connection)
            if roll_back:
                raise _RolledBack
        return ids

    def _cancel(self, bus: CommandBus, call: str) -> None:
        if not self._known:
            return
        domain, id_ = self._known.pop(self._dice.randrange(len(self._known)))
        running = self._dice.random() < 0.3
        self._journal.write("invoke", call, way="cancel", count=0, ids=[id_])
        try:
            bus.cancel(domain, id_, reason=call, running=running)
        except (InvalidOperationError, CommandNotFoundError):
            self._journal.write("fail", call)
        except _UNSURE as error:
            self._journal.write("unknown", call, why=type(error).__name__)
        else:
            self._journal.write("ok", call)

    def _try(
        self,
        call: str,
        way: str,
        requests: Sequence[SendRequest],
        send: Callable[[], list[UUID]],
        **more: object,
    ) -> None:
        self._journal.write("invoke", call, way=way, count=len(requests), **more)
        try:
            ids = send()
        except _UNSURE as error:
            self._journal.write("unknown", call, why=type(error).__name__)
            return
        self._journal.write("ok", call, ids=ids)
        self._known = [*self._known[-50:], (requests[0].domain, ids[0])]

    def _request(self, call: str, index: int, **more: Any) -> SendRequest:
        kind = self._dice.choices([*_KINDS], [*_KINDS.values()])[0]
        return self._of_type(kind, call, index, **more)

    def _of_type(
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
        if kind == "Big":
            data["size"] = size = dice.randint(*_BIG_BYTES)
            data["payload"] = dice.randbytes(size // 2 + 1).hex()[:size]
        elif dice.randrange(_LARGE_ONE_IN) == 0:
            data["payload"] = dice.randbytes(dice.randint(1, _LARGE_BYTES // 2)).hex()
        others = DOMAINS[: self._limits.domains]
        return SendRequest(
            DOMAIN if dice.random() < _FIRST_DOMAIN else dice.choice(others),
            kind,
            data,
            delay=delay,
            priority=dice.choice(_PRIORITIES),
            reply_to=REPLIES if dice.random() < 0.1 else None,
            **more,
        )


def send_in_front(dsn: str, journal: Journal, domains: int) -> None:
    """Commands of a type without a handler, before the faults: every claim passes by them."""
    call = "front"
    names = [DOMAIN] * _IN_FRONT + [*DOMAINS[1:domains]] * _IN_FRONT_ELSEWHERE
    journal.write("invoke", call, way="many", count=len(names))
    requests = [
        SendRequest(domain, UNHANDLED, {"call": call, "index": index}, priority="high")
        for index, domain in enumerate(names)
    ]
    with CommandBus(dsn) as bus:
        journal.write("ok", call, ids=bus.send_many(requests))


class _RolledBack(Exception):
    pass


def _send(bus: CommandBus, request: SendRequest, **more: Any) -> UUID:
    return bus.send(
        request.domain,
        request.type,
        request.data,
        command_id=request.command_id,
        priority=request.priority,
        delay=request.delay,
        reply_to=request.reply_to,
        **more,
    )


def main() -> None:
    options = json.loads(sys.argv[1])
    journal = Journal(Path(options["journal"]))
    dsn = os.environ["CMDBUS_DSN"]
    producer = Producer(
        options["name"],
        options["seed"],
        options["calls_per_s"],
        limits=Limits(longest=options["longest"], domains=options["domains"]),
        dsn=dsn,
        journal=journal,
    )
    signal.signal(signal.SIGTERM, lambda *_: producer.stop())
    producer.run()
    journal.close()
