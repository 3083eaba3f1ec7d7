"""Processes that run bare loops of a worker's statements; and the yard, where commands are
sent to them and to fleets, and looked at afterwards.

The processes are started by spawn and held by a pipe: when the bench closes its end of it, or
dies, each reads the end of its own and leaves.
"""

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import psycopg

from benches.comparison import Place
from benches.fleet import DOMAIN, WARM, Fleet
from cmdbus import dsn as dsns
from cmdbus import schema
from cmdbus.bus import CommandBus
from cmdbus.command import Command
from cmdbus.context import Context
from cmdbus.outcomes import completed
from cmdbus.requests import SendRequest
from cmdbus.timeouts import Timeouts
from cmdbus.worker.claim import Claim, Finished, Want
from cmdbus.worker.claims import Claims

#: The domain of the bare loops.
BARE = "bare"
#: The commands that are measured.
TYPE = "Work"
#: 100 bytes as JSON.
DATA: dict[str, Any] = {"payload": "x" * 86}

EFFECT = "CREATE TABLE effect (command_id uuid)"
_INSERT = "INSERT INTO effect (command_id) VALUES (%s)"

_RUN = 100
_LEAVE_S = 10.0
_TIMEOUTS = Timeouts()

#: What a bare process does with a connection until there is nothing to claim.
Loop = Callable[[psycopg.Connection, Claims], None]


# What handlers do.


def insert(command: Command, context: Context) -> None:
    context.connection.execute(_INSERT, (command.command_id,))


def sleep(seconds: float, command: Command, context: Context) -> None:
    time.sleep(seconds)


def tell_start(command: Command, context: Context) -> float:
    """When it was started, as the command's result."""
    return time.time()


# What bare processes do: nothing but the statements.


def settle_and_claim(connection: psycopg.Connection, claims: Claims) -> None:
    """A hundred of each in one statement."""
    done: list[Finished] = []
    while claimed := claims.step(connection, done, _want(_RUN))[1]:
        done = [_finished(claim) for claim in claimed]


def insert_singly(connection: psycopg.Connection, claims: Claims) -> None:
    """For each command the statements of one whose handler is `insert`."""
    while claimed := claims.step(connection, [], _want(1))[1]:
        [claim] = claimed
        marker = f"{claim.id}:{claim.token}"
        claims.begin(
            connection, statement=_TIMEOUTS.statement, idle=_TIMEOUTS.thread, marker=marker
        )
        connection.execute(_INSERT, (claim.command_id,))
        settled, prepared = claims.settle_within(connection, _finished(claim), marker)
        assert settled
        claims.commit(connection, prepared)


def _want(free: int) -> Want:
    types = [f"{BARE} {TYPE}"]
    return Want(free=free, ahead=0, domains=[BARE], types=types, quick_types=[], floors={})


def _finished(claim: Claim) -> Finished:
    return Finished(claim, _COMPLETED, 1, 0.0)


_COMPLETED = completed(None)


# The processes.


class Crew:
    """Processes of one kind, by their pipes."""

    def __init__(self, pipes: "list[Connection[Any, Any]]") -> None:
        self._pipes = pipes

    def order(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)

    def await_answers(self, seconds: float) -> None:
        for pipe in self._pipes:
            if not pipe.poll(seconds):
                raise TimeoutError(f"a bare process has not answered for {seconds:.0f} s")
            try:
                pipe.recv()
            except EOFError:
                raise RuntimeError("a bare process died; what it said is above") from None


@contextmanager
def bare(dsn: str, loop: Loop, *, processes: int, threads: int) -> Iterator[Crew]:
    """Processes that run `loop` in each thread at each order, and answer when all have
    ended; connected when this yields."""
    with _started(processes, _be_bare, dsn, loop, threads) as crew:
        crew.await_answers(_LEAVE_S * processes)
        yield crew


@contextmanager
def _started(count: int, target: Callable[..., None], *args: object) -> Iterator[Crew]:
    context = multiprocessing.get_context("spawn")
    pipes, started = [], []
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            pipes.append(ours)
            process = context.Process(target=target, args=(theirs, *args))
            process.start()
            started.append(process)
            theirs.close()
        yield Crew(pipes)
    finally:
        for pipe in pipes:
            pipe.close()
        deadline = time.monotonic() + _LEAVE_S
        for process in started:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def _be_bare(orders: "Connection[Any, Any]", dsn: str, loop: Loop, threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the bench, which closes the pipe
    parts = dsns.complete(dsns.parse(dsn), application_name="cmdbus:bench", settings={})
    claims = Claims(schema.DEFAULT, _TIMEOUTS.lease)
    with ExitStack() as stack:
        connections = [stack.enter_context(dsns.connect(parts)) for _ in range(threads)]
        claims.register(connections[0], "bare")
        pool = stack.enter_context(ThreadPoolExecutor(threads))
        orders.send(None)
        while True:
            try:
                orders.recv()
                list(pool.map(lambda connection: loop(connection, claims), connections))
                orders.send(None)
            except (EOFError, BrokenPipeError, ConnectionResetError):
                return


# The yard.

_LAST = "SELECT max(id) FROM cmdbus.ready WHERE domain = %s AND priority = 5"
_IS_THERE = "SELECT FROM cmdbus.ready WHERE domain = %s AND priority = 5 AND id = %s"
_ANY = "SELECT FROM cmdbus.ready WHERE domain = %s LIMIT 1"
_DRAINED = """
    SELECT count(*), extract(epoch FROM max(finished_at) - min(claimed_at)),
        extract(epoch FROM percentile_disc(1 / 3.0) WITHIN GROUP (ORDER BY finished_at)
            - min(claimed_at)),
        extract(epoch FROM max(finished_at)
            - percentile_disc(2 / 3.0) WITHIN GROUP (ORDER BY finished_at))
    FROM cmdbus.finished WHERE domain = %s AND status = 'COMPLETED'"""
_CLAIMERS = "SELECT count(DISTINCT claimer) FROM cmdbus.finished WHERE domain = %s"
#: In one transaction, which is not counted itself before it ends.
_TRANSACTIONS = """
    SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"""
_FORGET = "SELECT pg_stat_clear_snapshot()"
_PATIENCE_S, _LOOK_S = 300.0, 0.02
_WARM_COMMANDS = 500


@dataclass(frozen=True, slots=True)
class Drained:
    commands: int
    seconds: float
    first_third_s: float
    last_third_s: float

    @property
    def rate(self) -> float:
        return self.commands / self.seconds

    @property
    def flatness(self) -> float:
        """The rate of the last third, as a part of the first's."""
        return self.first_third_s / self.last_third_s


@dataclass(frozen=True, slots=True)
class Yard:
    """Where commands are sent, run and looked at afterwards."""

    place: Place
    bus: CommandBus
    connection: psycopg.Connection

    def clear(self) -> None:
        self.connection.execute("TRUNCATE cmdbus.ready, cmdbus.finished")

    def send(self, type_: str, data: object = DATA) -> None:
        self.bus.send(DOMAIN, type_, data)

    def drain(self, fleet: Fleet, requests: Sequence[SendRequest]) -> Drained:
        self.clear()
        return self.drain_uncleared(fleet, requests)

    def drain_uncleared(self, fleet: Fleet, requests: Sequence[SendRequest]) -> Drained:
        self.bus.pause(DOMAIN)
        self.bus.send_many(requests)
        last = self._value(_LAST, DOMAIN)
        self.bus.resume(DOMAIN)
        self._await_end(DOMAIN, last, fleet)
        return self._drained(DOMAIN, len(requests))

    def drain_bare(self, crew: Crew, requests: Sequence[SendRequest]) -> Drained:
        self.clear()
        self.bus.send_many(requests)
        last = self._value(_LAST, BARE)
        crew.order()
        self._await_end(BARE, last)
        crew.await_answers(_PATIENCE_S)
        return self._drained(BARE, len(requests))

    def warm(self, fleet: Fleet, processes: int) -> None:
        """Until each of them has run commands."""
        deadline = time.monotonic() + _PATIENCE_S
        self.clear()
        requests = commands(_WARM_COMMANDS, type_=WARM)
        while self._value(_CLAIMERS, DOMAIN) < processes:
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all workers run commands after {_PATIENCE_S:.0f} s")
            self.bus.send_many(requests)
            self.await_end(fleet)

    def await_end(self, fleet: Fleet) -> None:
        self._await_end(DOMAIN, None, fleet)

    def transactions_within(self, seconds: float) -> int:
        """How many there are of others in this database."""
        with self.connection.transaction():  # counted itself when it has ended
            before = self._value(_TRANSACTIONS)
            time.sleep(seconds)
            self.connection.execute(_FORGET)
            return int(self._value(_TRANSACTIONS) - before)

    def percentiles(self, query: str, parts: Sequence[float]) -> list[float]:
        return list(self._value(query, list(parts), TYPE))

    def _await_end(self, domain: str, last: int | None, fleet: Fleet | None = None) -> None:
        """First asks for the last row only: a look at all would slow what is measured."""
        deadline = time.monotonic() + _PATIENCE_S
        while self._is_any(_IS_THERE, domain, last) or self._is_any(_ANY, domain):
            if fleet is not None:
                fleet.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{domain} is not drained after {_PATIENCE_S:.0f} s")
            time.sleep(_LOOK_S)

    def _drained(self, domain: str, sent: int) -> Drained:
        row = self.connection.execute(_DRAINED, (domain,)).fetchall()[0]
        if row[0] != sent:
            raise RuntimeError(f"{sent} commands were sent to {domain}, {row[0]} completed")
        return Drained(row[0], *map(float, row[1:]))

    def _is_any(self, query: str, *values: object) -> bool:
        return self.connection.execute(query, values).fetchone() is not None

    def _value(self, query: str, *values: object) -> Any:
        return self.connection.execute(query, values).fetchall()[0][0]


@contextmanager
def yard(place: Place) -> Iterator[Yard]:
    with CommandBus(place.dsn) as bus, place.connect() as connection:
        yield Yard(place, bus, connection)


def commands(count: int, *, domain: str = DOMAIN, type_: str = TYPE) -> list[SendRequest]:
    return [SendRequest(domain, type_, DATA)] * count
