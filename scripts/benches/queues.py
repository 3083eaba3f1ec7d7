"""Queues of PGMQ, and what bridges are compared with: loops of a PGMQ program of its own.

`reading` and `writing` are the work of a crew: see crews.py.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from lab.pgmq_schema import install_pgmq

from benches import cpu
from benches.crews import Crew
from benches.yard import DATA, Cost, Yard

#: Messages that one loop or bridge moves together.
BATCH = 100

_JSON = json.dumps(DATA)
_CREATE = "SELECT pgmq.create(%s)"
_FILL = "SELECT count(*) FROM pgmq.send_batch(%s, array_fill(%s::jsonb, ARRAY[%s]))"
_EMPTY = "SELECT pgmq.purge_queue(%s)"
_READ = "SELECT msg_id, message FROM pgmq.read(%s, 30, %s)"
_DELETE = "SELECT pgmq.delete(%s, %s::bigint[])"
_SEND = "SELECT pgmq.send_batch(%s, %s::jsonb[])"
_ANSWER_S = 300.0


def create(here: Yard, *queues: str) -> None:
    install_pgmq(here.connection)
    for queue in queues:
        here.connection.execute(_CREATE, (queue,))


def fill(here: Yard, queue: str, count: int) -> None:
    """With statistics, as a queue that is in use has them."""
    here.connection.execute(_FILL, (queue, _JSON, count))
    here.connection.execute(f"ANALYZE pgmq.q_{queue}")


def clear(here: Yard, *queues: str) -> None:
    for queue in queues:
        here.connection.execute(_EMPTY, (queue,))


def move_bare(here: Yard, loop: Crew, count: int) -> Cost:
    """By the one process of a crew, which is ordered to move this number."""
    before = cpu.read([*loop.pids, *here.server()])
    loop.order(count)
    [seconds] = loop.answers(_ANSWER_S)
    return Cost(count / float(seconds), cpu_us(here, before, loop.pids, count))


def cpu_us(here: Yard, before: cpu.Reading, pids: list[int], count: int) -> float | None:
    """Since a reading, for each of `count`; None if the server is on another machine."""
    server = here.server()
    spent = cpu.spent(before, cpu.read([*pids, *server]))
    return 1e6 * spent / count if server else None


@contextmanager
def reading(dsn: str, queue: str) -> Iterator[Callable[[int], float]]:
    """Reads and deletes a batch at a time; answers with the seconds that this took."""
    with _connect(dsn) as connection:

        def move(count: int) -> float:
            began = time.perf_counter()
            while count > 0:
                found = connection.execute(_READ, (queue, BATCH)).fetchall()
                ids = [message_id for message_id, _ in found]
                count -= len(connection.execute(_DELETE, (queue, ids)).fetchall())
            return time.perf_counter() - began

        yield move


@contextmanager
def writing(dsn: str, queue: str) -> Iterator[Callable[[int], float]]:
    """Sends a batch at a time; answers with the seconds that this took."""
    with _connect(dsn) as connection:

        def move(count: int) -> float:
            began = time.perf_counter()
            while count > 0:
                batch = [_JSON] * min(BATCH, count)
                count -= len(connection.execute(_SEND, (queue, batch)).fetchall())
            return time.perf_counter() - began

        yield move


def _connect(dsn: str) -> psycopg.Connection[Any]:
    return psycopg.connect(dsn, autocommit=True)
