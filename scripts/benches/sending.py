"""What sending costs beside the cheapest way to put the same rows into a table."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import perf_counter
from typing import Any

import psycopg
from psycopg.sql import SQL, Literal

from benches.comparison import Comparison, Place, rate_of, scenario
from benches.team import team
from cmdbus.bus import CommandBus
from cmdbus.ids import new_id, new_ids
from cmdbus.requests import SendRequest

DOMAIN, TYPE = "payments", "DebitAccount"
DATA: dict[str, Any] = {
    "account": "DE02120300000000202051",
    "amount": "129.90",
    "currency": "EUR",
    "reference": "invoice 2024-000117",
}
JSON = json.dumps(DATA)
PRIORITY = 5

#: The columns that a sender fills, as in copy_ready.sql.
_COLUMNS = "domain, priority, command_id, type, data, correlation_id, reply_to, max_attempts"
_INSERT = f"INSERT INTO plain ({_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, NULL, NULL)"
_COPY = f"COPY plain ({_COLUMNS}) FROM STDIN"

_NODE = 1
_ARM = "SELECT cmdbus.arm(%s, %s, clock_timestamp() + %s, %s)"
_ARMED_FOR = timedelta(hours=1)
_LISTEN_S = 0.1


@scenario("enqueue", unit="commands/s", limit=0.6)
def enqueue(place: Place) -> Comparison:
    """bus.send of one command after the other, against a bare INSERT of one row."""
    with CommandBus(place.dsn) as bus, place.connect() as connection:
        _create_plain(connection)

        def insert() -> None:
            id_ = new_id()
            connection.execute(_INSERT, (DOMAIN, PRIORITY, id_, TYPE, JSON, id_))

        return place.compare(
            lambda seconds: rate_of(insert, seconds),
            lambda seconds: rate_of(lambda: send(bus), seconds),
            payload_bytes=len(JSON),
        )


@scenario("enqueue-bulk", unit="commands/s", limit=0.4, goal=0.8)
def enqueue_bulk(place: Place) -> Comparison:
    """bus.send_many, against a bare COPY of the same rows, ready as tuples."""
    rows = place.sizes.rows
    requests = [SendRequest(DOMAIN, TYPE, DATA) for _ in range(rows)]
    tuples = [
        (DOMAIN, PRIORITY, id_, TYPE, JSON, id_, None, None)  # as _COLUMNS
        for id_ in new_ids(rows)
    ]
    with CommandBus(place.dsn) as bus, place.connect() as connection:
        _create_plain(connection)

        def copy(_: float) -> float:
            connection.execute("TRUNCATE plain")
            began = perf_counter()
            with connection.cursor().copy(_COPY) as copy:
                for row in tuples:
                    copy.write_row(row)
            return rows / (perf_counter() - began)

        def send_many(_: float) -> float:
            connection.execute("TRUNCATE cmdbus.ready")
            began = perf_counter()
            bus.send_many(requests)
            return rows / (perf_counter() - began)

        return place.compare(copy, send_many, payload_bytes=len(JSON), rows=rows)


@scenario("enqueue-concurrent", unit="commands/s", limit=0.75)
def enqueue_concurrent(place: Place) -> Comparison:
    """bus.send by many at once while nobody waits, against the same without the trigger."""
    with place.connect() as connection:
        return _compare_trigger(place, connection, waiter="none")


@scenario("enqueue-concurrent-armed", unit="commands/s")
def enqueue_concurrent_armed(place: Place) -> Comparison:
    """The same while a waiter is armed and listens, so that each commit notifies."""
    with place.connect() as connection, _listening(place):
        connection.execute(_ARM, (_NODE, [DOMAIN], _ARMED_FOR, _ARMED_FOR))
        return _compare_trigger(place, connection, waiter="armed, listening")


def send(bus: CommandBus) -> None:
    bus.send(DOMAIN, TYPE, DATA)


def _compare_trigger(place: Place, connection: psycopg.Connection, *, waiter: str) -> Comparison:
    processes, threads = place.sizes.processes, place.sizes.threads
    with team(place.dsn, send, processes=processes, threads=threads) as senders:

        def rate(way: str, seconds: float) -> float:
            connection.execute("TRUNCATE cmdbus.ready")
            connection.execute(f"ALTER TABLE cmdbus.ready {way} TRIGGER wake")
            senders.rate(0)  # each session plans anew after it
            return senders.rate(seconds)

        return place.compare(
            lambda seconds: rate("DISABLE", seconds),
            lambda seconds: rate("ENABLE", seconds),
            payload_bytes=len(JSON),
            processes=processes,
            threads=threads,
            waiter=waiter,
        )


def _create_plain(connection: psycopg.Connection) -> None:
    """A table like ready in all that costs something, but without triggers.

    INCLUDING ALL leaves out the storage parameters, of which fillfactor is one.
    """
    found = connection.execute(
        "SELECT option_name, option_value FROM pg_class, pg_options_to_table(reloptions)"
        " WHERE oid = 'cmdbus.ready'::regclass"
    )
    options = [SQL("{} = {}").format(SQL(name), Literal(value)) for name, value in found]
    create = SQL("CREATE TABLE plain (LIKE cmdbus.ready INCLUDING ALL) WITH ({})")
    connection.execute(create.format(SQL(", ").join(options)))


@contextmanager
def _listening(place: Place) -> Iterator[None]:
    """A session that takes the notifications as they come, as a waiting worker's does."""
    over = threading.Event()
    with place.connect() as connection:
        connection.execute("LISTEN cmdbus_ready")

        def take() -> None:
            while not over.is_set():
                for _ in connection.notifies(timeout=_LISTEN_S):
                    if over.is_set():
                        break

        thread = threading.Thread(target=take, name="listener")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
