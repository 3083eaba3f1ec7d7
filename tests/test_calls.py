"""Calls: a command is sent, and its caller waits for the outcome."""

import logging
import os
import pickle
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from claiming import Claimer, ended
from eventually import eventually, stays
from fleet import Fleet, kill
from forks import result_of_child
from handlers import Gate, connect, handling, running
from pooler import is_installed, pgbouncer
from proxy import Proxy
from psycopg.conninfo import make_conninfo
from psycopg_pool import ConnectionPool
from queries import rows, scalar
from roles import role
from worker_process import WorkerProcess

from cmdbus import (
    BusinessRuleError,
    CallTimeoutError,
    Command,
    CommandBus,
    CommandFailedError,
    CommandNotFoundError,
    Context,
    PermanentCommandError,
    QueueFullError,
    RetryPolicy,
    SendRequest,
    TransientCommandError,
)
from cmdbus.database.schema import install
from cmdbus.producer import call_listener, calls
from cmdbus.producer.ids import new_id
from cmdbus.worker.claims.claim import plain_and_others
from cmdbus.worker.claims.outcomes import troubled

#: Sessions that listen for calls.
LISTENING = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND query ~ '^LISTEN [a-z_]+_c[0-9a-f]+;'"
)
#: What the sessions of a bus have executed last, and when.
STATEMENTS = (
    "SELECT pid, query_start FROM pg_stat_activity WHERE datname = current_database()"
    " AND application_name = 'cmdbus:bus' ORDER BY pid"
)
SOON = RetryPolicy(max_attempts=3, backoff=(0.01,), jitter=0.0)


def answer(command: Command, context: Context) -> Any:
    """The outcome that the data names."""
    match command.data:
        case {"fail": "rule"}:
            raise BusinessRuleError("NO_FUNDS", "too little", {"lacks": 5})
        case {"fail": "permanent"}:
            raise PermanentCommandError("GONE", "no such account", [1])
        case {"fail": "bug"}:
            raise ZeroDivisionError("a bug")
        case {"fail": "once"} if context.attempt == 1:
            raise TransientCommandError("BUSY", "later")
        case {"write": result}:
            context.connection.execute("SELECT 1")
            return result
        case data:
            return data


@contextmanager
def calling(
    bus: CommandBus, data: Any = None, domain: str = "payments", **options: Any
) -> Iterator["Future[Any]"]:
    """A call in a thread of its own."""
    with ThreadPoolExecutor(1) as threads:
        yield threads.submit(bus.call, domain, "Debit", data, **{"timeout": 20, **options})


def called_id(bus: CommandBus, status: str | None = None) -> UUID:
    """The only command there is, once it is in this state."""
    [record] = eventually(lambda: bus.query(status=status))
    return record.command_id


def is_heard(bus: CommandBus) -> bool:
    return any(listener.hears for listener in bus._calls._listeners.values())


@pytest.mark.parametrize("result", [None, 7, "text", {"a": [1, None]}, {"write": {"b": 2}}])
def test_a_call_returns_the_result_of_the_handler(dsn: str, bus: CommandBus, result: Any) -> None:
    """Also of one that has used its connection, whose completion commits with what it wrote."""
    expected = result["write"] if isinstance(result, dict) and "write" in result else result
    with running(dsn, handling(answer)):
        assert bus.call("payments", "Debit", result, timeout=10) == expected
        assert bus.call("payments", "Debit", result, timeout=10) == expected
    assert [record.type for record in bus.query()] == ["Debit"] * 2, "there is no reply"


@pytest.mark.parametrize(
    ("data", "code", "message", "details", "status"),
    [
        ({"fail": "rule"}, "NO_FUNDS", "too little", {"lacks": 5}, "FAILED"),
        ({"fail": "permanent"}, "GONE", "no such account", [1], "IN_TROUBLESHOOTING_QUEUE"),
        ({"fail": "bug"}, "ZeroDivisionError", "a bug", None, "IN_TROUBLESHOOTING_QUEUE"),
    ],
)
def test_a_call_raises_how_its_command_failed(
    dsn: str, bus: CommandBus, data: Any, code: str, message: str, details: Any, status: str
) -> None:
    with (
        running(dsn, handling(answer, retry=SOON)),
        pytest.raises(CommandFailedError) as raised,
    ):
        bus.call("payments", "Debit", data, timeout=10)
    error = raised.value
    assert (error.code, error.message, error.details) == (code, message, details)
    assert (error.command_id, error.status) == (called_id(bus), status)
    assert str(error) == f"command {error.command_id} is {status}: {code}: {message}"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_canceled_call_ends_at_once_with_the_reason(dsn: str, bus: CommandBus) -> None:
    with calling(bus) as call:
        eventually(lambda: is_heard(bus))
        bus.cancel("payments", called_id(bus), reason="no need")
        with pytest.raises(CommandFailedError) as raised:
            call.result(2)
    assert (raised.value.code, raised.value.message) == ("CANCELED", "no need")
    assert (raised.value.details, raised.value.status) == (None, "CANCELED")
    assert str(raised.value).endswith(" is CANCELED: no need")


def test_a_call_waits_through_retries_and_a_reschedule(dsn: str, bus: CommandBus) -> None:
    """Its mark goes with the command from table to table."""
    with calling(bus, {"fail": "once"}, timeout=5) as call:
        eventually(lambda: is_heard(bus))
        command_id = called_id(bus)
        bus.reschedule("payments", command_id, delay=60)
        bus.reschedule("payments", command_id, delay=0)
        with running(dsn, handling(answer, retry=SOON)):
            assert call.result(4) == {"fail": "once"}


def test_a_call_that_waits_executes_nothing(
    dsn: str, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_CHECK_SECONDS", 60.0)
    gate = Gate()
    with running(dsn, handling(gate)), connect(dsn) as watcher, calling(bus) as call:
        gate.wait_for(1)
        eventually(lambda: is_heard(bus))

        def rests() -> bool:
            latest = watcher.execute(STATEMENTS).fetchall()
            try:
                stays(lambda: watcher.execute(STATEMENTS).fetchall() == latest, 0.6)
            except AssertionError:
                return False
            return True

        eventually(rests, 3)
        gate.open.set()
        assert call.result(2) == "through"


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
            assert result.result(3) is None


def test_a_call_that_takes_too_long_raises_and_cancels_nothing(dsn: str, bus: CommandBus) -> None:
    with pytest.raises(TimeoutError) as raised:
        bus.call("payments", "Debit", timeout=0.3)
    command_id = called_id(bus, "PENDING")
    state = f"command {command_id} of domain 'payments' is PENDING after 0.3 s"
    assert str(raised.value) == f"{state}; it is not canceled"
    assert isinstance(raised.value, CallTimeoutError)
    copied = pickle.loads(pickle.dumps(raised.value))
    assert (copied.domain, copied.command_id) == ("payments", command_id)
    assert str(copied) == str(raised.value)
    with connect(dsn) as watcher:  # Nobody would read what comes for this command.
        eventually(lambda: scalar(watcher, LISTENING) == 0)


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
        assert [result.result(5) for result in results] == ["through"] * 3


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


def test_the_state_that_could_not_be_read_is_named_with_its_cause(dsn: str) -> None:
    with Proxy(dsn) as proxy, CommandBus(proxy.dsn) as bus, calling(bus, timeout=1.5) as call:
        eventually(lambda: is_heard(bus))
        with proxy.away(), pytest.raises(TimeoutError, match="cannot be read") as raised:
            call.result(10)
    assert raised.value.__cause__ is not None


def test_a_call_does_not_wait_much_longer_than_its_timeout_for_a_silent_server(dsn: str) -> None:
    with Proxy(dsn) as proxy, CommandBus(proxy.dsn) as bus, calling(bus, timeout=1.5) as call:
        eventually(lambda: is_heard(bus))
        proxy.freeze(new_ones=True)
        proxy.cut()
        with pytest.raises(TimeoutError, match="cannot be read"):
            call.result(9)


@pytest.mark.process
def test_a_call_gets_its_result_although_workers_are_killed(dsn: str, bus: CommandBus) -> None:
    with calling(bus, 30) as call:
        for _ in range(2):
            worker = WorkerProcess(dsn)
            try:
                eventually(lambda: bus.query(status="IN_PROGRESS"))
            finally:
                worker.end(signal.SIGKILL)
        with running(dsn, handling(lambda command, context: "survived")):
            assert call.result(15) == "survived"


@pytest.mark.fleet(procs=2)
def test_every_call_returns_while_the_workers_of_a_fleet_are_killed(
    fleet: Fleet, bus: CommandBus
) -> None:
    def call(number: int) -> None:
        for turn in range(30):
            type_ = "FailOnce" if (number + turn) % 5 == 0 else "Debit"
            bus.call("shop", type_, 0.1, timeout=40)

    with ThreadPoolExecutor(4) as threads:
        callers = [threads.submit(call, number) for number in range(4)]
        for _ in range(4):
            kill(next(iter(fleet.wait_until_ready().values())))
        for caller in callers:
            caller.result(60)
    assert Counter(record.status for record in bus.query("shop", limit=200)) == {"COMPLETED": 120}
    assert fleet.query("SELECT count(*), count(DISTINCT command_id) FROM effect") == [(96, 96)]


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
                result.result(2)


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


def test_a_producer_needs_no_further_right(dsn: str, bus: CommandBus) -> None:
    with role(dsn, "producer") as connection, running(dsn, handling(answer)):
        [[name]] = connection.execute("SELECT current_user").fetchall()
        with CommandBus(make_conninfo(dsn, options=f"-c role={name}")) as producer:
            assert producer.call("payments", "Debit", [1], timeout=10) == [1]
            with pytest.raises(CommandFailedError, match="NO_FUNDS"):
                producer.call("payments", "Debit", {"fail": "rule"}, timeout=10)
        # It reads the outcome of no id that could be guessed.
        guessable = bus.send("payments", "Debit", "secret", command_id=uuid4())
        bus.wait("payments", guessable, timeout=10)
        query = "SELECT * FROM cmdbus.outcome('payments', %s)"
        assert connection.execute(query, (guessable,)).fetchall() == [(None,) * 5]


@pytest.mark.parametrize("caller", [0, -1, 1, 2**52, 2**63 - 1, -(2**63)])
def test_any_number_of_a_caller_lets_a_command_end(
    bus: CommandBus, connection: psycopg.Connection, claimer: Claimer, caller: int
) -> None:
    """A role that may send can write any."""
    id_ = bus.send("payments", "Debit")
    connection.execute("UPDATE cmdbus.ready SET caller = %s", (caller,))
    assert claimer.settle(ended(claimer.claim_one())) == []
    record = bus.get("payments", id_)
    assert record is not None and record.status == "COMPLETED"


def test_an_outcome_is_read_by_its_key(bus: CommandBus, connection: psycopg.Connection) -> None:
    """Also by a session that has planned while nothing had ended."""
    ids = bus.send_many([SendRequest("payments", "Debit")] * 2000)
    read = (
        "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_xact_user_tables"
        " WHERE relname ~ 'ready|scheduled|troubleshooting|finished|event'"
    )
    query = "SELECT status FROM cmdbus.outcome('payments', %s)"
    for _ in range(7):
        assert connection.execute(query, (uuid4(),)).fetchall() == [(None,)]
        assert connection.execute(query, (new_id(),)).fetchall() == [(None,)]
    for place, status in (("ready", "PENDING"), ("finished", "CANCELED")):
        if place == "finished":
            bus.cancel_all("payments")
        with connection.transaction():
            for id_ in ids[:20]:
                assert connection.execute(query, (id_,)).fetchall() == [(status,)]
            assert scalar(connection, read) <= 40


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


def test_a_refused_call_has_sent_nothing(bus: CommandBus) -> None:
    bus.configure("payments", max_depth=1)
    bus.send("payments", "Debit")
    with pytest.raises(QueueFullError):
        bus.call("payments", "Debit")
    for wrong in ({"timeout": 0}, {"timeout": "1"}, {"priority": 11}, {"max_attempts": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            bus.call("payments", "Debit", **wrong)
    assert len(bus.query()) == 1


def test_a_command_that_is_gone_is_not_waited_for(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_CHECK_SECONDS", 0.3)
    with CommandBus(dsn, purge_allowed=True) as bus, calling(bus) as call:
        eventually(lambda: bus.purge("payments"))
        with pytest.raises(CommandNotFoundError):
            call.result(10)


def test_the_hook_of_a_send_sees_a_call_and_gives_it_no_id(dsn: str) -> None:
    def on_send(request: SendRequest) -> SendRequest:
        if request.data == "id":
            request.command_id = uuid4()
        request.data = [request.data]
        return request

    with CommandBus(dsn, on_send=on_send) as bus, running(dsn, handling(answer)):
        assert bus.call("payments", "Debit", 1, timeout=10) == [1]
        with pytest.raises(ValueError, match="on_send gave a called command an id"):
            bus.call("payments", "Debit", "id", timeout=10)


def test_a_called_command_that_cannot_be_stored_comes_to_troubleshooting(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'no room'; END $$;"
        "CREATE TRIGGER refuse BEFORE INSERT ON cmdbus.finished FOR EACH ROW"
        " EXECUTE FUNCTION refuse()"
    )
    with (
        running(dsn, handling(answer)),
        pytest.raises(CommandFailedError, match="OUTCOME_NOT_STORABLE"),
    ):
        bus.call("payments", "Debit", timeout=4)


def test_the_mark_of_a_call_outlives_troubleshooting(
    dsn: str, bus: CommandBus, claimer: Claimer, connection: psycopg.Connection
) -> None:
    """An operator may retry before the caller has checked; then it goes on waiting."""
    id_ = bus.send("payments", "Debit")
    connection.execute("UPDATE cmdbus.ready SET caller = 5")
    claimer.settle(ended(claimer.claim_one(), troubled("GONE", "never")))
    bus.troubleshooting.retry("payments", id_, operator="ann")
    assert claimer.claim_one().caller == 5


def test_a_called_command_is_not_settled_together_with_plain_ones(
    bus: CommandBus, connection: psycopg.Connection, claimer: Claimer
) -> None:
    """Their settlement notifies nobody."""
    bus.send_many([SendRequest("payments", "Debit")] * 2)
    connection.execute("UPDATE cmdbus.ready SET caller = 5 WHERE id = 1")
    called, plain = [ended(claim) for claim in claimer.claim(2)]
    assert plain_and_others([called, plain]) == ([plain], [called])
