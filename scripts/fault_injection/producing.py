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
from pathlib import Path
from uuid import UUID

from cmdbus import (
    CommandBus,
    CommandFailedError,
    CommandNotFoundError,
    DuplicateCommandError,
    InvalidOperationError,
    SendRequest,
)
from fault_injection.drawing import Drawing, Limits
from fault_injection.flow_drawing import draw_id
from fault_injection.group_producing import KNOWN, GroupProducer, send_one, transaction
from fault_injection.handlers import DOMAIN, DOMAINS, UNHANDLED
from fault_injection.journal import Journal
from fault_injection.lane_producing import LaneProducer
from fault_injection.pacing import Pace
from fault_injection.selecting import TAGGED
from fault_injection.steering import UNSURE
from fault_injection.unique_producing import UniqueProducer

_WEIGHTS = {
    "send": 40,
    "many": 12,
    "batch": 4,
    "cancel-batch": 1,
    "call": 3,
    "process": 6,
    "join": 1,
    "steer": 5,
    "own": 15,
    "commit": 10,
    "rollback": 8,
    "delayed": 8,
    "cancel": 7,
    "tagged": 6,
    "crowd": 0.15,
    "big": 1,
    "lane": 20,
    "unique": 10,
    "limit": 0.6,
    "lane-trouble": 1,
}
#: How many big commands are sent together at most.
_BIG_AT_ONCE = 4
#: Commands that become due at the same time, and seconds until then.
_CROWD, _CROWD_DELAY_S = (150, 400), (0.5, 6.0)
#: Commands without a handler, in front of all others, and in front of other domains.
_IN_FRONT, _IN_FRONT_ELSEWHERE = 3_000, 50
#: A send with an id of its own is repeated until its result is known.
_AGAIN_S = 0.3
_CALL_S = 3.0


class Producer:
    def __init__(
        self,
        name: str,
        seed: int,
        rate: float,
        *,
        pace: Pace,
        limits: Limits,
        dsn: str,
        journal: Journal,
    ) -> None:
        self._name = name
        self._dice = random.Random(seed)
        self._pause, self._pace = 1.0 / rate, pace
        self._drawing = Drawing(self._dice, limits)
        self._dsn = dsn
        self._journal = journal
        self._calls = 0
        self._stopping = False
        #: Some of those that it sent, to be canceled.
        self._known: list[tuple[str, UUID]] = []
        self._groups = GroupProducer(name, self._dice, limits, dsn, journal)
        self._lanes = LaneProducer(name, self._dice, limits, dsn, journal)
        self._unique = UniqueProducer(name, self._dice, limits, dsn, journal)

    def stop(self) -> None:
        self._stopping = True

    def run(self) -> None:
        ways: dict[str, Callable[[CommandBus, str], None]] = {
            "send": self._send,
            "many": self._many,
            "batch": self._groups.batch,
            "cancel-batch": self._groups.cancel_batch,
            "call": self._call,
            "process": self._groups.process,
            "join": self._groups.join,
            "steer": self._groups.steer,
            "own": self._own,
            "commit": self._commit,
            "rollback": self._rollback,
            "delayed": self._delayed,
            "cancel": self._cancel,
            "tagged": self._tagged,
            "crowd": self._crowd,
            "big": self._big,
            "lane": self._send_in_lane,
            "unique": self._unique.send,
            "limit": self._lanes.limit,
            "lane-trouble": self._lanes.decide,
        }
        with CommandBus(self._dsn) as bus:
            while not self._stopping:
                way = self._dice.choices([*_WEIGHTS], [*_WEIGHTS.values()])[0]
                self._calls += 1
                ways[way](bus, f"{self._name}-{self._calls}")
                self._pace.keep(self._dice.expovariate(1 / self._pause), lambda: self._stopping)

    def _send(self, bus: CommandBus, call: str) -> None:
        request = self._drawing.request(call, 0)
        self._try(call, "send", [request], lambda: [send_one(bus, request)])

    def _many(self, bus: CommandBus, call: str) -> None:
        requests = [
            self._drawing.request(call, index) for index in range(self._dice.randint(2, 12))
        ]
        self._try(call, "many", requests, lambda: bus.send_many(requests))

    def _call(self, bus: CommandBus, call: str) -> None:
        request = self._drawing.request(call, 0)
        self._journal.write("invoke", call, way="call", count=1)
        try:
            result = bus.call(
                request.domain,
                request.type,
                request.data,
                timeout=_CALL_S,
                headers=request.headers,
            )
        except CommandFailedError as error:
            answer = {"status": error.status, "code": error.code}
            self._journal.write("ok", call, ids=[error.command_id], answer=answer)
        # The command is nowhere if the server was restored to a time before the call.
        except (TimeoutError, CommandNotFoundError, *UNSURE) as error:
            self._journal.write("unknown", call, why=type(error).__name__)
        else:
            self._journal.write("ok", call, answer={"status": "COMPLETED", "run": result["run"]})

    def _crowd(self, bus: CommandBus, call: str) -> None:
        """Hundreds that become due together, some big ones among them."""
        delay = round(self._dice.uniform(*_CROWD_DELAY_S), 2)
        bigs = self._dice.randint(0, _BIG_AT_ONCE)
        requests = [
            self._drawing.of_type("Big" if index < bigs else "Noop", call, index, delay=delay)
            for index in range(self._dice.randint(*_CROWD))
        ]
        self._try(call, "crowd", requests, lambda: bus.send_many(requests), delay=delay)

    def _big(self, bus: CommandBus, call: str) -> None:
        count = self._dice.randint(1, _BIG_AT_ONCE)
        requests = [self._drawing.of_type("Big", call, index) for index in range(count)]
        self._try(call, "big", requests, lambda: bus.send_many(requests))

    def _tagged(self, bus: CommandBus, call: str) -> None:
        """Of a type that needs a tag."""
        requests = [
            SendRequest(DOMAIN, TAGGED, {"call": call, "index": index})
            for index in range(self._dice.randint(1, 5))
        ]
        self._try(call, "tagged", requests, lambda: bus.send_many(requests))

    def _delayed(self, bus: CommandBus, call: str) -> None:
        delay = round(self._dice.uniform(0.1, 4.0), 2)
        request = self._drawing.request(call, 0, delay=delay)
        self._try(call, "delayed", [request], lambda: [send_one(bus, request)], delay=delay)

    def _own(self, bus: CommandBus, call: str) -> None:
        """As often as it takes: with an id of its own it cannot double."""
        id_ = draw_id(self._dice)
        request = self._drawing.request(call, 0, command_id=id_)
        self._journal.write("invoke", call, way="own", count=1, ids=[id_])
        while not self._stopping:
            try:
                send_one(bus, request)
            except DuplicateCommandError:
                pass
            except UNSURE as error:
                self._journal.write("again", call, why=type(error).__name__)
                time.sleep(_AGAIN_S)
                continue
            self._journal.write("ok", call, ids=[id_])
            return
        self._journal.write("unknown", call)

    def _commit(self, bus: CommandBus, call: str) -> None:
        requests = [self._drawing.request(call, index) for index in range(2)]
        self._try(call, "commit", requests, lambda: self._within(bus, requests))

    def _rollback(self, bus: CommandBus, call: str) -> None:
        """In a transaction of the caller's, which is rolled back: nothing was ever sent."""
        self._journal.write("invoke", call, way="rollback", count=2)
        try:
            requests = [self._drawing.request(call, index) for index in range(2)]
            self._within(bus, requests, roll_back=True)
        except (_RolledBack, *UNSURE):
            self._journal.write("fail", call)

    def _within(
        self, bus: CommandBus, requests: Sequence[SendRequest], *, roll_back: bool = False
    ) -> list[UUID]:
        with transaction(self._dsn) as connection:
            ids = [send_one(bus, requests[0], connection=connection)]
            ids += bus.send_many(requests[1:], connection=connection)
            if roll_back:
                raise _RolledBack
        return ids

    def _send_in_lane(self, bus: CommandBus, call: str) -> None:
        if (known := self._lanes.send(bus, call)) is not None:
            self._known = [*self._known[-KNOWN:], known]

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
        except UNSURE as error:
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
        except UNSURE as error:
            self._journal.write("unknown", call, why=type(error).__name__)
            return
        self._journal.write("ok", call, ids=ids)
        self._known = [*self._known[-KNOWN:], (requests[0].domain, ids[0])]


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


def main() -> None:
    options = json.loads(sys.argv[1])
    directory = Path(options["directory"])
    journal = Journal(directory / "journals" / options["name"])
    dsn = os.environ["CMDBUS_DSN"]
    producer = Producer(
        options["name"],
        options["seed"],
        options["calls_per_s"],
        pace=Pace(directory),
        limits=Limits(longest=options["longest"], domains=options["domains"]),
        dsn=dsn,
        journal=journal,
    )
    signal.signal(signal.SIGTERM, lambda *_: producer.stop())
    producer.run()
    journal.close()
