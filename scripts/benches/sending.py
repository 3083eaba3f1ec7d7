"""What sending costs, compared with the cheapest way to put the same rows into the same table."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from time import perf_counter
from typing import Any

import psycopg

from benches.bare import senders
from benches.comparison import Comparison, Found, Place
from benches.crews import crew
from benches.yard import rates_and_cpu, yard
from cmdbus.producer.bus import CommandBus
from cmdbus.producer.ids import new_id, new_ids
from cmdbus.producer.requests import SendRequest

DOMAIN, TYPE = "payments", "DebitAccount"
DATA: dict[str, Any] = {
    "account": "DE02120300000000202051",
    "amount": "129.90",
    "currency": "EUR",
    "reference": "invoice 2024-000117",
}
JSON = json.dumps(DATA)
PRIORITY = 5

#: The columns that a sender fills, as in the statement copy.
_COLUMNS = "domain, priority, command_id, type, data, correlation_id, reply_to, max_attempts"
_INSERT = f"INSERT INTO cmdbus.ready ({_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, NULL, NULL)"
_COPY = f"COPY cmdbus.ready ({_COLUMNS}) FROM STDIN"
_BULK = 1_000

_NODE = 1
_ARM = "SELECT cmdbus.arm(%s, %s, clock_timestamp() + %s, %s)"
_ARMED_FOR = timedelta(hours=1)
_LISTEN_S = 0.1
#: Seconds between an order and its round, so that no sender is late; and for its answer.
_LEAD_S, _ANSWER_S = 0.02, 60.0


def enqueue(slot: Place) -> Found:
    """bus.send of one command after the other, against a bare INSERT of one row into the same
    table with its trigger. CPU is that of the sender and of all backends."""
    with yard(slot) as here, slot.connect() as connection:

        def insert() -> None:
            id_ = new_id()
            connection.execute(_INSERT, (DOMAIN, PRIORITY, id_, TYPE, JSON, id_))

        pairs = slot.alternate(
            partial(here.cost_of, insert), partial(here.cost_of, lambda: send(here.bus))
        )
    return rates_and_cpu("enqueue", pairs, payload_bytes=len(JSON))


def enqueue_bulk(slot: Place) -> Found:
    """bus.send_many of 1,000 at a time, against a bare COPY of the same lines, ready as text,
    into the same table with its trigger."""
    rows = slot.sizes.rows
    requests = [SendRequest(DOMAIN, TYPE, DATA) for _ in range(rows)]
    lines = [f"{DOMAIN}\t{PRIORITY}\t{i}\t{TYPE}\t{JSON}\t{i}\t\\N\t\\N\n" for i in new_ids(rows)]
    starts = range(0, rows, _BULK)
    texts = ["".join(lines[start : start + _BULK]).encode() for start in starts]
    with CommandBus(slot.dsn) as bus, slot.connect() as connection:

        def copy(_: float) -> float:
            connection.execute("TRUNCATE cmdbus.ready")
            began = perf_counter()
            for text in texts:
                with connection.cursor().copy(_COPY) as copy:
                    copy.write(text)
            return rows / (perf_counter() - began)

        def send_many(_: float) -> float:
            connection.execute("TRUNCATE cmdbus.ready")
            began = perf_counter()
            for start in starts:
                bus.send_many(requests[start : start + _BULK])
            return rows / (perf_counter() - began)

        pairs = slot.alternate(copy, send_many)
    configuration = {"payload_bytes": len(JSON), "rows": rows, "at_a_time": _BULK}
    return {"enqueue-bulk": Comparison(pairs=pairs, configuration=configuration)}


def enqueue_concurrent(slot: Place) -> Found:
    """bus.send by many at once, against the same without the trigger: while no process waits,
    and while one is armed and listens, so that each commit notifies."""
    with slot.connect() as connection:
        idle = _compare_trigger(slot, connection)
        with _listening(slot):
            connection.execute(_ARM, (_NODE, [DOMAIN], _ARMED_FOR, _ARMED_FOR))
            armed = _compare_trigger(slot, connection)
    return {"enqueue-concurrent": idle, "enqueue-concurrent-armed": armed}


def send(bus: CommandBus) -> None:
    bus.send(DOMAIN, TYPE, DATA)


def _compare_trigger(slot: Place, connection: psycopg.Connection) -> Comparison:
    processes, threads = slot.sizes.processes, slot.sizes.threads
    with crew(processes, senders, slot.dsn, send, threads) as sending:

        def rate(way: str, seconds: float) -> float:
            connection.execute("TRUNCATE cmdbus.ready")
            connection.execute(f"ALTER TABLE cmdbus.ready {way} TRIGGER wake")
            for each in (0.0, seconds):  # in the first, each session plans again
                sending.order((time.monotonic() + _LEAD_S, each))
                answers = sending.answers(each + _ANSWER_S)
            return float(sum(answers))

        pairs = slot.alternate(
            lambda seconds: rate("DISABLE", seconds),
            lambda seconds: rate("ENABLE ALWAYS", seconds),
        )
    configuration = {"payload_bytes": len(JSON), "processes": processes, "threads": threads}
    return Comparison(pairs=pairs, configuration=configuration)


@contextmanager
def _listening(slot: Place) -> Iterator[None]:
    """A session that takes the notifications as they come, as a waiting worker's does."""
    over = threading.Event()
    with slot.connect() as connection:
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
