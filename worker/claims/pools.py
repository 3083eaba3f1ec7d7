"""A worker's pool of sessions, its own or the caller's, and the settings of every session."""

from functools import partial
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool

from cmdbus.database import dsn as dsns
from cmdbus.database.executor import Executor
from cmdbus.database.pool import SessionPool
from cmdbus.timeouts import Timeouts

#: A pool of the caller's.
Pool = ConnectionPool[Any]

#: Connections in addition to the threads': for housekeeping, and for the stop.
HEADROOM = 2
#: Seconds that a round trip waits for a row before its outcomes are settled one by one.
_LOCK_TIMEOUT = 1.0
_NOT_LIBPQ = ("autocommit", "row_factory", "cursor_factory", "prepare_threshold", "context")
#: Seconds without use after which a session of the headroom is closed.
_IDLE_SECONDS = 60.0
#: Seconds for opening the threads' sessions before they start; later each opens its own.
_FILLS_SECONDS = 5.0


def session_settings(timeouts: Timeouts) -> dict[str, str]:
    """The settings of every session of a worker."""
    return {
        "statement_timeout": f"{timeouts.statement:g}s",
        "idle_in_transaction_session_timeout": f"{timeouts.thread:g}s",
        # A renewal that waits behind such a round trip must not be late.
        "lock_timeout": f"{min(_LOCK_TIMEOUT, timeouts.renewal):g}s",
        "default_transaction_isolation": "read committed",
    }


def complete(parts: dsns.Parts, application_name: str, timeouts: Timeouts) -> dsns.Parts:
    return dsns.complete(
        parts, application_name=application_name, settings=session_settings(timeouts)
    )


def parts_of(pool: Pool) -> dsns.Parts:
    """Where a pool of the caller's connects to."""
    if callable(pool.conninfo) or callable(pool.kwargs):
        raise ValueError("the worker needs a pool with a fixed conninfo and kwargs, or a DSN")
    named = {k: str(v) for k, v in (pool.kwargs or {}).items() if k not in _NOT_LIBPQ}
    return {**dsns.parse(pool.conninfo), **named}


def check_pool(pool: Pool, threads: int, timeouts: Timeouts) -> None:
    """A pool of the caller's is taken as it is, or refused: never changed silently."""
    if pool.max_size < threads + HEADROOM:
        raise ValueError(
            f"the pool has at most {pool.max_size} connections, and {threads} threads need "
            f"{threads + HEADROOM}: make it with max_size={threads + HEADROOM}"
        )
    with pool.connection() as connection:
        if not connection.autocommit:
            raise ValueError(
                "the pool's connections must be in autocommit mode: make it with "
                "kwargs={'autocommit': True}"
            )
        style = connection.info.parameter_status("DateStyle") or ""
        if not style.startswith("ISO"):
            raise ValueError(
                f"the pool's connections have DateStyle = {style}, in which timestamps cannot be "
                f"read: put the style ISO into the DSN (options='-c DateStyle=ISO')"
            )
        for name, wanted in session_settings(timeouts).items():
            row = Executor("cmdbus").row(connection, "read_setting", name=name, wanted=wanted)
            if row is None or not row[0]:
                raise ValueError(
                    f"the pool's connections have {name} = {row and row[1]}, and the worker "
                    f"needs {wanted}: put it into the DSN (options='-c {name}={wanted}')"
                )


def open_pool(parts: dsns.Parts, threads: int, timeouts: Timeouts) -> SessionPool:
    """Never checks a connection when it is checked out: with eight connections and a restart of the
    server that costs 31 s."""
    pool = SessionPool(
        partial(dsns.open_session, parts),
        min_size=threads,
        max_size=threads + HEADROOM,
        max_idle=_IDLE_SECONDS,
        timeout=timeouts.pool,
        # An OSError if no descriptor is left.
        passes=lambda error: isinstance(error, psycopg.OperationalError | OSError),
    )
    pool.fill(_FILLS_SECONDS)
    return pool
