"""Tasks of Django, run by a worker: what commits, what is undone, and what their results show."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from django.db import transaction
from eventually import eventually
from running_tasks import MODULE, ended, running_tasks, task_settings, tasks_setting

from cmdbus import CommandBus, HandlerRegistry
from cmdbus.testing import CommandTester


@pytest.fixture
def dsn(django_dsn: str) -> str:
    return django_dsn


@pytest.fixture
def tasks() -> Iterator[ModuleType]:
    """The module of tasks, with settings that name it."""
    with task_settings() as tasks:
        yield tasks


def titles() -> list[str]:
    """Of the articles that are committed."""
    from django_project.blog.models import Article

    return sorted(Article.objects.values_list("title", flat=True))


def test_what_tasks_write_commits_with_their_results(
    tasks: ModuleType, dsn: str, bus: CommandBus
) -> None:
    sent = [
        tasks.write.enqueue("plain", text="long"),
        tasks.write_async.enqueue("async"),
        tasks.write_and_enqueue.enqueue("first", fails=False),
        tasks.write.using(queue_name="mail").enqueue("in another queue"),
        tasks.write_and_call_back.enqueue("called back"),
    ]
    with running_tasks(dsn):
        plain, asynchronous, first, mail, called_back = ended(bus, *sent)
        eventually(lambda: "first, enqueued" in titles())
    assert plain.return_value == {"title": "plain", "pair": [1, 2]}
    assert asynchronous.return_value == "async"
    assert {each.status for each in (first, mail, called_back)} == {"SUCCESSFUL"}
    assert [len(each.worker_ids) for each in (plain, mail)] == [1, 1]
    # On the session of the task, once what it wrote was committed.
    [pid, committed] = tasks.seen
    assert committed == ("called back", 1, pid)
    assert len(titles()) == 5


def test_all_that_a_task_raises_is_its_failure_and_undoes_what_it_wrote(
    tasks: ModuleType, dsn: str, bus: CommandBus
) -> None:
    errors = ["LookupError", "BusinessRuleError", "SystemExit", "KeyboardInterrupt"]
    sent = [tasks.write_and_fail.enqueue("failed", error) for error in errors]
    sent += [tasks.write_async_and_fail.enqueue("failed", error) for error in errors]
    sent.append(tasks.write_and_enqueue.enqueue("failed", fails=True))
    with running_tasks(dsn):
        failed = ended(bus, *sent)
    assert {each.status for each in failed} == {"FAILED"}
    paths = [
        "builtins.LookupError",
        "cmdbus.errors.BusinessRuleError",
        "builtins.SystemExit",
        "builtins.KeyboardInterrupt",
    ]
    assert [path_of(each) for each in failed] == [*paths, *paths, "builtins.LookupError"]
    assert "raise _ERRORS[error]" in failed[0].errors[0].traceback  # with its source
    # A broken rule ends the task: nobody must decide.
    assert bus.troubleshooting.count() == len(sent) - 2
    assert titles() == [] == tasks.seen
    assert bus.query(type=f"{MODULE}.write") == []


def test_a_task_that_returns_what_is_no_json_fails_with_a_type_error_and_writes_nothing(
    tasks: ModuleType, dsn: str, bus: CommandBus
) -> None:
    returned = ["a set", "a time", "NaN", "NUL", "a key"]
    with running_tasks(dsn):
        failed = ended(
            bus, *[tasks.write_and_return.enqueue(f"returns {what}", what) for what in returned]
        )
    assert [path_of(each) for each in failed] == ["builtins.TypeError"] * len(returned)
    assert titles() == []


def test_a_task_with_attempts_is_ready_until_the_next_one_and_knows_its_attempt(
    dsn: str, bus: CommandBus
) -> None:
    path = f"{MODULE}.fail_twice"
    with task_settings(
        tasks_setting(tasks={path: {"max_attempts": 3, "backoff": [0.01]}})
    ) as tasks:
        sent = tasks.fail_twice.enqueue("kept")
        with running_tasks(dsn):
            [result] = ended(bus, sent)
    assert result.return_value == 3
    assert tasks.seen == [(1, 0, "RUNNING"), (2, 1, "RUNNING"), (3, 2, "RUNNING")]
    assert [each.traceback.splitlines()[-1] for each in result.errors] == [
        "LookupError: attempt 1",
        "LookupError: attempt 2",
    ]
    assert result.attempts == 3 and titles() == ["kept 3"]
    assert result.started_at < result.last_attempted_at < result.finished_at


def test_a_task_that_an_operator_retries_begins_anew_and_knows_its_errors(
    tasks: ModuleType, dsn: str, bus: CommandBus
) -> None:
    sent = tasks.fail_twice.enqueue("fails")
    with running_tasks(dsn):
        ended(bus, sent)
        bus.troubleshooting.retry("default", sent.id, operator="ann")
        ended(bus, sent)
    assert tasks.seen == [(1, 0, "RUNNING"), (1, 1, "RUNNING")]
    assert (sent.status, sent.attempts, len(sent.errors)) == ("FAILED", 1, 2)


def test_the_result_that_a_task_gets_is_the_one_that_others_read(
    tasks: ModuleType, dsn: str, bus: CommandBus
) -> None:
    sent = [tasks.compare_results, tasks.compare_results.using(queue_name="mail", priority=-5)]
    with running_tasks(dsn):
        results = ended(bus, *[task.enqueue() for task in sent])
    # Their clocks differ.
    assert [{*each.return_value} for each in results] == [{"started_at", "last_attempted_at"}] * 2


def test_a_task_waits_for_its_next_attempt_as_long_as_its_backoff_says(
    dsn: str, bus: CommandBus
) -> None:
    with task_settings(tasks_setting(max_attempts=2, backoff=[3000])) as tasks:
        sent = tasks.fail_twice.enqueue("waits")
        with running_tasks(dsn):
            eventually(lambda: bus.snapshot("default")["scheduled"] == 1)
        sent.refresh()
        record = bus.get("default", sent.id)
    assert (sent.status, len(sent.errors), sent.attempts) == ("READY", 1, 1)
    assert record is not None and record.due_at is not None
    wait = (record.due_at - sent.last_attempted_at).total_seconds()
    assert 2600 < wait < 3400


def test_a_task_without_a_transaction_keeps_what_it_wrote_before_it_failed(
    dsn: str, bus: CommandBus
) -> None:
    with task_settings(tasks_setting(atomic=False)) as tasks:
        sent = [
            tasks.write_and_fail.enqueue("kept", "LookupError"),
            tasks.write_and_call_back.enqueue("called back"),
        ]
        with running_tasks(dsn):
            failed, _ = ended(bus, *sent)
    assert failed.status == "FAILED"
    assert titles() == ["called back", "kept"]
    [committed, called_back, pid] = tasks.seen  # on_commit is called at once
    assert committed == "committed kept" and called_back == ("called back", 1, pid)


def test_a_hung_task_fails_with_a_timeout_and_writes_nothing(dsn: str, bus: CommandBus) -> None:
    with task_settings(tasks_setting(timeout=0.4)) as tasks:
        tasks.may_go_on.clear()
        sent = tasks.write_and_hang.enqueue("hangs")
        with running_tasks(dsn):
            [result] = ended(bus, sent)
            tasks.may_go_on.set()
    assert path_of(result) == "builtins.TimeoutError"
    assert titles() == []


def test_nothing_of_a_task_leaks_into_the_next_one(
    tasks: ModuleType, dsn: str, bus: CommandBus
) -> None:
    sent = [tasks.read_the_thread, tasks.change_the_thread, tasks.read_the_thread]
    with running_tasks(dsn):
        before, _, after = [ended(bus, task.enqueue())[0] for task in sent]
    assert before.return_value == after.return_value


def test_a_task_that_no_worker_knows_waits_for_one_that_does(dsn: str, bus: CommandBus) -> None:
    with task_settings(tasks_setting(())):
        command_id = bus.send("mail", f"{MODULE}.write", {"args": ["new"]})
        with running_tasks(dsn):
            known = bus.send("mail", "django_project.shop.tasks.count_mails")
            bus.wait("mail", known, 10)
        record = bus.get("mail", command_id)
        assert record is not None and record.status == "PENDING"
    with task_settings(), running_tasks(dsn):
        assert bus.wait("mail", command_id, 10).status == "COMPLETED"
    assert titles() == ["new"]


def test_tasks_run_inside_the_transaction_of_a_test(tasks: ModuleType, dsn: str) -> None:
    with transaction.atomic():
        done = tasks.write_and_call_back.enqueue("written")
        failed = tasks.write_and_fail.enqueue("undone", "LookupError")
        CommandTester().run_commands(HandlerRegistry(django=True), raises=False)
        done.refresh()
        failed.refresh()
        assert (done.status, failed.status) == ("SUCCESSFUL", "FAILED")
        assert titles() == ["written"]
        transaction.set_rollback(True)
    assert titles() == []


def test_a_command_whose_data_is_no_tasks_waits_in_troubleshooting(
    tasks: ModuleType, dsn: str, bus: CommandBus
) -> None:
    with running_tasks(dsn):
        command_id = bus.send("default", f"{MODULE}.write", {"args": "title"})
        record = bus.wait("default", command_id, 10)
    assert (record.error_code, record.attempts) == ("PAYLOAD_INVALID", 0)
    assert record.error_message == "args of a task must be a list, not 'title'"


def path_of(result: Any) -> str:
    """The class of its only error."""
    [error] = result.errors
    return str(error.exception_class_path)
