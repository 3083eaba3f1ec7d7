"""A handler's connection is an object of that execution: complete while it runs, of no use
afterwards or in another process, and never a way into another command's transaction."""

import ctypes
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from eventually import eventually
from forks import result_of_child
from handlers import ONCE, Gate, effects, leave_effect, pool_of, run, running

from cmdbus import Command, CommandBus, Context, HandlerRegistry, InvalidOperationError

INSERT = "INSERT INTO effect VALUES (gen_random_uuid(), 99)"


def keep_things(connection: psycopg.Connection[Any]) -> dict[str, Callable[[], object]]:
    """What a handler may leave behind, and how that is used later."""
    cursor, copied = connection.cursor(), connection.cursor()
    server = connection.cursor("kept")
    server.execute("SELECT generate_series(1, 500)")
    server.fetchone()
    with copied.copy("COPY effect FROM STDIN") as copy:
        pass
    with connection.pipeline() as pipeline:
        connection.execute("SELECT 1")
    block = connection.transaction()
    block.__enter__()
    waiting = connection.notifies(timeout=0)
    return {
        "execute": lambda: connection.execute(INSERT),
        "COMMIT": lambda: connection.execute("COMMIT"),
        "commit": connection.commit,
        "close": connection.close,
        "cursor": lambda: cursor.execute(INSERT),
        "executemany": lambda: cursor.executemany(INSERT, [()]),
        "stream": lambda: list(cursor.stream("SELECT 1")),
        "server cursor": server.fetchall,
        "its close": server.close,
        "copy": lambda: copy.write(b"x"),
        "new copy": lambda: cursor.copy("COPY effect FROM STDIN").__enter__(),
        "block": lambda: block.__exit__(None, None, None),
        "new block": lambda: connection.transaction().__enter__(),
        "pipeline": pipeline.__enter__,
        "sync": pipeline.sync,
        "new pipeline": lambda: connection.pipeline().__enter__(),
        "notifies": lambda: next(waiting),
        "cancel": connection.cancel,
        "cancel_safe": connection.cancel_safe,
        "pgconn": lambda: connection.pgconn,
        "info": lambda: connection.info,
        "fileno": connection.fileno,
        "adapters": lambda: connection.adapters,
        "row_factory": lambda: setattr(connection, "row_factory", None),
    }


@pytest.mark.filterwarnings("ignore:.*was deleted while still open:ResourceWarning")
def test_what_a_handler_kept_is_of_no_use_in_a_later_commands_transaction(
    dsn: str, bus: CommandBus
) -> None:
    registry, gate = HandlerRegistry(), Gate()
    kept: list[dict[str, Callable[[], object]]] = []
    objects: list[psycopg.Connection] = []

    @registry.handler("payments", "Keep")
    def keep(command: Command, context: Context) -> int:
        leave_effect(command, context)
        objects.append(context.connection)
        kept.append(keep_things(context.connection))
        return context.connection.info.backend_pid

    @registry.handler("payments", "Later")
    def later(command: Command, context: Context) -> int:
        leave_effect(command, context)
        gate(command, context)
        return context.connection.info.backend_pid

    with running(dsn, registry, concurrency=1):
        before = bus.wait("payments", bus.send("payments", "Keep"), 10).result
        sent = bus.send("payments", "Later")
        gate.wait_for(1)
        for name, use in kept[0].items():
            with pytest.raises(InvalidOperationError, match="used after the handler returned"):
                pytest.fail(f"{name} returned {use()!r}")
        assert objects[0].closed and "has returned" in repr(objects[0])
        assert isinstance(objects[0], psycopg.Connection)
        gate.open.set()
        record = bus.wait("payments", sent, 10)
    kept.clear()
    gc.collect()  # the server cursor says here that it was left open
    assert (record.status, record.result) == ("COMPLETED", before), "on the same session"
    assert effects(dsn) == 2


def leave_open_copy(connection: psycopg.Connection) -> Any:
    copy = connection.cursor().copy("COPY effect FROM STDIN")
    copy.__enter__()
    return copy


def leave_open_stream(connection: psycopg.Connection) -> Any:
    rows = connection.cursor().stream("SELECT generate_series(1, 100000)")
    next(rows)
    return rows


def leave_open_pipeline(connection: psycopg.Connection) -> Any:
    pipeline = connection.pipeline()
    pipeline.__enter__()
    return pipeline


def leave_thread_inside(connection: psycopg.Connection) -> Any:
    pid = connection.info.backend_pid

    def sleep() -> None:
        with suppress(psycopg.Error, InvalidOperationError):
            connection.execute("SELECT pg_sleep(60)")

    thread = threading.Thread(target=sleep)
    thread.start()
    conninfo = connection.info.dsn
    with psycopg.connect(conninfo, autocommit=True) as watcher:
        query = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'"
        eventually(lambda: watcher.execute(query, (pid,)).fetchone() == (1,))
    return thread


CODES = {"returns": "CONNECTION_IN_USE", "raises": "OperationalError"}
UNFINISHED = {
    "copy": leave_open_copy,
    "stream": leave_open_stream,
    "pipeline": leave_open_pipeline,
    "thread": leave_thread_inside,
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("ends", ["returns", "raises"])
@pytest.mark.parametrize("what", UNFINISHED)
def test_unfinished_database_work_fails_the_attempt_and_costs_the_session(
    dsn: str, bus: CommandBus, what: str, ends: str
) -> None:
    registry = HandlerRegistry()
    left: list[Any] = []

    @registry.handler("payments", "Debit", retry=ONCE)
    def debit(command: Command, context: Context) -> None:
        leave_effect(command, context)
        left.append(UNFINISHED[what](context.connection))
        if ends == "raises":
            raise psycopg.OperationalError("of the handler's own")

    registry.register("payments", "Good", leave_effect)
    with running(dsn, registry, concurrency=1):
        record = bus.wait("payments", bus.send("payments", "Debit"), 10)
        assert record.error_code == (CODES[ends])
        assert effects(dsn) == 0
        assert bus.wait("payments", bus.send("payments", "Good"), 10).status == "COMPLETED"
        if what == "thread":
            left[0].join(10)
            assert not left[0].is_alive()
        left.clear()
        gc.collect()  # which ends the generators that had begun
        assert bus.wait("payments", bus.send("payments", "Good"), 10).status == "COMPLETED"
    assert effects(dsn) == 2


def fork_in_c() -> int:
    """If another thread has requested the GIL, the child, which does not have that thread, waits
    for it forever: let the threads run until requests are over, and then request nothing."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        time.sleep(2 * interval)
        return int(ctypes.PyDLL(None).fork())
    finally:
        sys.setswitchinterval(interval)


def refusals(uses: list[Callable[[], object]]) -> str:
    """The different sentences of what each raises."""
    answers = set()
    for use in uses:
        try:
            answers.add(f"returned {use()!r}")
        except InvalidOperationError as error:
            answers.add(str(error))
    return "; ".join(answers)


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("fork", [os.fork, fork_in_c], ids=["python", "C"])
def test_a_forked_process_has_no_connection(
    dsn: str, bus: CommandBus, fork: Callable[[], int]
) -> None:
    def debit(command: Command, context: Context) -> str:
        connection = context.connection
        cursor = connection.cursor()
        uses: list[Callable[[], object]] = [
            lambda: context.connection,
            lambda: connection.execute(INSERT),
            lambda: cursor.execute(INSERT),
            lambda: connection.transaction().__enter__(),
            lambda: connection.pipeline().__enter__(),
            connection.cancel,
        ]
        text = result_of_child(lambda: refusals(uses), fork)
        leave_effect(command, context)
        return text

    [record] = run(dsn, bus, debit)
    assert record.status == "COMPLETED"
    assert str(record.result).startswith("context.connection was used in a forked process")
    assert str(record.result).count("context.connection") == 1, "each use says the same"
    assert effects(dsn) == 1


def test_statements_that_the_driver_has_prepared_serve_later_commands(
    dsn: str, bus: CommandBus
) -> None:
    def debit(command: Command, context: Context) -> object:
        for _ in range(2):
            context.connection.execute("SELECT 4711", prepare=True)
        query = "SELECT name, prepare_time::text FROM pg_prepared_statements WHERE statement = %s"
        return context.connection.execute(query, ("SELECT 4711",)).fetchall()

    first, second = (record.result for record in run(dsn, bus, debit, times=2))
    assert first == second and isinstance(first, list) and len(first) == 1


class Marked(psycopg.Connection[Any]):
    def mark(self) -> str:
        return f"mark of {self.info.dbname}"


class Traced:
    """A connection as tracing libraries wrap it: it takes the wrapped one's class and state for
    its own."""

    __slots__ = ("__weakref__", "_wrapped")

    def __init__(self, wrapped: psycopg.Connection[Any]) -> None:
        object.__setattr__(self, "_wrapped", wrapped)

    @property  # type: ignore[misc]
    def __class__(self) -> type[psycopg.Connection[Any]]:  # type: ignore[override]
        return type(self._wrapped)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._wrapped, name, value)

    def __enter__(self) -> "Traced":
        self._wrapped.__enter__()
        return self

    def __exit__(self, *exit_arguments: Any) -> None:
        self._wrapped.__exit__(*exit_arguments)


class Tracing(psycopg.Connection[Any]):
    @classmethod
    def connect(cls, *arguments: Any, **keywords: Any) -> Any:
        return Traced(super().connect(*arguments, **keywords))


def test_a_pools_own_class_of_connections_is_the_handlers_too(dsn: str, bus: CommandBus) -> None:
    kept: list[Any] = []

    def debit(command: Command, context: Context) -> str:
        leave_effect(command, context)
        kept.append(context.connection)
        assert isinstance(context.connection, Marked)
        return context.connection.mark()

    with pool_of(dsn, Marked) as pool:
        [record] = run(pool, bus, debit)
        assert str(record.result).startswith("mark of cmdbus_test")
        with pytest.raises(InvalidOperationError, match="after the handler returned"):
            kept[0].execute(INSERT)
    assert effects(dsn) == 1


def test_a_handler_writes_through_a_session_that_a_tracing_library_wraps(
    dsn: str, bus: CommandBus
) -> None:
    def debit(command: Command, context: Context) -> None:
        leave_effect(command, context)

    with pool_of(dsn, Tracing) as pool:
        [record] = run(pool, bus, debit)
    assert record.status == "COMPLETED"
    assert effects(dsn) == 1
