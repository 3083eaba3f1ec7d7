"""Middleware around executions that time out, fork, are handled together, or use Django."""

import gc
import os
import threading
import weakref
from contextvars import ContextVar
from typing import ClassVar

from django_support import set_up
from eventually import eventually
from handlers import (
    LADDER,
    ONCE,
    SOON,
    do_nothing,
    effects,
    found,
    handling,
    leave_effect,
    running,
)
from middleware import Outcomes, Yields
from observed import Recorder, installed
from test_process_groups import Watched, are_completed, moved, replied

from cmdbus import (
    BusinessRuleError,
    Command,
    CommandBus,
    Context,
    ExecutionOutcome,
    HandlerRegistry,
    TransientCommandError,
)
from cmdbus.testing import CommandTester

set_up()


def test_a_middleware_shares_transaction_variables_and_headers_with_the_handler(
    dsn: str, bus: CommandBus
) -> None:
    tenant = ContextVar[str]("tenant", default="none")

    def handle(command: Command, context: Context) -> str:
        leave_effect(command, context)
        bus.send("sent", "Next")
        if context.attempt == 1:
            raise TransientCommandError("BUSY", "try again")
        return tenant.get()

    registry = handling(handle, retry=SOON)

    @registry.around(type="Debit")
    def around(command: Command, context: Context) -> Yields:
        tenant.set(command.headers["tenant"])
        context.headers["attempt"] = str(context.attempt)
        outcome = yield
        assert outcome.status == "COMPLETED"
        leave_effect(command, context)

    with running(dsn, registry, concurrency=1):
        assert bus.call("payments", "Debit", headers={"tenant": "blue"}) == "blue"
    assert tenant.get() == "none"
    assert effects(dsn) == 2  # Those of the first attempt are undone.
    sent = [each.headers for each in reversed(bus.query("sent"))]
    assert sent == [{"tenant": "blue", "attempt": "1"}, {"tenant": "blue", "attempt": "2"}]


def test_what_follows_a_handler_that_has_timed_out_runs_when_it_returns_at_last(
    dsn: str, bus: CommandBus
) -> None:
    go_on, canceled = threading.Event(), list[bool]()

    def hang(command: Command, context: Context) -> None:
        go_on.wait(20)

    registry, outcomes = handling(hang, retry=ONCE), Outcomes()

    @registry.around(type="Debit")
    def around(command: Command, context: Context) -> Yields:
        yield
        canceled.append(context.canceled)

    registry.around(outcomes)
    with running(dsn, registry, timeouts=LADDER):
        sent = bus.send("payments", "Debit")
        eventually(lambda: found(bus, sent).error_code == "TIMEOUT")
        assert not outcomes.seen
        go_on.set()
        eventually(lambda: canceled)
    assert canceled == [True]
    assert [each.status for each in outcomes.seen["Debit"]] == ["COMPLETED"]


def test_nothing_around_a_handler_sees_the_end_of_a_process_that_it_has_forked(
    dsn: str, bus: CommandBus
) -> None:
    reader, writer = os.pipe()

    def fork(command: Command, context: Context) -> int:
        pid = os.fork()
        if pid and command.data:
            os.waitpid(pid, 0)
            raise BusinessRuleError("CLOSED", "not today")
        if command.data:
            raise LookupError
        if pid:
            os.waitpid(pid, 0)
        return pid

    registry, parent = handling(fork, retry=ONCE), os.getpid()

    @registry.around(type="Debit")
    def around(command: Command, context: Context) -> Yields:
        try:
            yield
        finally:
            os.write(writer, b"." if os.getpid() == parent else b"!")

    with running(dsn, registry):
        for data in (False, True):
            bus.wait("payments", bus.send("payments", "Debit", data), 10)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read() == ".."


class _HostileError(Exception):
    """Cannot be looked at."""

    @property
    def __class__(self) -> type:
        raise ZeroDivisionError

    @__class__.setter
    def __class__(self, value: type) -> None: ...


class _TrackedError(Exception):
    tracked: ClassVar[list[weakref.ref[Exception]]] = []

    def __init__(self) -> None:
        self.tracked.append(weakref.ref(self))


def test_an_error_is_let_go_with_its_execution_and_may_be_hostile(
    dsn: str, bus: CommandBus
) -> None:
    """Its frames refer to the context, whose outcome has it: that would wait for the collector."""

    def handle(command: Command, context: Context) -> None:
        raise _HostileError if command.data else _TrackedError

    registry, codes = handling(handle, retry=ONCE), list[object]()

    @registry.around
    def around(command: Command, context: Context) -> Yields:
        try:
            yield
        finally:
            codes.append(context.outcome and (context.outcome.status, context.outcome.code))

    gc.disable()
    try:
        with running(dsn, registry, concurrency=1):
            ids = [bus.send("payments", "Debit", hostile) for hostile in (True, False)]
            for id_ in ids:
                bus.wait("payments", id_, 10)
            eventually(lambda: not any(ref() for ref in _TrackedError.tracked))
    finally:
        gc.enable()
    assert len(_TrackedError.tracked) == 1
    status = "TROUBLESHOOTING"
    assert codes == [(status, "UNREPORTABLE"), (status, "_TrackedError")]
    assert found(bus, ids[0]).error_code == "UNREPORTABLE"


def test_an_error_of_the_database_is_seen_and_defers_the_command(dsn: str, bus: CommandBus) -> None:
    def lose(command: Command, context: Context) -> None:
        context.connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    registry, outcomes = handling(lose, retry=ONCE), Outcomes()
    registry.around(outcomes)
    with running(dsn, registry):
        sent = bus.send("payments", "Debit")
        eventually(lambda: bus.audit("payments", sent)[-1].code == "DATABASE_AWAY")
    # It may have run again before the worker stopped.
    seen = {(outcome.status, outcome.code) for outcome in outcomes.seen["Debit"]}
    assert seen == {("DEFERRED", None)}


def test_each_command_of_a_group_has_its_middleware(dsn: str, bus: CommandBus) -> None:
    """Where one fails, nothing of the group has happened: all run by themselves."""
    outcomes = Outcomes()

    def fail(calls: int) -> None:
        if calls < 3:
            raise TransientCommandError("BUSY", "try again")

    recorder = Recorder()
    with (
        installed(recorder),
        replied(dsn, bus, Watched(fail), around=outcomes, concurrency=4) as ids,
    ):
        bus.resume("trips")
        eventually(lambda: moved(bus, ids))
        eventually(lambda: are_completed(bus, ids))
    statuses = [each.status for each in outcomes.seen["Reply"]]
    # Under load the one that fails may be in no group.
    assert statuses.count("DEFERRED") + statuses.count("RETRY") == 2
    ends = [each.outcome for each in recorder.ends if each.type == "Reply"]
    assert ends.count("RETRY") == statuses.count("RETRY")
    assert set(ends) == {"RETRY", "COMPLETED"}


def test_instruments_are_around_middleware(dsn: str, bus: CommandBus) -> None:
    registry = handling(do_nothing, retry=ONCE)

    @registry.around(type="Debit")
    def around(command: Command, context: Context) -> Yields:
        yield
        raise BusinessRuleError("CLOSED", "not today")

    with installed(recorder := Recorder()), running(dsn, registry):
        bus.wait("payments", bus.send("payments", "Debit"), 10)
        eventually(lambda: recorder.ends)
    [(_, outcome, error)] = recorder.executions
    assert isinstance(outcome, ExecutionOutcome)
    assert (outcome.status, outcome.error) == ("FAILED", error)
    [end] = recorder.ends
    assert end.message == f"in the middleware {around.__module__}.{around.__qualname__}: not today"


def test_tests_of_an_application_run_its_middleware(dsn: str) -> None:
    registry, outcomes = handling(leave_effect), Outcomes()
    registry.around(outcomes)

    @registry.around(type="Noop")
    def refuse(command: Command, context: Context) -> Yields:
        raise BusinessRuleError("CLOSED", "not today")
        yield

    with CommandBus(dsn) as bus, installed(recorder := Recorder()):
        bus.send("payments", "Debit")
        bus.send("payments", "Noop")
        tester = CommandTester(dsn)
        executed = tester.run_commands(registry, raises=False)
    assert [each.outcome for each in executed] == ["COMPLETED", "FAILED"]
    assert (
        executed[1].error_message
        == f"in the middleware {__name__}.{refuse.__qualname__}: not today"
    )
    assert [outcomes.seen[type_][0].status for type_ in ("Debit", "Noop")] == [
        "COMPLETED",
        "FAILED",
    ]
    assert [each.outcome for each in recorder.ends] == ["COMPLETED", "FAILED"]


def test_a_middleware_uses_djangos_connection_in_the_transaction(django_dsn: str) -> None:
    from django.db import connection

    def insert(attempt: int) -> None:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO effect VALUES (gen_random_uuid(), %s)", [attempt])

    registry = HandlerRegistry(django=True)

    @registry.handler("payments", "Debit", retry=ONCE)
    def debit(command: Command, context: Context) -> None:
        insert(1)
        if command.data:
            raise LookupError

    @registry.around(domain="payments")
    def around(command: Command, context: Context) -> Yields:
        yield
        insert(2)

    with CommandBus(django_dsn) as bus, running(django_dsn, registry, concurrency=1):
        for data in (False, True):
            bus.wait("payments", bus.send("payments", "Debit", data), 10)
    assert effects(django_dsn) == 2
