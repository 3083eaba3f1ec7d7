"""The session on which a bus listens for its calls: shared, lost, behind a pooler."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager

import psycopg
import pytest
from calling import LISTENING, answer, calling, is_heard
from claiming import Claimer, ended
from eventually import eventually, stays
from forks import result_of_child
from handlers import Gate, connect, handling, running
from pooler import is_installed, pgbouncer
from proxy import Proxy
from psycopg_pool import ConnectionPool
from queries import rows, scalar

from cmdbus import (
    Command,
    CommandBus,
    Context,
)
from cmdbus.database.schema import install
from cmdbus.producer import call_listener, calls


def test_many_calls_share_one_session_that_listens(dsn: str, bus: CommandBus) -> None:
    """Each gets its own result, whichever thread reads the session."""
    with running(dsn, handling(answer), concurrency=4), connect(dsn) as watcher:

        def call(number: int) -> bool:
            results = [bus.call("payments", "Debit", [number, n], timeout=20) for n in range(20)]
            return results == [[number, n] for n in range(20)]

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(call, range(8)))
        assert scalar(watcher, LISTENING) == 1
        bus.close()
        eventually(lambda: scalar(watcher, LISTENING) == 0)


def test_when_the_thread_that_reads_has_its_result_another_one_reads(
    dsn: str, bus: CommandBus, claimer: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without checks. They end in the order in which they began, so the reader's first."""
    monkeypatch.setattr(calls, "_CHECK_SECONDS", 60.0)
    with ThreadPoolExecutor(5) as threads:
        results = []
        for number in range(5):
            results.append(threads.submit(bus.call, "payments", "Debit", number, timeout=20))
            eventually(lambda: is_heard(bus) and len(bus.query()) == len(results))
        for result in results:
            claim = claimer.claim_one()
            assert claim.caller is not None
            assert claimer.settle(ended(claim)) == []
            assert result.result(20) is None


def test_a_call_whose_notification_is_not_sent_checks_after_some_time(
    dsn: str, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the server's queue of notifications is nearly full."""
    monkeypatch.setattr(calls, "_CHECK_SECONDS", 0.3)

    def mute(command: Command, context: Context) -> str:
        context.connection.execute("SET LOCAL cmdbus.notify = off")
        return "unheard"

    with running(dsn, handling(mute)):
        for _ in range(2):
            assert bus.call("payments", "Debit", timeout=10) == "unheard"


def test_a_lost_session_is_replaced_and_its_calls_check_at_once(
    dsn: str, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sent in the gap has notified no session."""
    monkeypatch.setattr(calls, "_CHECK_SECONDS", 60.0)
    gate = Gate()
    with running(dsn, handling(gate), concurrency=4), ThreadPoolExecutor(3) as threads:
        results = [threads.submit(bus.call, "payments", "Debit", timeout=20) for _ in range(3)]
        gate.wait_for(3)
        for _ in range(3):
            eventually(lambda: is_heard(bus) and rows(dsn, LISTENING) == [(1,)])
            end = LISTENING.replace("count(*)", "count(pg_terminate_backend(pid, 5000))")
            assert rows(dsn, end) == [(1,)]
        gate.open.set()
        assert [result.result(20) for result in results] == ["through"] * 3


def test_a_call_survives_a_server_that_is_away(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    with Proxy(dsn) as proxy, CommandBus(proxy.dsn) as bus, running(dsn, handling(gate)):
        with calling(bus) as call:
            gate.wait_for(1)
            eventually(lambda: is_heard(bus))
            with proxy.away():
                eventually(lambda: "are not notified" in caplog.text)
                gate.open.set()
                stays(lambda: not call.done(), 0.3)
            assert call.result(10) == "through"
        warnings = [r for r in caplog.records if "are not notified" in r.getMessage()]
        assert len(warnings) == 1


def error_of_call(dsn: str, lost: Callable[[Proxy], AbstractContextManager[None]]) -> TimeoutError:
    """Of one that was heard before the server was `lost`; on a busy machine that takes longer."""
    for timeout in (1.5, 15.0):
        with (
            Proxy(dsn) as proxy,
            CommandBus(proxy.dsn) as bus,
            calling(bus, timeout=timeout) as call,
        ):
            eventually(lambda: is_heard(bus) or call.done(), 20)
            with lost(proxy), pytest.raises(TimeoutError) as raised:
                call.result(timeout + 8)
        if "PENDING" not in str(raised.value):
            break
    return raised.value


def test_the_state_that_could_not_be_read_is_named_with_its_cause(dsn: str) -> None:
    error = error_of_call(dsn, Proxy.away)
    assert "cannot be read" in str(error) and error.__cause__ is not None


def test_a_call_does_not_wait_much_longer_than_its_timeout_for_a_silent_server(dsn: str) -> None:
    @contextmanager
    def silent(proxy: Proxy) -> Iterator[None]:
        proxy.freeze(new_ones=True)
        proxy.cut()
        yield

    assert "cannot be read" in str(error_of_call(dsn, silent))


@pytest.mark.process
def test_a_forked_child_listens_for_itself(dsn: str) -> None:
    with CommandBus(dsn) as bus, running(dsn, handling(answer)), connect(dsn) as watcher:
        assert bus.call("payments", "Debit", "parent", timeout=10) == "parent"
        numbers = [listener.number for listener in bus._calls._listeners.values()]

        def child() -> str:
            result = str(bus.call("payments", "Debit", "child", timeout=10))
            listener = bus._calls._listeners[os.getpid()]
            return result if listener.number not in numbers else "the parent's"

        assert result_of_child(child) == "child"
        eventually(lambda: scalar(watcher, LISTENING) == 1)
        assert bus.call("payments", "Debit", "parent", timeout=10) == "parent"


def test_a_call_in_a_signal_handler_interrupts_one(dsn: str, bus: CommandBus) -> None:
    """Its thread may be the one that reads the session."""
    gate, answers = Gate(), []

    def interrupt(number: int, frame: object) -> None:
        answers.append(bus.call("payments", "Noop", timeout=10))
        gate.open.set()

    previous = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with running(dsn, handling(gate)):

            def signal_later() -> None:
                gate.wait_for(1)
                eventually(lambda: is_heard(bus))
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

            thread = threading.Thread(target=signal_later)
            thread.start()
            assert bus.call("payments", "Debit", timeout=20) == "through"
            thread.join()
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert answers == [None]


def test_closing_the_bus_ends_its_calls(dsn: str) -> None:
    bus = CommandBus(dsn)
    with ThreadPoolExecutor(3) as threads:
        results = [threads.submit(bus.call, "payments", "Debit", timeout=20) for _ in range(3)]
        eventually(lambda: is_heard(bus) and len(rows(dsn, "SELECT FROM cmdbus.ready")) == 3)
        bus.close()
        for result in results:
            with pytest.raises(psycopg.OperationalError, match="this CommandBus is closed"):
                result.result(10)


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_bus_with_a_pool_of_the_callers_listens_beside_it(dsn: str, autocommit: bool) -> None:
    """The pool's only connection stays free for others."""
    settings = {"autocommit": autocommit, "application_name": "the pool's"}
    with (
        ConnectionPool(dsn, kwargs=settings, min_size=1, max_size=1, open=True) as pool,
        CommandBus(pool=pool) as bus,
        running(dsn, handling(answer)),
    ):
        assert bus.call("payments", "Debit", 1, timeout=10) == 1
        assert bus.call("payments", "Debit", 2, timeout=10) == 2
        eventually(lambda: is_heard(bus))


@pytest.mark.skipif(not is_installed(), reason="PgBouncer is not installed")
@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_a_call_works_behind_a_pooler(
    dsn: str, mode: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In transaction mode nothing is heard: it checks, and says so once."""
    if mode == "transaction":
        monkeypatch.setattr(call_listener, "_GREETING_SECONDS", 0.2)
    with (
        pgbouncer(dsn, mode, server_round_robin=True) as pooled,
        CommandBus(pooled) as bus,
        running(dsn, handling(answer)),
        caplog.at_level(logging.WARNING),
    ):
        with ThreadPoolExecutor(4) as threads:
            call = lambda n: bus.call("payments", "Debit", n, timeout=10)  # noqa: E731
            assert list(threads.map(call, range(40))) == list(range(40))
        if mode == "session":
            eventually(lambda: is_heard(bus))
            assert "are not notified" not in caplog.text
            return
        for _ in range(3):
            with pytest.raises(TimeoutError):
                bus.call("elsewhere", "Debit", timeout=0.6)
    assert caplog.text.count("calls are not notified") == 1
    assert "transaction mode" in caplog.text


def test_a_channel_has_room_beside_the_longest_schema(dsn: str) -> None:
    schema = "s" * 48
    install(dsn, schema)
    with (
        CommandBus(dsn, schema=schema) as bus,
        running(dsn, handling(answer), schema=schema),
    ):
        assert bus.call("payments", "Debit", 5, timeout=10) == 5
        eventually(lambda: is_heard(bus))
        assert bus.call("payments", "Debit", 6, timeout=10) == 6
