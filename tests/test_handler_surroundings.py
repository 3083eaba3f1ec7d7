"""What a registry puts around each call of its handlers, and what follows the settlement."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from eventually import eventually
from forks import forked
from handlers import (
    LADDER,
    ONCE,
    SOON,
    Function,
    connect,
    do_nothing,
    effects,
    found,
    handling,
    leave_effect,
    running,
)
from queries import rows
from test_process_groups import Watched, moved, replied

from cmdbus import (
    BusinessRuleError,
    Command,
    CommandBus,
    Context,
    HandlerRegistry,
    RetryPolicy,
    TransientCommandError,
)
from cmdbus.failpoints import AFTER_COMMIT, set_failpoint_action
from cmdbus.surroundings import execution_of
from cmdbus.worker.claims.outcomes import Outcome, OutcomeKind

Surround = Callable[[Command, Context], AbstractContextManager[object]]
After = Callable[[Outcome, BaseException | None], object]
LATER = RetryPolicy(max_attempts=3, backoff=(60,))


def surrounding(
    surroundings: Surround, function: Function = do_nothing, **options: Any
) -> HandlerRegistry:
    registry = handling(function, **{"retry": ONCE, **options})
    registry.django_surroundings = surroundings
    return registry


@contextmanager
def followed_by(after: After, command: Command, context: Context) -> Iterator[None]:
    execution_of(context).after_settlement(after)
    yield


def test_surroundings_are_entered_before_a_handler_and_left_before_its_settlement(
    dsn: str, bus: CommandBus
) -> None:
    done: list[object] = []
    variable = ContextVar[str]("variable")

    @contextmanager
    def surroundings(command: Command, context: Context) -> Iterator[None]:
        variable.set("surrounded")
        done.append("enter")
        try:
            yield
        except LookupError as error:
            done.append(error)
            raise
        context.connection.execute("INSERT INTO effect VALUES (gen_random_uuid(), 1)")
        done.append((variable.get(), effects(dsn)))

    def handle(command: Command, context: Context) -> None:
        done.append(command.data)
        variable.set("handled")
        leave_effect(command, context)
        if command.data == "fails":
            raise LookupError("no such thing")

    with running(dsn, surrounding(surroundings, handle)):
        for data in ("fails", "works"):
            bus.wait("payments", bus.send("payments", "Debit", data), 10)
    enter, fails, error, *others = done
    assert (enter, fails, repr(error)) == ("enter", "fails", "LookupError('no such thing')")
    assert others == ["enter", "works", ("handled", 0)]
    assert effects(dsn) == 2


@pytest.mark.parametrize("is_late", [False, True])
def test_an_error_of_the_surroundings_is_that_of_the_command(
    dsn: str, bus: CommandBus, is_late: bool
) -> None:
    @contextmanager
    def surroundings(command: Command, context: Context) -> Iterator[None]:
        if is_late:
            yield
        raise BusinessRuleError("CLOSED", "not today")

    with running(dsn, surrounding(surroundings, leave_effect)):
        record = bus.wait("payments", bus.send("payments", "Debit"), 10)
    assert (record.status, record.error_code) == ("FAILED", "CLOSED")
    assert effects(dsn) == 0


class Follower:
    """Notes what it sees once a command is settled."""

    def __init__(self, bus: CommandBus) -> None:
        self._bus = bus
        self.seen: list[tuple[object, ...]] = []
        self.called = threading.Event()

    @contextmanager
    def __call__(self, command: Command, context: Context) -> Iterator[None]:
        execution_of(context).after_settlement(partial(self._look, command))
        yield

    def _look(self, command: Command, outcome: Outcome, error: BaseException | None) -> None:
        record = found(self._bus, command.command_id)
        assert sys.exc_info()[1] is error
        self.seen.append((record.status, outcome.kind, type(error).__name__))
        self.called.set()


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (None, ("COMPLETED", "COMPLETED", "NoneType")),
        (BusinessRuleError("CLOSED", "not today"), ("FAILED", "FAILED", "BusinessRuleError")),
        (SystemExit(3), ("PENDING", "RETRY", "SystemExit")),
    ],
)
def test_what_follows_a_settlement_sees_it_committed_and_its_error_handled(
    dsn: str, bus: CommandBus, writes: bool, error: BaseException | None, seen: tuple[str, ...]
) -> None:
    def handle(command: Command, context: Context) -> None:
        if writes:
            leave_effect(command, context)
        if error is not None:
            raise error

    follower = Follower(bus)
    with running(dsn, surrounding(follower, handle, retry=LATER)):
        bus.send("payments", "Debit")
        assert follower.called.wait(10)
    assert follower.seen == [seen]
    assert effects(dsn) == (writes and error is None)


def test_an_error_of_what_follows_is_logged_and_changes_nothing(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[str] = []

    def fail(outcome: Outcome, error: BaseException | None) -> None:
        raise SystemExit("no such receiver")

    @contextmanager
    def surroundings(command: Command, context: Context) -> Iterator[None]:
        for after in (fail, lambda *_: called.append("second")):
            execution_of(context).after_settlement(after)
        yield

    with running(dsn, surrounding(surroundings, leave_effect)):
        ids = [bus.send("payments", "Debit") for _ in range(3)]
        records = [bus.wait("payments", each, 10) for each in ids]
        eventually(lambda: len(called) == 3)
    assert {record.status for record in records} == {"COMPLETED"}
    assert effects(dsn) == 3
    logged = [each for each in caplog.records if "follows the command's settlement" in each.message]
    assert len(logged) == 3 and "no such receiver" in caplog.text


def test_a_thread_that_hangs_in_what_follows_is_replaced_and_its_command_stays_settled(
    dsn: str, bus: CommandBus
) -> None:
    hangs, release = threading.Event(), threading.Event()

    def hang(outcome: Outcome, error: BaseException | None) -> None:
        # On a busy machine the handler may take too long, and run again.
        if outcome.kind is OutcomeKind.COMPLETED:
            hangs.set()
            release.wait(20)

    registry = surrounding(partial(followed_by, hang), leave_effect, retry=SOON)
    with running(dsn, registry, timeouts=LADDER, concurrency=1):
        command_id = bus.send("payments", "Debit")
        assert hangs.wait(10)
        settled = found(bus, command_id)
        assert settled.status == "COMPLETED"
        assert bus.wait("payments", bus.send("payments", "Noop"), 10).status == "COMPLETED"
        release.set()
    assert found(bus, command_id) == settled
    assert effects(dsn) == 1


def test_nothing_follows_an_execution_that_runs_again_uncharged(dsn: str, bus: CommandBus) -> None:
    """Its session has ended, or it has lost its lease."""
    outcomes: list[str] = []
    attempts: list[int] = []

    def lose(command: Command, context: Context) -> None:
        attempts.append(context.attempt)
        if len(attempts) == 1:
            with connect(dsn) as other:
                other.execute("SELECT pg_terminate_backend(%s)", (_pid(context),))
            context.connection.execute("SELECT 1")

    surroundings = partial(followed_by, lambda outcome, _: outcomes.append(outcome.kind))
    with running(dsn, surrounding(surroundings, lose)):
        bus.wait("payments", bus.send("payments", "Debit"), 10)
        eventually(lambda: bool(outcomes))
    assert (attempts, outcomes) == ([1, 1], ["COMPLETED"])


def _pid(context: Context) -> int:
    return context.connection.info.backend_pid


def test_nothing_follows_an_execution_whose_command_was_canceled(dsn: str, bus: CommandBus) -> None:
    outcomes: list[str] = []

    def cancel(command: Command, context: Context) -> None:
        if command.data:
            bus.cancel("payments", command.command_id, running=True)

    surroundings = partial(followed_by, lambda outcome, _: outcomes.append(outcome.kind))
    with running(dsn, surrounding(surroundings, cancel), concurrency=1):
        canceled = bus.send("payments", "Debit", "cancel")
        bus.wait("payments", bus.send("payments", "Debit"), 10)
        eventually(lambda: len(outcomes) == 1)
    assert found(bus, canceled).status == "CANCELED"


def test_nothing_follows_if_the_process_dies_after_the_commit(dsn: str, bus: CommandBus) -> None:
    """The command is completed once."""
    reader, writer = os.pipe()
    surroundings = partial(followed_by, lambda *_: os.write(writer, b"called"))

    def work() -> None:
        set_failpoint_action(_die)
        with running(dsn, surrounding(surroundings, leave_effect)):
            threading.Event().wait(20)

    command_id = bus.send("payments", "Debit")
    with forked(work) as pid:
        os.waitpid(pid, 0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b""
    assert (found(bus, command_id).status, effects(dsn)) == ("COMPLETED", 1)


def _die(point: str) -> None:
    if point == AFTER_COMMIT:
        os.kill(os.getpid(), signal.SIGKILL)


def test_commands_that_share_a_transaction_have_their_surroundings_each(
    dsn: str, bus: CommandBus
) -> None:
    """Those of processes, of which one fails at first: nothing of its group is left, and nothing
    follows that."""
    completed: list[UUID] = []

    @contextmanager
    def surroundings(command: Command, context: Context) -> Iterator[None]:
        second = execution_of(context).second_connection()
        second.execute("INSERT INTO effect VALUES (%s, 99)", (command.command_id,))

        def note(outcome: Outcome, error: BaseException | None) -> None:
            if error is None:
                completed.append(command.command_id)

        execution_of(context).after_settlement(note)
        yield

    def fail(calls: int) -> None:
        if calls == 1:
            raise TransientCommandError("BUSY", "try again")

    manager = Watched(fail)
    with replied(dsn, bus, manager, surroundings) as ids:
        bus.resume("trips")
        eventually(lambda: moved(bus, ids))
    left = rows(dsn, "SELECT command_id FROM effect WHERE attempt = 99")
    assert sorted(completed) == sorted(command_id for (command_id,) in left)
