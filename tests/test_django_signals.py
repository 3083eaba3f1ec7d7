"""The signals of the task framework, sent by a worker."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
from running_tasks import ended, running_tasks, task_settings, tasks_setting

from cmdbus import CommandBus

Receiver = Callable[..., None]


@pytest.fixture
def dsn(django_dsn: str) -> str:
    return django_dsn


@pytest.fixture
def tasks() -> Iterator[ModuleType]:
    """The module of tasks; each has two attempts, and none waits for the second one."""
    with task_settings(tasks_setting(max_attempts=2, backoff=[0.01])) as tasks:
        yield tasks


@contextmanager
def receiving(**receivers: Receiver) -> Iterator[None]:
    """By the names of the signals."""
    from cmdbus.django import frameworks

    for name, receiver in receivers.items():
        getattr(frameworks, name).connect(receiver)
    try:
        yield
    finally:
        for name, receiver in receivers.items():
            getattr(frameworks, name).disconnect(receiver)


def test_the_start_is_announced_before_each_attempt_and_the_end_once_it_is_committed(
    tasks: ModuleType, dsn: str, bus: CommandBus
) -> None:
    from cmdbus.django import CommandBusBackend

    received: list[Any] = []

    def started(sender: type, task_result: Any, **_: Any) -> None:
        received.append(("started", sender, task_result.status, task_result.attempts))

    def finished(sender: type, task_result: Any, **_: Any) -> None:
        assert bus.get("default", task_result.id).finished_at  # type: ignore[union-attr]
        status, attempts = task_result.status, task_result.attempts
        received.append(("finished", sender, status, attempts, len(task_result.errors)))

    with receiving(task_started=started, task_finished=finished), running_tasks(dsn):
        ended(bus, tasks.write.enqueue("once"))
        ended(bus, tasks.write_and_fail.enqueue("never", "BusinessRuleError"))
    assert received == [
        ("started", CommandBusBackend, "RUNNING", 1),
        ("finished", CommandBusBackend, "SUCCESSFUL", 1, 0),
        ("started", CommandBusBackend, "RUNNING", 1),
        ("finished", CommandBusBackend, "FAILED", 1, 1),
    ]


def test_the_end_is_announced_once_after_the_last_attempt(
    tasks: ModuleType, dsn: str, bus: CommandBus
) -> None:
    received: list[str] = []

    def started(task_result: Any, **_: Any) -> None:
        received.append(f"started {task_result.attempts}, {len(task_result.errors)} errors")

    def finished(task_result: Any, **_: Any) -> None:
        received.append(f"{task_result.status} after {task_result.attempts}")

    with receiving(task_started=started, task_finished=finished), running_tasks(dsn):
        ended(bus, tasks.fail_twice.enqueue("fails"))
    assert received == ["started 1, 0 errors", "started 2, 1 errors", "FAILED after 2"]


def test_an_error_is_being_handled_while_the_failure_is_announced(
    tasks: ModuleType, dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    handled: list[Any] = []

    def finished(**_: Any) -> None:
        handled.append(sys.exc_info()[1])

    with receiving(task_finished=finished), running_tasks(dsn):
        ended(bus, tasks.write.enqueue("succeeds"))
        ended(bus, tasks.write_and_fail.enqueue("fails", "BusinessRuleError"))
    assert [type(each).__name__ for each in handled] == ["NoneType", "BusinessRuleError"]
    from cmdbus.django.frameworks import NAME

    # The framework's own receiver logs it, with the traceback.
    lines = [each for each in caplog.records if each.name == NAME and each.levelno == logging.ERROR]
    assert [each.exc_info[0].__name__ for each in lines if each.exc_info and each.exc_info[0]] == [
        "BusinessRuleError"
    ]


def test_errors_of_receivers_are_logged_and_change_nothing(
    tasks: ModuleType, dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    from django.db import connection

    def fail_in_the_database(**_: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")

    def leave(**_: Any) -> None:
        raise SystemExit(3)

    for failing in (fail_in_the_database, leave):
        receivers = receiving(task_started=failing, task_finished=failing)
        with receivers, running_tasks(dsn):
            [result] = ended(bus, tasks.write.enqueue("written"))
        assert result.return_value["title"] == "written"
    logged = [each.exc_info[0] for each in caplog.records if each.exc_info]
    assert len(logged) == 4


def test_receivers_use_the_session_of_the_task_but_not_its_transaction(
    tasks: ModuleType, dsn: str, bus: CommandBus
) -> None:
    from django_project.blog.models import Article

    def note(signal: str) -> Receiver:
        def receiver(task_result: Any, **_: Any) -> None:
            Article.objects.create(title=f"{signal} {task_result.id}")
            tasks.seen.append(tasks.backend_pid())

        return receiver

    receivers = receiving(task_started=note("started"), task_finished=note("finished"))
    with receivers, running_tasks(dsn):
        [done] = ended(bus, tasks.write_and_call_back.enqueue("written"))
        [failed] = ended(bus, tasks.write_and_fail.enqueue("undone", "BusinessRuleError"))
    titles = {*Article.objects.values_list("title", flat=True)}
    assert titles == {"written"} | {
        f"{signal} {each.id}" for signal in ("started", "finished") for each in (done, failed)
    }
    assert len({each if isinstance(each, int) else each[2] for each in tasks.seen}) == 1
