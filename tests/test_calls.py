"""Calls: a command is sent, and its caller waits for the outcome."""

import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from calling import LISTENING, SOON, answer, called_id, calling, is_heard
from eventually import eventually, stays
from fleet import Fleet, kill
from handlers import Gate, connect, handling, running
from queries import scalar
from worker_process import WorkerProcess

from cmdbus import (
    CallTimeoutError,
    CommandBus,
    CommandFailedError,
    CommandNotFoundError,
    QueueFullError,
    SendRequest,
)
from cmdbus.producer import calls

#: What the sessions of a bus have executed last, and when.
STATEMENTS = (
    "SELECT pid, query_start FROM pg_stat_activity WHERE datname = current_database()"
    " AND application_name = 'cmdbus:bus' ORDER BY pid"
)


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


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call reads its outcome before a notification comes."""
    monkeypatch.setattr(calls, "_CHECK_SECONDS", 60.0)


@pytest.mark.usefixtures("unchecked")
def test_a_canceled_call_ends_at_once_with_the_reason(dsn: str, bus: CommandBus) -> None:
    with calling(bus, timeout=50) as call:
        eventually(lambda: is_heard(bus))
        bus.cancel("payments", called_id(bus), reason="no need")
        with pytest.raises(CommandFailedError) as raised:
            call.result(20)
    assert (raised.value.code, raised.value.message) == ("CANCELED", "no need")
    assert (raised.value.details, raised.value.status) == (None, "CANCELED")
    assert str(raised.value).endswith(" is CANCELED: no need")


@pytest.mark.usefixtures("unchecked")
def test_a_call_waits_through_retries_and_a_reschedule(dsn: str, bus: CommandBus) -> None:
    """Its mark goes with the command from table to table."""
    with calling(bus, {"fail": "once"}, timeout=50) as call:
        eventually(lambda: is_heard(bus))
        command_id = called_id(bus)
        bus.reschedule("payments", command_id, delay=60)
        bus.reschedule("payments", command_id, delay=0)
        with running(dsn, handling(answer, retry=SOON)):
            assert call.result(20) == {"fail": "once"}


@pytest.mark.usefixtures("unchecked")
def test_a_call_that_waits_executes_nothing(dsn: str, bus: CommandBus) -> None:
    gate = Gate()
    with running(dsn, handling(gate)), connect(dsn) as watcher, calling(bus, timeout=50) as call:
        gate.wait_for(1)
        eventually(lambda: is_heard(bus))

        def rests() -> bool:
            latest = watcher.execute(STATEMENTS).fetchall()
            try:
                stays(lambda: watcher.execute(STATEMENTS).fetchall() == latest, 0.6)
            except AssertionError:
                return False
            return True

        eventually(rests)
        gate.open.set()
        assert call.result(20) == "through"


def test_a_call_that_takes_too_long_raises_and_cancels_nothing(dsn: str, bus: CommandBus) -> None:
    with pytest.raises(TimeoutError) as raised:
        bus.call("payments", "Debit", timeout=0.3)
    command_id = called_id(bus, "PENDING")
    state = f"command {command_id} of domain 'payments' is PENDING after 0.3 s"
    assert str(raised.value) == f"{state}; it is not canceled"
    assert isinstance(raised.value, CallTimeoutError)
    assert (raised.value.domain, raised.value.command_id) == ("payments", command_id)
    with connect(dsn) as watcher:  # No call is left that waits for this command.
        eventually(lambda: scalar(watcher, LISTENING) == 0)


@pytest.mark.process
def test_a_call_gets_its_result_although_workers_are_killed(dsn: str, bus: CommandBus) -> None:
    with calling(bus, 30, timeout=50) as call:
        for _ in range(2):
            worker = WorkerProcess(dsn)
            try:
                eventually(lambda: bus.query(status="IN_PROGRESS"))
            finally:
                worker.end(signal.SIGKILL)
        with running(dsn, handling(lambda command, context: "survived")):
            assert call.result(40) == "survived"


@pytest.mark.parametrize("kills", [2, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.fleet(procs=2)
def test_every_call_returns_while_the_workers_of_a_fleet_are_killed(
    fleet: Fleet, bus: CommandBus, kills: int
) -> None:
    turns = 10 * kills

    def call(number: int) -> None:
        for turn in range(turns):
            type_ = "FailOnce" if (number + turn) % 5 == 0 else "Debit"
            bus.call("shop", type_, 0.1, timeout=40)

    with ThreadPoolExecutor(4) as threads:
        callers = [threads.submit(call, number) for number in range(4)]
        for _ in range(kills):
            victim = next(iter(fleet.wait_until_ready().values()))
            kill(victim)
            fleet.await_successors([victim])
        for caller in callers:
            caller.result(60)
    statuses = Counter(record.status for record in bus.query("shop", limit=200))
    assert statuses == {"COMPLETED": 4 * turns}
    once = "SELECT count(*), count(DISTINCT command_id) FROM effect"
    assert fleet.query(once) == [(4 * turns * 4 // 5,) * 2]


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
