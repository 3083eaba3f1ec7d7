"""The pool that opens connections in the threads that need them, without a lock."""

import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from types import FrameType
from typing import Any

import psycopg
import pytest
from eventually import eventually
from handlers import beside
from proxy import Proxy
from psycopg_pool import PoolClosed, PoolTimeout
from queries import rows
from senders import race

from cmdbus import CommandBus, DatabaseUnavailableError
from cmdbus.database import dsn as dsns
from cmdbus.database import pool as module
from cmdbus.database.pool import Connection, SessionPool


def pool_of(dsn: str, max_size: int = 2, **options: object) -> SessionPool:
    values = {"timeout": 20.0, "max_idle": 600.0, **options}
    opens = partial(dsns.open_session, dsns.parse(dsn))
    return SessionPool(opens, max_size=max_size, **values)  # type: ignore[arg-type]


@contextmanager
def silent_host(connect_timeout: int = 2) -> Iterator[tuple[str, socket.socket]]:
    """A DSN whose server takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        port = server.getsockname()[1]
        yield f"host=127.0.0.1 port={port} connect_timeout={connect_timeout}", server


def test_threads_that_wait_for_a_silent_host_share_one_outcome() -> None:
    with silent_host() as (dsn, _), CommandBus(dsn) as bus:
        began = time.monotonic()
        ends = race([lambda: bus.send("payments", "Debit")] * 10)
        # One after the other they would take 20 s.
        assert time.monotonic() - began < 10
        assert [type(end) for end in ends] == [DatabaseUnavailableError] * 10
        assert all("timeout" in str(end) for end in ends), ends


class Refused(psycopg.OperationalError):
    """With a constructor of its own, as drivers and poolers have."""

    def __init__(self, *, host: str) -> None:
        super().__init__(f"{host} refuses")
        self.host = host


def test_threads_that_wait_get_the_error_whatever_its_constructor_is() -> None:
    def connect(seconds: float) -> Connection:
        eventually(lambda: len(pool._waiters) == 2)
        raise Refused(host="db")

    pool = SessionPool(connect, max_size=1, timeout=20.0, max_idle=600.0)
    errors = race([pool.getconn] * 3)
    assert len({id(error) for error in errors}) == 3
    for error in errors:
        assert isinstance(error, Refused), error
        assert (str(error), error.host) == ("db refuses", "db")
    [original] = [error for error in errors if getattr(error, "__cause__", None) is None]
    assert sum(getattr(error, "__cause__", None) is original for error in errors) == 2


def test_a_signal_handler_can_close_a_bus_that_its_thread_is_opening() -> None:
    with silent_host() as (dsn, server):
        bus = CommandBus(dsn)

        def interrupt() -> None:
            with server.accept()[0]:  # the main thread is connecting
                os.kill(os.getpid(), signal.SIGUSR1)
                closed.wait(20)

        closed = threading.Event()

        def close(*_: object) -> None:
            bus.close()
            closed.set()

        before = signal.signal(signal.SIGUSR1, close)
        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            with pytest.raises((DatabaseUnavailableError, psycopg.OperationalError)):
                bus.send("payments", "Debit")
        finally:
            thread.join(20)
            signal.signal(signal.SIGUSR1, before)
        with pytest.raises(psycopg.OperationalError, match="this CommandBus is closed"):
            bus.send("payments", "Debit")


def test_connections_go_round_first_come_first_served(dsn: str) -> None:
    pool = pool_of(dsn, max_size=1)
    first, order = pool.getconn(), list[int]()

    def use(number: int) -> None:
        with pool.connection():
            order.append(number)

    with ExitStack() as users:
        for number in range(5):
            users.enter_context(beside(use, number))
            eventually(lambda number=number: len(pool._waiters) == number + 1)  # type: ignore[misc]
        pool.putconn(first)
    assert order == list(range(5))
    with pool.connection() as again:
        assert again is first
    pool.close()


def test_a_pool_that_is_used_up_raises_at_the_timeout(dsn: str) -> None:
    pool = pool_of(dsn, max_size=1)
    with pool.connection(), pytest.raises(PoolTimeout) as raised:
        pool.getconn(timeout=0.1)
    assert raised.value.__cause__ is None
    pool.close()


def test_while_others_have_connections_a_failure_to_open_more_is_waited_out(dsn: str) -> None:
    with Proxy(dsn) as proxy:
        pool = pool_of(proxy.dsn)
        first = pool.getconn()
        aside = proxy.socket.rename(proxy.socket.with_name("away"))
        with pytest.raises(PoolTimeout) as raised:
            pool.getconn(timeout=0.3)
        assert isinstance(raised.value.__cause__, psycopg.OperationalError)
        got: list[Connection] = []
        with beside(lambda: got.append(pool.getconn())):
            eventually(lambda: len(pool._waiters) == 1 or pool._connector)
            pool.putconn(first)
        assert got == [first]
        aside.rename(proxy.socket)
        pool.putconn(pool.getconn())
        pool.putconn(first)
        pool.close()


def test_what_is_drained_broken_or_unused_is_closed(dsn: str) -> None:
    pool = pool_of(dsn, max_idle=0.0)
    first, second = pool.getconn(), pool.getconn()
    pool.putconn(first)
    pool.putconn(second)
    assert first.closed and not second.closed, "beyond the least, what is unused is closed"
    with pool.connection() as third:
        assert third is second
        pool.drain()
    assert second.closed
    with pool.connection() as fourth:
        fourth.execute("BEGIN")
    assert fourth.closed, "nothing of a session leaks to the next call"
    pool.close()


def test_an_interrupt_while_it_connects_leaves_the_pool_as_it_was(dsn: str) -> None:
    interrupts = [KeyboardInterrupt()]

    def opens(within: float) -> Connection:
        if interrupts:
            raise interrupts.pop()
        return dsns.open_session(dsns.parse(dsn), within)

    pool = SessionPool(opens, max_size=1, timeout=10.0, max_idle=600.0)
    with pytest.raises(KeyboardInterrupt):
        pool.getconn()
    with pool.connection() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    pool.close()


@contextmanager
def interrupted(at: int) -> Iterator[None]:
    """By the first signal handler that raises, when the pool's code comes to its line `at`."""
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != module.__file__:
            return None
        lines += event == "line"
        if event == "line" and lines == at + 1:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


# The driver closes what was interrupted on its way back, and warns.
@pytest.mark.filterwarnings("ignore:.*deleted while still open:ResourceWarning")
def test_an_interrupt_at_any_line_leaves_a_pool_that_lends(dsn: str) -> None:
    pool = pool_of(dsn, max_size=1, timeout=5.0)

    def borrow() -> None:
        with pool.connection() as connection:
            connection.execute("SELECT 1")
            # Opened again the next time, as the first time.
            connection.close()

    gc.collect()
    gc.freeze()  # a collection looks at no object from before
    for line in count():
        try:
            with interrupted(line):
                borrow()
            break
        except KeyboardInterrupt:
            gc.collect()  # frames of an exception may refer to each other
        borrow()
    assert line > 30, "the pool has more lines than that"
    pool.close()


def test_a_signal_handler_can_borrow_while_its_thread_connects(dsn: str) -> None:
    signals = [signal.SIGUSR1]

    def opens(within: float) -> Connection:
        if signals:
            signal.raise_signal(signals.pop())
        return dsns.open_session(dsns.parse(dsn), within)

    def borrow(*_: object) -> None:
        with pool.connection() as connection:
            borrowed.append(connection.execute("SELECT 1").fetchone())

    borrowed: list[object] = []
    pool = SessionPool(opens, max_size=2, timeout=5.0, max_idle=600.0)
    before = signal.signal(signal.SIGUSR1, borrow)
    try:
        with pool.connection() as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert borrowed == [(1,)]
    pool.close()


def test_closing_a_pool_ends_its_waits_and_its_borrowed_connections(dsn: str) -> None:
    pool = pool_of(dsn, max_size=1)
    lent = pool.getconn()
    ends: list[object] = []
    with beside(lambda: ends.extend(race([pool.getconn] * 2))):
        eventually(lambda: len(pool._waiters) == 2)
        pool.close()
    assert [type(end) for end in ends] == [PoolClosed] * 2
    pool.putconn(lent)
    assert lent.closed


def test_no_thread_waits_for_ever_under_load_with_a_network_that_breaks(dsn: str) -> None:
    with Proxy(dsn) as proxy, CommandBus(proxy.dsn) as bus:
        bus.send("payments", "Debit")
        sent: list[object] = []
        over = threading.Event()

        def send() -> None:
            while not over.is_set():
                try:
                    sent.append(bus.send("payments", "Debit"))
                except (DatabaseUnavailableError, psycopg.OperationalError):
                    over.wait(0.01)

        with ExitStack() as senders:
            for _ in range(8):
                senders.enter_context(beside(send))
            for _ in range(5):
                reached = len(sent) + 50
                eventually(lambda reached=reached: len(sent) > reached, 20)  # type: ignore[misc]
                with proxy.away():
                    pass
            over.set()
        assert rows(dsn, "SELECT count(*) FROM cmdbus.ready")[0][0] >= len(sent)


@pytest.mark.parametrize(
    "seconds",
    [2, *(pytest.param(n, marks=[pytest.mark.long, pytest.mark.timeout(200)]) for n in (70, 135))],
)
def test_after_an_outage_a_producer_and_a_patient_pool_go_on_at_once(
    dsn: str, seconds: float
) -> None:
    """However many attempts have failed, the next one comes within seconds."""
    with Proxy(dsn) as proxy, CommandBus(proxy.dsn) as bus:
        bus.send("payments", "Debit")
        patient = pool_of(proxy.dsn, timeout=seconds + 20, passes=lambda error: True)
        got: list[float] = []

        def get() -> None:
            with patient.connection():
                got.append(time.monotonic())

        with ExitStack() as ends:
            with proxy.away():
                ends.enter_context(beside(get))
                until, refused = time.monotonic() + seconds, 0
                while time.monotonic() < until or refused <= seconds:
                    with pytest.raises(DatabaseUnavailableError) as raised:
                        bus.send("payments", "Debit")
                    assert "busy" not in str(raised.value)
                    refused += 1
                    threading.Event().wait(0.1)
            back = time.monotonic()
            bus.send("payments", "Debit")
            assert time.monotonic() - back < 5
        assert got[0] - back < 5
        patient.close()
