"""What makes no event, and what stays in the scope of its execution."""

import os
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import sentry_sdk
from eventually import eventually
from handlers import ONCE, SOON, do_nothing, handling, running
from sentries import DSN, sentry
from test_process_groups import Watched, are_completed, moved, replied, replies

from cmdbus import (
    BreakerOpenError,
    BusinessRuleError,
    Command,
    CommandBus,
    Context,
    HandlerRegistry,
    Timeouts,
    TransientCommandError,
    instrument_hooks,
)
from cmdbus.instruments import EndedExecution
from cmdbus.sentry import CmdbusIntegration
from cmdbus.sentry.attempts import Attempt, Attempts
from cmdbus.testing import CommandTester

#: In which a lost lease is known after half a second.
QUICK_LEASE = Timeouts(statement=1.0, pool=1.2, lease=1.5, thread=10, watchdog=20)


def give_back(command: Command, context: Context) -> None:
    context.again(60)


def defer(command: Command, context: Context) -> None:
    raise BreakerOpenError("bank", 60)


def refuse(command: Command, context: Context) -> None:
    raise BusinessRuleError("TOO_MUCH", "the limit is 100")


def lose_session(command: Command, context: Context) -> None:
    pid = context.connection.info.backend_pid
    with psycopg.connect(context.connection.info.dsn) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    context.connection.execute("SELECT 1")


def fail(command: Command, context: Context) -> None:
    raise ValueError("no reason")


def swallow(command: Command, context: Context) -> None:
    with suppress(KeyError):
        command.data["balance"]


def test_what_is_no_failed_attempt_is_no_event(dsn: str, bus: CommandBus) -> None:
    registry = HandlerRegistry()
    for function in (do_nothing, give_back, defer, refuse, swallow):
        registry.register("payments", function.__name__, function)
        bus.send("payments", function.__name__, {})
    with sentry() as taken:
        done = CommandTester(dsn).run_commands(registry, raises=False)
    assert len(done) == 5 and taken.events == []


def test_business_rules_are_events_if_asked_for(dsn: str, bus: CommandBus) -> None:
    bus.send("payments", "Debit", {})
    with sentry(CmdbusIntegration(business_rule_errors=True)) as taken:
        CommandTester(dsn).run_commands(handling(refuse), raises=False)
    [event] = taken.events
    assert event["fingerprint"] == ["cmdbus", "payments", "Debit", "TOO_MUCH"]
    assert (event["level"], event["tags"]["outcome"]) == ("error", "failed")


def test_a_lost_session_and_a_canceled_command_are_no_events(dsn: str, bus: CommandBus) -> None:
    ended = threading.Event()

    def fail_once_canceled(command: Command, context: Context) -> None:
        bus.cancel("payments", command.command_id, running=True)
        eventually(lambda: context.canceled)
        ended.set()
        raise ValueError("of something that does not count any longer")

    registry = handling(fail_once_canceled)
    registry.register("payments", "Lose", lose_session)
    with sentry() as taken, running(dsn, registry, timeouts=QUICK_LEASE):
        bus.send("payments", "Debit", {})
        lost = bus.send("payments", "Lose", {})
        assert ended.wait(10)
        eventually(lambda: [event.code for event in bus.audit("payments", lost) if event.code])
    assert taken.events == []


def test_executions_share_nothing_but_the_tags_of_the_process(dsn: str, bus: CommandBus) -> None:
    """One thread runs them."""

    def fail(command: Command, context: Context) -> None:
        sentry_sdk.set_tag(f"tag{command.data}", "set")
        sentry_sdk.add_breadcrumb(message=f"crumb {command.data}")
        raise ValueError(command.data)

    for number in range(2):
        bus.send("payments", "Debit", number, headers={"tenant": "acme", "note": "private"})
    with sentry(CmdbusIntegration(header_tags=["tenant", "none"])) as taken:
        sentry_sdk.add_breadcrumb(message="crumb of the thread")
        sentry_sdk.get_global_scope().set_tag("shop", "berlin")
        CommandTester(dsn).run_commands(handling(fail, retry=SOON), raises=False)
        sentry_sdk.capture_message("outside")
        sentry_sdk.get_global_scope().remove_tag("shop")
    *inside, outside = taken.events
    for number, event in enumerate(inside):
        own = {name for name in event["tags"] if name.startswith("tag")}
        assert own == {f"tag{number}"}
        assert (event["tags"]["shop"], event["tags"]["tenant"]) == ("berlin", "acme")
        assert [crumb["message"] for crumb in event["breadcrumbs"]["values"]] == [f"crumb {number}"]
        assert event["contexts"]["command"]["headers"] == ["note", "tenant"]
    traces = {event["contexts"]["trace"]["trace_id"] for event in taken.events}
    assert len(traces) == 3
    assert outside["tags"] == {"shop": "berlin"} and "command" not in outside["contexts"]


def test_what_the_application_has_captured_is_not_captured_again(dsn: str, bus: CommandBus) -> None:
    def fail(command: Command, context: Context) -> None:
        try:
            raise ValueError("seen by both")
        except ValueError as error:
            sentry_sdk.capture_exception(error)
            raise

    bus.send("payments", "Debit", {})
    with sentry() as taken:
        CommandTester(dsn).run_commands(handling(fail), raises=False)
    [event] = taken.events
    assert event["tags"]["command_type"] == "Debit"


def test_replies_that_are_handled_together_make_no_event_until_each_runs_by_itself(
    dsn: str, bus: CommandBus
) -> None:
    def fail(calls: int) -> None:
        if calls < 3:  # in the group, and by itself
            raise TransientCommandError("BUSY", "try again")

    with sentry() as taken, replied(dsn, bus, Watched(fail), concurrency=4) as ids:
        bus.resume("trips")
        eventually(lambda: moved(bus, ids) and are_completed(bus, ids))
        failures = sum(reply.attempts - 1 for reply in replies(bus, ids))
    # Under load the one that fails may be in no group.
    assert len(taken.events) == failures in (1, 2)
    for event in taken.events:
        assert event["fingerprint"] == ["cmdbus", "trips", "Reply", "BUSY"]


def test_a_client_without_the_integration_gets_nothing(dsn: str, bus: CommandBus) -> None:
    bus.send("payments", "Debit", {})
    with sentry() as taken:
        other = sentry_sdk.Client(dsn=DSN, transport=taken, default_integrations=False)
        sentry_sdk.get_global_scope().set_client(other)
        CommandTester(dsn).run_commands(handling(fail), raises=False)
    assert taken.events == []


def test_a_failure_that_another_thread_has_settled_is_no_event_of_its_own() -> None:
    """As when it timed out before its own outcome found no row."""
    late = EndedExecution(
        domain="payments",
        type="Debit",
        command_id=uuid4(),
        attempt=1,
        outcome="RETRY",
        code="TIMEOUT",
        message="gave up after 35 s",
        ended_at=0.0,
        settled_at=0.0,
        seconds=35.0,
        waited=0.0,
        max_attempts=3,
        correlation_id=uuid4(),
        priority=5,
        created_at=datetime.now(UTC),
        details=None,
        headers={},
        delay=10.0,
    )
    with sentry() as taken:
        instrument_hooks.settled([late, late._replace(code=None, message=None, delay=None)])
    [event] = taken.events
    assert event["tags"]["error_code"] == "TIMEOUT"


def test_a_child_that_a_handler_forks_makes_no_event(dsn: str, bus: CommandBus) -> None:
    """Though it leaves the handler with an exception, too."""
    reader, writer = os.pipe()

    def fork(command: Command, context: Context) -> None:
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
        raise ValueError("child" if pid == 0 else "parent")

    def note(event: Any, hint: Any) -> Any:
        os.write(writer, b"%d " % os.getpid())
        return event

    with sentry(before_send=note) as taken, running(dsn, handling(fork, retry=ONCE)):
        bus.send("payments", "Debit")
        eventually(lambda: taken.events)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read().split() == [str(os.getpid())]


def test_what_is_left_is_sent_before_a_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[float] = []
    with sentry() as taken:
        monkeypatch.setattr(taken, "flush", lambda timeout, callback=None: flushed.append(timeout))
        instrument_hooks.flush(2)
        assert [0 < seconds <= 2 for seconds in flushed] == [True]


def test_attempts_that_are_never_settled_are_forgotten() -> None:
    attempts, first, second = Attempts(), Attempt(uuid4(), 1), Attempt(uuid4(), 1)
    for each in (first, second):
        attempts.keep(each, None)
    for _ in range(999):
        attempts.keep(Attempt(uuid4(), 1), None)
    assert attempts.settled(first) == (False, None)
    assert attempts.settled(second) == (True, None)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"send_payloads": 1}, "send_payloads must be True or False, not 1"),
        ({"header_tags": "tenant"}, "header_tags must be a list of names, not 'tenant'"),
        ({"header_tags": ["a b"]}, "a name in header_tags must be a letter .*, not .a b."),
    ],
)
def test_a_wrong_option_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CmdbusIntegration(**wrong)


def test_without_the_sdk_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentry_sdk", None)
    monkeypatch.delitem(sys.modules, "cmdbus.sentry")
    with pytest.raises(
        ImportError, match=r"needs the extra sentry: pip install 'cmdbus\[sentry\]'"
    ):
        import_module("cmdbus.sentry")
