"""What becomes of a fleet's speed when there is more of something: instances, domains, rows."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import psycopg
from psycopg.sql import SQL, Identifier

from benches import bare
from benches.comparison import Comparison, Found, Place
from benches.crews import crew
from benches.fleet import DOMAIN, TYPE, fleet, nothing
from benches.yard import BARE, Drained, Yard, commands, rates_and_cpu, warming, yard
from cmdbus.database import schema
from cmdbus.producer.requests import SendRequest
from cmdbus.timeouts import Timeouts
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.waiting.timers import Timers

PROCESSES, THREADS = 4, 8
_FEW_INSTANCES, _FEW_LOOPS = 2, 2

#: A wait for a row is one for the transaction that has locked it.
_WAIT = re.compile(rb"still waiting for \w+ on (transaction|tuple)")
_LONG_WAIT = "10ms"

_MANY_DOMAINS = 1_000
#: Of --commands.
_DOMAINS_PART, _WAITING_TIMES = 2, 25
_FEW_WAITING_PART, _LOOKS = 100, 5
_FILL = """
    INSERT INTO cmdbus.ready (domain, priority, command_id, correlation_id, type, data)
    SELECT %s, 5, id, id, %s, '{}' FROM (
        SELECT gen_random_uuid() AS id FROM generate_series(1, %s)) made"""


def instances(slot: Place) -> Found:
    """The drain by 10 instances of 4 x 8 (--instances) against 2 of them, and that by 40
    bare loops against 2; our ratio against the bare one; and, of a thousand commands of the ten,
    how many no session has waited for longer than 10 ms (row locks, by the server's log)."""
    many = slot.sizes.instances
    requests, bare_requests = (
        commands(slot.sizes.commands, domain=each) for each in (DOMAIN, BARE)
    )
    waits: list[int] = []
    with yard(slot) as here, _waits_logged(here.connection):
        found = slot.rounds(
            partial(_drain_bare, here, bare_requests, _FEW_LOOPS),
            partial(_drain_bare, here, bare_requests, many * PROCESSES),
            partial(_drain_by, here, requests, _FEW_INSTANCES, []),
            partial(_drain_by, here, requests, many, waits),
        )
    per_thousand = [1000 * count / len(requests) for count in waits]
    configuration = {
        "commands": len(requests),
        "instances": many,
        "processes": PROCESSES,
        "threads": THREADS,
        "waits_per_thousand": [round(each, 2) for each in per_thousand],
    }
    pairs = {
        "instances": [(few, many) for _, _, few, many in found],
        "instances-bare": [(few, many) for few, many, _, _ in found],
        "instances-of-bare": [(b / a, d / c) for a, b, c, d in found],
        "row-waits": [(1000.0, 1000 - each) for each in per_thousand],
    }
    return {
        name: Comparison(pairs=each, configuration=configuration)
        for name, each in pairs.items()
        if each
    }


def _drain_bare(here: Yard, requests: Sequence[SendRequest], loops: int) -> float:
    with crew(loops, bare.loop, here.slot.dsn) as running:
        here.drain_bare(running, warming(requests))
        return here.drain_bare(running, requests).rate


def _drain_by(
    here: Yard, requests: Sequence[SendRequest], instances: int, waits: list[int]
) -> float:
    log = here.slot.log
    with fleet(
        here.slot.dsn,
        {TYPE: nothing},
        processes=PROCESSES,
        threads=THREADS,
        instances=instances,
    ) as running:
        here.drain(running, warming(requests))
        begin = log.stat().st_size if log else 0
        rate = here.drain(running, requests).rate
        if log:
            waits.append(_waits_in(log, begin))
        return rate


@contextmanager
def _waits_logged(connection: psycopg.Connection) -> Iterator[None]:
    """Of each session that begins meanwhile; the database is dropped afterwards."""
    name = Identifier(connection.info.dbname)
    for setting, value in (("log_lock_waits", "on"), ("deadlock_timeout", _LONG_WAIT)):
        change = SQL("ALTER DATABASE {} SET {} = {}")
        connection.execute(change.format(name, SQL(setting), value))
    yield


def _waits_in(log: Path, begin: int) -> int:
    with log.open("rb") as file:
        file.seek(begin)
        return sum(1 for line in file if _WAIT.search(line))


def domains(slot: Place) -> Found:
    """CPU of all processes for a command, in a drain by 1 x 1 whose registry has handlers for 1
    domain, over that with 1,000; the commands are of one domain."""
    requests = commands(max(1, slot.sizes.commands // _DOMAINS_PART))
    with yard(slot) as here:

        def side(count: int) -> Drained:
            with fleet(slot.dsn, {TYPE: nothing}, processes=1, threads=1, domains=count) as running:
                return here.drain_warm(running, requests)

        pairs = slot.rounds(partial(side, 1), partial(side, _MANY_DOMAINS))
    found = rates_and_cpu("domains", [(one, two) for one, two in pairs], commands=len(requests))
    return {"domains": found["domains-cpu"]} if "domains-cpu" in found else {}


def lease_look(slot: Place) -> Found:
    """The steward's look for due commands and ended leases with 10^4 commands waiting
    (--commands / 4), over that with 10^6."""
    many = slot.sizes.commands * _WAITING_TIMES
    few = max(1, many // _FEW_WAITING_PART)
    statements = ClaimStatements(schema.DEFAULT, Timeouts().lease)
    with slot.connect() as connection:
        statements.register(connection, "bench")

        def look_ms(waiting: int) -> float:
            connection.execute("TRUNCATE cmdbus.ready")
            connection.execute(_FILL, (DOMAIN, TYPE, waiting))
            connection.execute("VACUUM ANALYZE cmdbus.ready")
            return median(_look_ms(statements, connection) for _ in range(_LOOKS))

        pairs = slot.rounds(partial(look_ms, few), partial(look_ms, many))
    configuration = {"waiting": [few, many], "looks": _LOOKS}
    comparison = Comparison(
        pairs=[(one, two) for one, two in pairs], configuration=configuration, less=True
    )
    return {"lease-look": comparison}


def _look_ms(statements: ClaimStatements, connection: psycopg.Connection) -> float:
    began = perf_counter()
    Timers(statements, [DOMAIN], [f"{DOMAIN} {TYPE}"]).promote_and_read(connection, leases=True)
    return 1000 * (perf_counter() - began)
