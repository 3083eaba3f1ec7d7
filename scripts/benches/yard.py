"""Where commands are sent to fleets and to bare loops, and looked at afterwards."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import psutil
import psycopg

from benches import cpu
from benches.comparison import Comparison, Found, Place, count_of
from benches.crews import Crew
from benches.fleet import DOMAIN, TYPE, Fleet
from cmdbus.producer.bus import CommandBus
from cmdbus.producer.requests import SendRequest

#: The domain of the bare loops.
BARE = "bare"
#: 100 bytes as JSON.
DATA: dict[str, Any] = {"payload": "x" * 86}

_CLEAR = "TRUNCATE cmdbus.ready, cmdbus.limited, cmdbus.lane, cmdbus.turn, cmdbus.finished"
_IDS = """
    SELECT command_id FROM (
        SELECT command_id, id FROM cmdbus.ready WHERE domain = %(domain)s
        UNION ALL
        SELECT command_id, lane_position FROM cmdbus.limited WHERE domain = %(domain)s) waiting
    ORDER BY id"""
_IS_THERE = """
    SELECT FROM cmdbus.ready WHERE command_id = %(id)s
    UNION ALL SELECT FROM cmdbus.limited WHERE command_id = %(id)s"""
_ANY = """
    (SELECT FROM cmdbus.ready WHERE domain = %(domain)s LIMIT 1)
    UNION ALL (SELECT FROM cmdbus.limited WHERE domain = %(domain)s LIMIT 1)"""
_DRAINED = """
    SELECT count(*), extract(epoch FROM max(finished_at) - min(claimed_at)),
        extract(epoch FROM percentile_disc(1 / 3.0) WITHIN GROUP (ORDER BY finished_at)
            - min(claimed_at)),
        extract(epoch FROM max(finished_at)
            - percentile_disc(2 / 3.0) WITHIN GROUP (ORDER BY finished_at)),
        count(*) FILTER (WHERE finished_at BETWEEN to_timestamp(%s) AND to_timestamp(%s))
    FROM cmdbus.finished WHERE domain = %s AND status = 'COMPLETED'"""
#: The server's processes that work for this database.
_SERVER = """
    SELECT pid FROM pg_stat_activity
    WHERE (datname = current_database() OR datname IS NULL) AND pid <> pg_backend_pid()"""
#: In one transaction, which is not counted itself before it ends.
_TRANSACTIONS = """
    SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"""
_FORGET = "SELECT pg_stat_clear_snapshot()"
_PATIENCE_S, _LOOK_S = 300.0, 0.02
#: The parts of a drain at which the CPU is read: without its start and its end.
_STEADY = (0.08, 0.92)


@dataclass(frozen=True, slots=True)
class Drained:
    commands: int
    seconds: float
    first_third_s: float
    last_third_s: float
    #: Of all processes and backends, for a command; None if the server is on another machine, or
    #: if the drain was over before it could be read.
    cpu_us: float | None

    @property
    def rate(self) -> float:
        return self.commands / self.seconds

    @property
    def flatness(self) -> float:
        """The rate of the last third, as a part of the first's."""
        return self.first_third_s / self.last_third_s


@dataclass(frozen=True, slots=True)
class Cost:
    rate: float
    #: As in Drained.
    cpu_us: float | None


@dataclass(frozen=True, slots=True)
class Yard:
    slot: Place
    bus: CommandBus
    connection: psycopg.Connection

    def clear(self) -> None:
        self.connection.execute(_CLEAR)

    def send(self, type_: str, data: object = DATA) -> None:
        self.bus.send(DOMAIN, type_, data)

    def drain(self, fleet: Fleet, requests: Sequence[SendRequest]) -> Drained:
        """By a fleet that waits for work; all requests are of one domain."""
        domain = requests[0].domain
        self.clear()
        self.bus.pause(domain)
        self.bus.send_many(requests)
        resume = partial(self.bus.resume, domain)
        return self._drain(domain, len(requests), resume, fleet.pids, fleet.check)

    def drain_batch(self, fleet: Fleet, requests: Sequence[SendRequest]) -> Drained:
        """Until the batch is over, too."""
        self.clear()
        self.bus.pause(DOMAIN)
        batch_id = self.bus.create_batch(DOMAIN, requests)
        resume = partial(self.bus.resume, DOMAIN)
        drained = self._drain(DOMAIN, len(requests), resume, fleet.pids, fleet.check)
        record = self.bus.wait_batch(batch_id, _PATIENCE_S)
        if record.completed != len(requests):
            raise RuntimeError(f"of {len(requests)} commands {record.completed} were counted")
        return drained

    def drain_warm(self, fleet: Fleet, requests: Sequence[SendRequest]) -> Drained:
        """By a new fleet, whose sessions plan in a smaller drain before."""
        self.drain(fleet, warming(requests))
        return self.drain(fleet, requests)

    def drain_full(self, fleet: Fleet, requests: Sequence[SendRequest]) -> Drained:
        """By a fleet that is started when the commands are there."""
        self.clear()
        self.bus.send_many(requests)
        return self._drain(DOMAIN, len(requests), fleet.start, fleet.pids, fleet.check)

    def drain_bare(self, crew: Crew, requests: Sequence[SendRequest]) -> Drained:
        """With statistics, which its plans depend on: else one in three reads the whole domain."""
        self.clear()
        self.bus.send_many(requests)
        self.connection.execute("ANALYZE cmdbus.ready")
        drained = self._drain(BARE, len(requests), crew.order, lambda: crew.pids)
        crew.answers(_PATIENCE_S)
        return drained

    def cost_of(self, step: Callable[[], object], seconds: float) -> Cost:
        """Of `step`, which this process repeats."""
        server = self.server()
        (count, took), spent = cpu.of(lambda: count_of(step, seconds), [os.getpid(), *server])
        return Cost(count / took, 1e6 * spent / count if server else None)

    def await_end(self, domain: str, check: Callable[[], None]) -> None:
        self.await_none(_ANY, domain=domain, check=check)

    def await_none(self, query: str, *, check: Callable[[], None], **values: object) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while self.connection.execute(query, values).fetchone() is not None:
            check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{values} is not drained after {_PATIENCE_S:.0f} s")
            time.sleep(_LOOK_S)

    def transactions_within(self, seconds: float) -> int:
        """How many there are of others in this database."""
        with self.connection.transaction():  # counted itself when it has ended
            before = self.value(_TRANSACTIONS)
            time.sleep(seconds)
            self.connection.execute(_FORGET)
            return int(self.value(_TRANSACTIONS) - before)

    def value(self, query: str, *values: object) -> Any:
        return self.connection.execute(query, values).fetchall()[0][0]

    def _drain(
        self,
        domain: str,
        sent: int,
        begin: Callable[[], None],
        pids: Callable[[], list[int]],
        check: Callable[[], None] = lambda: None,
    ) -> Drained:
        found = self.connection.execute(_IDS, {"domain": domain}).fetchall()
        ids = [command_id for (command_id,) in found]
        begin()
        times, readings = [], []
        for part in _STEADY:
            # Of a single row: a look at all rows would slow what is measured.
            self.await_none(_IS_THERE, id=ids[int(part * (len(ids) - 1))], check=check)
            running = [*pids(), *self.server()]
            times.append(time.time())
            readings.append(cpu.read(running))
        self.await_none(_IS_THERE, id=ids[-1], check=check)
        self.await_none(_ANY, domain=domain, check=check)
        row = self.connection.execute(_DRAINED, (*times, domain)).fetchall()[0]
        if row[0] != sent:
            raise RuntimeError(f"{sent} commands were sent to {domain}, {row[0]} completed")
        whole, first_third, last_third = map(float, row[1:4])
        [spent] = [cpu.spent(*pair) for pair in pairwise(readings)]
        known = self.server() and row[4] > sent / 4
        cpu_us = 1e6 * spent / row[4] if known else None
        return Drained(sent, whole, first_third, last_third, cpu_us)

    def server(self) -> list[int]:
        """The pids that work for this database, but for that of `connection`; none if the server
        is on another machine."""
        if not _is_postgres(self.connection.info.backend_pid):
            return []
        return [pid for (pid,) in self.connection.execute(_SERVER).fetchall()]


def _is_postgres(pid: int) -> bool:
    try:
        return psutil.Process(pid).name().startswith("postgres")
    except psutil.NoSuchProcess:
        return False


@contextmanager
def yard(slot: Place) -> Iterator[Yard]:
    with CommandBus(slot.dsn) as bus, slot.connect() as connection:
        yield Yard(slot, bus, connection)


def commands(count: int, *, domain: str = DOMAIN, type_: str = TYPE) -> list[SendRequest]:
    return [SendRequest(domain, type_, DATA)] * count


def part(slot: Place, requests: Sequence[SendRequest], seconds: float) -> Sequence[SendRequest]:
    """All of them in a round of full length."""
    return requests[: max(1, int(len(requests) * seconds / slot.sizes.seconds))]


def warming(requests: Sequence[SendRequest]) -> Sequence[SendRequest]:
    """The smaller part in which new sessions plan before all are measured."""
    return requests[: len(requests) // 4 or 1]


def rates_and_cpu(
    name: str, pairs: Sequence[tuple[Drained | Cost, Drained | Cost]], **configuration: object
) -> Found:
    """The rate is the row `name`; the CPU a command, if it is known, `name`-cpu."""
    rates = tuple((one.rate, two.rate) for one, two in pairs)
    cpus = tuple(
        (one.cpu_us, two.cpu_us)
        for one, two in pairs
        if one.cpu_us is not None and two.cpu_us is not None
    )
    found = {name: Comparison(pairs=rates, configuration=configuration)}
    if cpus:
        found[f"{name}-cpu"] = Comparison(pairs=cpus, configuration=configuration, less=True)
    return found
