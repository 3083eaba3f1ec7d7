"""The ways of a producer to send what belongs together: batches and processes."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg

from cmdbus import (
    BatchNotFoundError,
    CommandBus,
    InvalidOperationError,
    ProcessRequest,
    SendRequest,
)
from cmdbus.database.dsn import complete, connect, parse
from fault_injection.drawing import Drawing, Limits
from fault_injection.flow_drawing import draw, draw_id
from fault_injection.flows import FLOW, FLOWS
from fault_injection.handlers import DOMAIN
from fault_injection.journal import Journal
from fault_injection.lane_drawing import draw_limited
from fault_injection.lanes import TYPES
from fault_injection.steering import UNSURE, Operator

#: Shares of a batch's commands that add others to it, and of batches with processes.
_ADDING, _WITH_PROCESSES = 0.1, 0.25
#: Share of those that have a limit, and seconds until these expire.
_LIMITED, _EXPIRES_S = 0.15, 5.0
#: Of what a producer has created, those that it may cancel.
KNOWN = 50
#: Of processes, most of which end within seconds, and of batches that a process joins.
_LATEST = 6


@contextmanager
def transaction(dsn: str) -> Iterator[psycopg.Connection]:
    """Of a program that sends in it."""
    parts = complete(parse(dsn), application_name="cmdbus:bus", settings={})
    with connect(parts) as connection, connection.transaction():
        yield connection


def send_one(bus: CommandBus, request: SendRequest, **more: Any) -> UUID:
    return bus.send(
        request.domain,
        request.type,
        request.data,
        command_id=request.command_id,
        priority=request.priority,
        delay=request.delay,
        reply_to=request.reply_to,
        key=request.key,
        expires=request.expires,
        unique=request.unique,
        on_conflict=request.on_conflict,
        unique_until=request.unique_until,
        headers=request.headers,
        **more,
    )


class GroupProducer:
    def __init__(
        self, name: str, dice: random.Random, limits: Limits, dsn: str, journal: Journal
    ) -> None:
        self._dice, self._dsn, self._journal = dice, dsn, journal
        self._drawing, self._domains = Drawing(dice, limits), limits.domains
        self._operator = Operator(name, dice, journal)
        self._batches: list[UUID] = []
        #: With the ids of processes, whether they are part of a batch.
        self._processes: list[tuple[UUID, bool]] = []

    def batch(self, bus: CommandBus, call: str) -> None:
        """What it sends when it is over, and its processes, are calls of their own."""
        requests = [self._in_batch(call, index) for index in range(self._dice.randint(1, 30))]
        over, canceled = f"{call}-over", f"{call}-canceled"
        for name in (over, canceled):
            self._journal.write("invoke", name, way="batch", count=1)
        has_processes = self._dice.random() < _WITH_PROCESSES
        count = self._dice.randint(1, 3) if has_processes else 0
        processes = [self._process_request(f"{call}-process{index}") for index in range(count)]
        self._journal.write("invoke", call, way="batch", count=len(requests))
        try:
            batch_id = bus.create_batch(
                DOMAIN,
                requests,
                name=call,
                processes=processes,
                on_complete=self._drawing.of_type("Noop", over, 0),
                on_cancel=self._drawing.of_type("Noop", canceled, 0),
            )
        except UNSURE as error:
            self._journal.write("unknown", call, why=type(error).__name__)
            return
        self._journal.write("ok", call)
        self._batches = [*self._batches[-KNOWN:], batch_id]
        for process in processes:
            self._started(process, in_batch=True)

    def _in_batch(self, call: str, index: int) -> SendRequest:
        rand = self._dice.random()
        if rand < _ADDING:
            return self._drawing.of_type("Adds", call, index)
        if rand < _ADDING + _LIMITED:
            name = self._dice.choice([*TYPES])
            return draw_limited(self._dice, self._drawing, call, index, name, _EXPIRES_S)
        return self._drawing.request(call, index)

    def cancel_batch(self, bus: CommandBus, call: str) -> None:
        if not self._batches:
            return
        id_ = self._batches.pop(self._dice.randrange(len(self._batches)))
        self._journal.write("invoke", call, way="cancel-batch", count=0, ids=[id_])
        try:
            bus.cancel_batch(id_, reason=call)
        except (InvalidOperationError, BatchNotFoundError):
            self._journal.write("fail", call)
        except UNSURE as error:
            self._journal.write("unknown", call, why=type(error).__name__)
        else:
            self._journal.write("ok", call)

    def process(self, bus: CommandBus, call: str) -> None:
        request = self._process_request(call)
        try:
            bus.start_process(FLOWS, FLOW, request.state, process_id=request.process_id)
        except UNSURE as error:
            self._journal.write("unknown", call, why=type(error).__name__)
        else:
            self._started(request, in_batch=False)

    def _process_request(self, call: str) -> ProcessRequest:
        id_ = draw_id(self._dice)
        self._journal.write("invoke", call, way="process", count=0, ids=[id_])
        return ProcessRequest(FLOWS, FLOW, draw(self._dice, call, self._domains), id_)

    def _started(self, request: ProcessRequest, *, in_batch: bool) -> None:
        id_ = UUID(str(request.process_id))
        self._journal.write("ok", request.state.call, ids=[id_])
        self._processes = [*self._processes[1 - _LATEST :], (id_, in_batch)]

    def join(self, bus: CommandBus, call: str) -> None:
        """A batch, in a transaction: a process that is refused has never been there."""
        if not self._batches:
            return
        batch_id = self._dice.choice(self._batches[-_LATEST:])
        request = self._process_request(call)
        state, id_ = request.state, request.process_id
        try:
            with transaction(self._dsn) as own:
                bus.start_process(
                    FLOWS, FLOW, state, process_id=id_, batch_id=batch_id, connection=own
                )
        except (InvalidOperationError, BatchNotFoundError):
            self._journal.write("fail", call, ids=[id_])
        except UNSURE as error:
            self._journal.write("unknown", call, why=type(error).__name__)
        else:
            self._started(request, in_batch=True)

    def steer(self, bus: CommandBus, call: str) -> None:
        """A batch has counted its failed processes for good: these are not to run again."""
        if self._processes:
            id_, in_batch = self._dice.choice(self._processes)
            self._operator.steer(bus, call, id_, again=not in_batch)
