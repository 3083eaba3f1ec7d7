"""A queue with more rows than a statement can read within its timeout."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

_ROWS = """
    INSERT INTO cmdbus.ready (domain, priority, command_id, correlation_id, type, data)
    SELECT %s, 5, gen_random_uuid(), gen_random_uuid(), 'Debit', to_json(repeat('.', 500))
    FROM generate_series(1, 20000)"""
#: What the statement takes that reads all rows, and the part of it that is the statement timeout.
_LEAST_SECONDS, _PART = 0.2, 0.2


@contextmanager
def crowded(
    connection: psycopg.Connection, domain: str, read_all: Callable[[], object]
) -> Iterator[None]:
    """Inserts commands of `domain` until `read_all` takes long enough; within, it is cancelled."""
    connection.execute("SET max_parallel_workers_per_gather = 0")
    # One row on a page: reading them takes as long as reading many times as many.
    connection.execute("ALTER TABLE cmdbus.ready SET (fillfactor = 10)")
    while (seconds := _seconds(read_all)) < _LEAST_SECONDS:
        connection.execute(_ROWS, (domain,))
    connection.execute(f"SET statement_timeout = '{int(seconds * _PART * 1000)}ms'".encode())
    yield
    connection.execute("RESET statement_timeout")


def _seconds(work: Callable[[], object]) -> float:
    """The shorter of two runs."""
    return min(_once(work), _once(work))


def _once(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began
