"""Tasks that are sent, through Django's connection and in its transaction."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings
from django.db import OperationalError, close_old_connections, connection, connections, transaction
from django.test.utils import override_settings
from django_support import database_of, set_up
from queries import rows, scalar
from roles import role
from wire import Wire

from cmdbus import (
    CommandBus,
    DuplicateCommandError,
    QueueFullError,
    SchemaError,
)
from cmdbus.errors import MissingRightError
from cmdbus.forwarding import forward

set_up()

from django_project.blog.tasks.counting import count_words  # noqa: E402
from django_project.shop.tasks import charge, confirm  # noqa: E402

from cmdbus.django.frameworks import (  # noqa: E402
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    task_backends,
    task_enqueued,
)

LATER = datetime.now(UTC).replace(microsecond=5) + timedelta(hours=1)
WARM = 10


def sent(dsn: str) -> list[tuple[Any, ...]]:
    return rows(dsn, "SELECT domain, type, priority, data FROM cmdbus.command ORDER BY created_at")


@contextmanager
def heard() -> Iterator[list[Any]]:
    """The results that receivers of task_enqueued get, with the sender."""
    found: list[Any] = []

    def receive(sender: type, task_result: Any, **kwargs: Any) -> None:
        found.append((sender, task_result))

    task_enqueued.connect(receive)
    try:
        yield found
    finally:
        task_enqueued.disconnect(receive)


def test_a_task_is_a_command(django_dsn: str) -> None:
    with heard() as results:
        result = confirm.enqueue(7)
    data = {"args": [7], "kwargs": {}, "priority": 10}
    assert sent(django_dsn) == [("mail", "django_project.shop.tasks.confirm", 4, data)]
    assert (result.status, result.args, result.kwargs) == (TaskResultStatus.READY, [7], {})
    assert (result.backend, result.attempts, result.errors) == ("default", 0, [])
    assert results == [(type(task_backends["default"]), result)]
    assert CommandBus(django_dsn).get("mail", result.id)


def test_a_task_that_a_handler_sends_gets_the_headers_that_are_passed_on(django_dsn: str) -> None:
    def enqueue() -> Any:
        forward({"tenant": "blue", "own": "stays"}, ["tenant"])
        return confirm.enqueue(7)

    result = copy_context().run(enqueue)
    command = CommandBus(django_dsn).get("mail", result.id)
    assert command is not None and command.headers == {"tenant": "blue"}


@pytest.mark.parametrize(
    "task",
    [
        charge,
        confirm.using(priority=-30),
        charge.using(run_after=LATER, queue_name="mail"),
        charge.using(key="Ann", expires=60),
        count_words,
    ],
    ids=["plain", "priority", "later", "key", "async"],
)
@pytest.mark.parametrize("zoned", [True, False])
def test_the_result_is_the_one_that_is_read_later(django_dsn: str, task: Any, zoned: bool) -> None:
    with override_settings(USE_TZ=zoned, TIME_ZONE="Asia/Tokyo"):
        before = datetime.now(UTC) if zoned else datetime.now(UTC) + timedelta(hours=9)
        result = task.enqueue((1, 2), order={"of": "Ann"})
        assert result == task.get_result(result.id)
        enqueued = result.enqueued_at.replace(tzinfo=None)
        assert abs(enqueued - before.replace(tzinfo=None)) < timedelta(seconds=10)


def test_a_naive_run_after_is_of_the_default_time_zone(django_dsn: str) -> None:
    with override_settings(USE_TZ=False, TIME_ZONE="Asia/Tokyo"):
        result = charge.using(run_after=datetime(2040, 1, 31, 9)).enqueue(1)
        assert result == charge.get_result(result.id)
    [(due,)] = rows(django_dsn, "SELECT due_at FROM cmdbus.command")
    assert due == datetime(2040, 1, 31, tzinfo=UTC)


def test_what_is_rolled_back_was_never_sent(django_dsn: str) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        lost = confirm.enqueue(1)
        assert confirm.get_result(lost.id) == lost
        raise ZeroDivisionError
    with transaction.atomic():
        kept = confirm.enqueue(2)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            confirm.enqueue(3)
            raise ZeroDivisionError
        assert sent(django_dsn) == []
    assert [data["args"] for *_, data in sent(django_dsn)] == [[2]]
    assert confirm.get_result(kept.id) == kept
    with pytest.raises(TaskResultDoesNotExist):
        confirm.get_result(lost.id)


def test_the_transaction_is_that_of_the_alias_using(
    django_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings, "other", connections.settings["default"])
    tasks = {"default": {**settings.TASKS["default"], "OPTIONS": {"using": "other"}}}
    with override_settings(TASKS=tasks), database_of(django_dsn, "other"):
        with transaction.atomic():
            confirm.enqueue(1)
            transaction.set_rollback(True)
        with transaction.atomic(using="other"):
            confirm.enqueue(2)
            transaction.set_rollback(True, using="other")
    assert [data["args"] for *_, data in sent(django_dsn)] == [[1]]


def test_a_broken_transaction_is_djangos_error(django_dsn: str) -> None:
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(transaction.TransactionManagementError):
            confirm.enqueue(1)


@pytest.mark.parametrize("atomic", [True, False], ids=["transaction", "autocommit"])
def test_sending_and_reading_are_one_round_trip_each(django_dsn: str, atomic: bool) -> None:
    with Wire(django_dsn) as wire, database_of(wire.dsn), heard():
        connection.ensure_connection()
        for _ in range(WARM):
            confirm.get_result(confirm.enqueue(7).id)
        with transaction.atomic() if atomic else heard():
            connection.cursor().execute("SELECT 1")
            wire.counts.clear()
            result = confirm.enqueue(7)
            assert wire.round_trips == 1
            confirm.get_result(result.id)
            assert wire.round_trips == 2


def test_a_task_is_sent_and_read_on_asyncio(django_dsn: str) -> None:
    async def main() -> None:
        result = await count_words.aenqueue(7)
        assert await count_words.aget_result(result.id) == result
        await result.arefresh()

    async_to_sync(main)()
    assert len(sent(django_dsn)) == 1


@pytest.mark.parametrize("argument", [{1}, float("nan"), "a\0b", {1: 2}, LATER])
def test_a_refused_argument_leaves_the_transaction_as_it_was(
    django_dsn: str, argument: object
) -> None:
    with transaction.atomic():
        with pytest.raises((TypeError, ValueError), match=r"args\[0\]"):
            confirm.enqueue(argument)
        confirm.enqueue(1)
    assert len(sent(django_dsn)) == 1


def test_a_full_queue_leaves_the_transaction_as_it_was(django_dsn: str) -> None:
    with CommandBus(django_dsn) as bus:
        bus.configure("mail", max_depth=1)
    with transaction.atomic(), heard() as results:
        confirm.enqueue(1)
        with pytest.raises(QueueFullError):
            confirm.enqueue(2)
        charge.enqueue(3)
    assert [data["args"] for *_, data in sent(django_dsn)] == [[1], [3]]
    assert len(results) == 2


def test_a_task_whose_type_is_limited_is_sent_and_read(django_dsn: str) -> None:
    with CommandBus(django_dsn) as bus:
        bus.limits.set("mail", confirm.module_path, concurrency=1, operator="Ann")
    result = confirm.enqueue(1)
    assert rows(django_dsn, "SELECT count(*) FROM cmdbus.limited") == [(1,)]
    assert confirm.get_result(result.id) == result


def test_a_dead_connection_is_djangos_error_and_its_next_request_gets_another_one(
    django_dsn: str,
) -> None:
    uses: list[Callable[[], object]] = [
        lambda: confirm.enqueue(1),
        lambda: confirm.get_result(str(uuid4())),
    ]
    for use in uses:
        connection.ensure_connection()
        pid = connection.connection.info.backend_pid
        rows(django_dsn, "SELECT pg_terminate_backend(%s, 5000)", pid)
        with pytest.raises(OperationalError):
            use()
        close_old_connections()
    assert confirm.get_result(confirm.enqueue(2).id).args == [2]
    assert len(sent(django_dsn)) == 1


def test_a_producer_may_send_tasks_and_not_read_them(django_dsn: str) -> None:
    with role(django_dsn, "producer") as producer:
        name = scalar(producer, "SELECT current_user")
        with connection.cursor() as cursor:
            cursor.execute(f"SET ROLE {name}")
        result = confirm.enqueue(1)
        assert result.enqueued_at is not None
        with pytest.raises(MissingRightError, match=f"cmdbus init --operator {name}"):
            confirm.get_result(result.id)
        connection.close()
    assert confirm.get_result(result.id) == result


def test_a_receivers_error_changes_nothing(
    django_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(**kwargs: Any) -> None:
        raise ZeroDivisionError

    task_enqueued.connect(fail)
    try:
        confirm.enqueue(1)
    finally:
        task_enqueued.disconnect(fail)
    assert len(sent(django_dsn)) == 1
    assert "ZeroDivisionError" in caplog.text


def test_a_unique_task_is_there_once(django_dsn: str) -> None:
    with transaction.atomic(), heard() as results:
        first = confirm.using(unique="7").enqueue(7)
        with pytest.raises(DuplicateCommandError):
            confirm.using(unique="7").enqueue(8)
        assert confirm.using(unique="7", on_conflict="existing").enqueue(9) == first
        last = confirm.using(unique="7", on_conflict="replace").enqueue(10)
    assert [result for _, result in results] == [first, last]
    assert confirm.get_result(first.id).status == TaskResultStatus.FAILED
    assert confirm.get_result(last.id) == last


def test_options_of_sends_are_in_the_command(django_dsn: str) -> None:
    confirm.using(key="Ann", expires=timedelta(hours=1)).enqueue(7)
    query = "SELECT key, round(extract(epoch FROM expires_at - created_at)) FROM cmdbus.command"
    assert rows(django_dsn, query) == [("Ann", 3600)]


def test_using_takes_no_other_option(django_dsn: str) -> None:
    with pytest.raises(TypeError, match="'keys': there are priority, queue_name"):
        confirm.using(keys="Ann")


def test_a_task_may_be_sent_with_sql(django_dsn: str) -> None:
    name = "django_project.shop.tasks.confirm"
    [(id_,)] = rows(django_dsn, "SELECT cmdbus.send('mail', %s, '{\"args\": [7]}')", name)
    result = confirm.get_result(id_)
    assert (result.id, result.args, result.kwargs) == (str(id_), [7], {})
    assert result.task == confirm.using(priority=0)


@pytest.mark.parametrize("data", ["{}", '{"backend": "default"}', '{"backend": "gone"}'])
def test_a_task_is_in_no_backend_that_is_not_cmdbuss(django_dsn: str, data: str) -> None:
    dummy = "django_tasks" if "django_tasks" in settings.INSTALLED_APPS else "django.tasks"
    dummy += ".backends.dummy.DummyBackend"
    tasks = {"bus": settings.TASKS["default"], "default": {"BACKEND": dummy}}
    [(id_,)] = rows(django_dsn, "SELECT cmdbus.send('default', %s, %s)", charge.module_path, data)
    with override_settings(TASKS=tasks):
        result = task_backends["bus"].get_result(str(id_))
        assert (result.backend, result.task.backend) == ("bus", "bus")


@pytest.mark.parametrize(
    ("domain", "type_", "data"),
    [
        ("default", "Debit", "{}"),
        ("default", "django_project.shop.tasks.charge", "[1]"),
        ("other", "django_project.shop.tasks.charge", "{}"),
    ],
    ids=["a type of its own", "data of its own", "another queue"],
)
def test_a_command_that_is_no_task_has_no_result(
    django_dsn: str, domain: str, type_: str, data: str
) -> None:
    [(id_,)] = rows(django_dsn, "SELECT cmdbus.send(%s, %s, %s)", domain, type_, data)
    with pytest.raises(TaskResultDoesNotExist, match=str(id_)):
        charge.get_result(str(id_))


@pytest.mark.parametrize("id_", ["7", "", "00000000-0000-0000-0000-000000000000", None])
def test_an_unknown_id_has_no_result(django_dsn: str, id_: str) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        charge.get_result(id_)


def test_another_tasks_result_is_a_mismatch(django_dsn: str) -> None:
    result = confirm.enqueue(1)
    with pytest.raises(TaskResultMismatch):
        charge.get_result(result.id)


def test_the_schema_is_that_of_the_options(django_dsn: str) -> None:
    tasks = {"default": {**settings.TASKS["default"], "OPTIONS": {"schema": "other"}}}
    missing = pytest.raises(SchemaError, match="schema 'other' is not installed in database")
    with override_settings(TASKS=tasks), missing:
        confirm.enqueue(1)
