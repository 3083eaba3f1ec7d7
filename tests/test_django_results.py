"""What the result of a task shows of the rows of its command."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone
from django_support import set_up
from handlers import SOON, running
from queries import rows

from cmdbus import (
    BusinessRuleError,
    Command,
    CommandBus,
    Context,
    HandlerRegistry,
    PermanentCommandError,
    RetryPolicy,
)

set_up()

from django_project.shop.tasks import charge  # noqa: E402

from cmdbus.django.frameworks import TaskResultStatus  # noqa: E402
from cmdbus.django.results import Event, TaskRow, errors_of, workers_of  # noqa: E402

READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
SUCCESSFUL, FAILED = TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED


def handling(function: Any, **options: Any) -> HandlerRegistry:
    registry = HandlerRegistry()
    options = {"retry": SOON, **options}
    registry.register("default", charge.module_path, function, **options)
    return registry


def finished(bus: CommandBus, result: Any, timeout: float = 30) -> Any:
    """The result of a task, once it is over."""
    bus.wait("default", result.id, timeout)
    found = charge.get_result(result.id)
    result.refresh()
    assert result == found and result.is_finished
    return result


def test_a_result_shows_each_attempt(django_dsn: str) -> None:
    """Also while it runs, and its errors after a success, too."""
    seen: list[Any] = []

    def fail_once(command: Command, context: Context) -> object:
        seen.append(charge.get_result(str(command.command_id)))
        connection.close()  # this thread's own
        if context.attempt == 1:
            raise LookupError("no such order")
        return {"paid": [7]}

    with CommandBus(django_dsn) as bus, running(django_dsn, handling(fail_once)):
        before = timezone.now()
        result = finished(bus, charge.enqueue(7))
        [(worker,)] = rows(django_dsn, "SELECT worker FROM cmdbus.command")
    assert (result.status, result.return_value) == (SUCCESSFUL, {"paid": [7]})
    assert (result.attempts, result.worker_ids) == (2, [worker, worker])
    assert [(each.status, each.attempts) for each in seen] == [(RUNNING, 1), (RUNNING, 2)]
    times = result.enqueued_at, result.started_at, result.last_attempted_at, result.finished_at
    assert before < times[0] < times[1] < times[2] < times[3] < before + timedelta(seconds=30)
    assert (seen[0].started_at, seen[0].last_attempted_at) == (times[1], times[1])
    assert (seen[1].started_at, seen[1].last_attempted_at) == times[1:3]
    [error] = result.errors
    assert error.exception_class is LookupError
    assert 'raise LookupError("no such order")\nLookupError: no such order\n' in error.traceback
    assert seen[1].errors == result.errors


class DeclinedError(BusinessRuleError):
    pass


@pytest.mark.parametrize(
    "error", [DeclinedError("NO", "declined"), PermanentCommandError("GONE", "x"), SystemExit(1)]
)
def test_what_is_not_tried_again_has_failed(django_dsn: str, error: BaseException) -> None:
    def fail(command: Command, context: Context) -> None:
        raise error

    registry = handling(fail, retry=RetryPolicy(max_attempts=1))
    with CommandBus(django_dsn) as bus, running(django_dsn, registry):
        result = finished(bus, charge.enqueue(7))
    assert (result.status, result.attempts) == (FAILED, 1)
    assert result.finished_at > result.started_at == result.last_attempted_at
    [shown] = result.errors
    assert shown.exception_class is type(error)
    assert "    raise error\n" in shown.traceback


def test_a_timeout_is_a_timeout_error(django_dsn: str) -> None:
    """With the stack of the thread."""
    end = threading.Event()

    def hang(command: Command, context: Context) -> None:
        end.wait(20)

    registry = handling(hang, retry=RetryPolicy(max_attempts=1), timeout=0.4)
    with CommandBus(django_dsn) as bus, running(django_dsn, registry):
        result = finished(bus, charge.enqueue(7))
        end.set()
    assert (result.status, result.attempts) == (FAILED, 1)
    [error] = result.errors
    assert error.exception_class is TimeoutError
    assert "in hang\n    end.wait(20)" in error.traceback
    assert error.traceback.endswith(
        "TimeoutError: gave up after 0.4 s: its thread did not return\n"
    )


def test_an_operators_retry_begins_anew(django_dsn: str) -> None:
    """And the errors stay. What an operator completes is successful."""
    fails = [True, True, False]

    def run(command: Command, context: Context) -> int:
        if fails.pop(0):
            raise PermanentCommandError("GONE", "it is gone")
        return context.attempt

    with CommandBus(django_dsn) as bus:
        result, other = charge.enqueue(1), charge.using(run_after=timezone.now()).enqueue(2)
        with running(django_dsn, handling(run)):
            finished(bus, result)
            finished(bus, other)
        bus.troubleshooting.retry("default", result.id, operator="Ann")
        result.refresh()
        assert (result.status, result.attempts, len(result.errors)) == (READY, 0, 1)
        assert result.finished_at is None and result.started_at is not None
        bus.troubleshooting.complete("default", other.id, operator="Ann", result={"by": "Ann"})
        other.refresh()
        assert (other.status, other.return_value) == (SUCCESSFUL, {"by": "Ann"})
        assert (other.attempts, len(other.errors)) == (1, 1)
        with running(django_dsn, handling(run)):
            finished(bus, result)
    assert (result.status, result.return_value) == (SUCCESSFUL, 1)
    assert (result.attempts, len(result.errors)) == (1, 1)


def test_a_canceled_task_has_failed_with_the_reason(django_dsn: str) -> None:
    result = charge.enqueue(7)
    with CommandBus(django_dsn) as bus:
        bus.cancel("default", result.id, reason="too late")
    result.refresh()
    assert (result.status, result.attempts, result.started_at) == (FAILED, 0, None)
    [error] = result.errors
    assert error.exception_class.__name__ == "CommandFailedError"
    assert error.traceback == "CANCELED: too late\n"
    assert result.finished_at is not None


def row(status: str, attempts: int, code: str | None = None) -> TaskRow:
    empty: dict[str, Any] = dict.fromkeys(TaskRow._fields)
    worker = {"worker": "now", "error_code": code}
    return TaskRow(**{**empty, "status": status, "attempts": attempts, **worker})


def failure(kind: str, attempt: int, worker: str, reason: str = "TRANSIENT") -> Event:
    details = {"reason": reason, "exception": "builtins.ValueError", "traceback": worker}
    if reason in ("INTERRUPTED", "LOST"):
        details = {"reason": reason}
    return Event(kind, attempt, worker, "ValueError", "x", details)


TROUBLE = "MOVED_TO_TROUBLESHOOTING_QUEUE"
RETRIED = Event("OPERATOR_RETRY", None, None, None, None, None)


@pytest.mark.parametrize(
    ("row", "events", "workers", "traces"),
    [
        (row("PENDING", 0), [], [], []),
        (row("IN_PROGRESS", 1), [], ["now"], []),
        (row("PENDING", 1), [failure("FAILED", 1, "a")], ["a"], ["a"]),
        (row("IN_PROGRESS", 2), [failure("FAILED", 1, "a")], ["a", "now"], ["a"]),
        (
            row("COMPLETED", 3),
            [failure("FAILED", 1, "a"), failure("FAILED", 2, "b")],
            ["a", "b", "now"],
            ["a", "b"],
        ),
        (
            row("IN_TROUBLESHOOTING_QUEUE", 2),
            [failure("FAILED", 1, "a"), failure(TROUBLE, 2, "b")],
            ["a", "b"],
            ["a", "b"],
        ),
        (row("PENDING", 0), [failure("FAILED", 0, "a", "INTERRUPTED")], [], []),
        (
            row("COMPLETED", 2),
            [failure("FAILED", 1, "a"), failure("FAILED", 1, "b", "INTERRUPTED")],
            ["a", "now"],
            ["a"],
        ),
        (
            row("IN_TROUBLESHOOTING_QUEUE", 1),
            [failure("FAILED", 1, "a"), failure(TROUBLE, 1, "b", "LOST")],
            ["a"],
            ["a", "CommandFailedError: x\n"],
        ),
        (
            row("COMPLETED", 1),
            [failure("FAILED", 1, "a"), failure(TROUBLE, 2, "b"), RETRIED],
            ["now"],
            ["a", "b"],
        ),
        (
            row("FAILED", 1),
            [failure(TROUBLE, 1, "a"), RETRIED, failure("BUSINESS_RULE_FAILED", 1, "b")],
            ["b"],
            ["a", "b"],
        ),
        (
            row("CANCELED", 1, "EXPIRED"),
            [failure("FAILED", 1, "a")],
            ["a"],
            ["a", "EXPIRED\n"],
        ),
    ],
    ids=[
        *("waits", "runs", "is tried again", "runs again", "has succeeded", "is exhausted"),
        *("was interrupted", "was interrupted later", "was lost too often"),
        *("has succeeded after a retry", "has failed after a retry", "has expired"),
    ],
)
def test_attempts_are_the_charged_ones(
    row: TaskRow, events: list[Event], workers: list[str], traces: list[str]
) -> None:
    assert workers_of(row, events) == workers
    assert [error["traceback"] for error in errors_of(row, events)] == traces
