"""Handlers that use Django's ORM: its connection is the session of `context.connection`."""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from handlers import ONCE, running
from queries import rows, scalar

from cmdbus import Command, CommandBus, CommandRecord, Context, HandlerRegistry, SendRequest

Function = Callable[[Command, Context], object]


def registry_of(*functions: Function, **options: Any) -> HandlerRegistry:
    """Handlers of the types "0", "1" ..."""
    registry = HandlerRegistry(django=True)
    for number, function in enumerate(functions):
        registry.register("shop", f"T{number}", function, **{"retry": ONCE, **options})
    return registry


def run_all(dsn: str, *functions: Function, **options: Any) -> list[CommandRecord]:
    """One after the other, in one thread."""
    with CommandBus(dsn) as bus, running(dsn, registry_of(*functions, **options), concurrency=1):
        return [
            bus.wait("shop", bus.send("shop", f"T{number}"), 10) for number in range(len(functions))
        ]


def run_one(dsn: str, function: Function, **options: Any) -> CommandRecord:
    [record] = run_all(dsn, function, **options)
    return record


def orders(dsn: str) -> list[str]:
    return [number for (number,) in rows(dsn, "SELECT number FROM shop_order ORDER BY number")]


def place(number: object) -> Any:
    from django_project.shop.models import Order

    return Order.objects.create(number=str(number), amount=Decimal("9.50"))


def test_what_a_handler_writes_through_models_commits_with_its_command(django_dsn: str) -> None:
    """On one session, which is also that of context.connection."""
    from django.db import connection

    def write(command: Command, context: Context) -> list[object]:
        order = place("A")
        place_in_sql = "INSERT INTO shop_order (number, amount, placed_at, charge_id) VALUES (%s)"
        context.connection.execute(place_in_sql.replace("%s", "'B', 1, now(), ''"))
        assert orders(django_dsn) == []
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid(), count(*) FROM shop_order")
            pid, count = cursor.fetchone()
        return [pid == context.connection.info.backend_pid, count, order.pk > 0]

    def fail(command: Command, context: Context) -> None:
        place("C")
        raise LookupError("no such thing")

    written, failed = run_all(django_dsn, write, fail)
    assert (written.status, written.result) == ("COMPLETED", [True, 2, True])
    assert failed.error_code == "LookupError"
    assert orders(django_dsn) == ["A", "B"]


def test_values_are_read_and_written_as_django_does(django_dsn: str) -> None:
    """JSON, decimals and aware times, whatever the session's time zone is: here that of Berlin."""
    from django_project.shop.models import Payment

    paid_at = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)

    def write(command: Command, context: Context) -> None:
        zone = scalar(context.connection, "SHOW TimeZone")
        order = place("A")
        Payment.objects.create(order=order, amount=1, paid_at=paid_at, details={"zone": [zone]})
        with suppress(ZeroDivisionError), context.connection.transaction():
            raise ZeroDivisionError
        found = Payment.objects.get(details__zone=["Europe/Berlin"])
        assert (found.paid_at, found.amount) == (paid_at, Decimal("1.00"))
        assert list(Payment.objects.filter(paid_at__lte=paid_at).iterator()) == [found]

    assert run_one(django_dsn, write).error_message is None


def test_a_time_zone_that_a_savepoint_has_undone_is_set_again(django_dsn: str) -> None:
    """Else times would be read wrongly."""
    from django_project.shop.models import Order

    def write(command: Command, context: Context) -> None:
        with suppress(ZeroDivisionError), context.connection.transaction():
            place("lost")  # Django's first use of the session
            raise ZeroDivisionError
        order = place("A")
        age = datetime.now(UTC) - Order.objects.get(pk=order.pk).placed_at
        assert abs(age.total_seconds()) < 1800

    assert run_one(django_dsn, write).error_message is None


def test_atomic_blocks_are_savepoints(django_dsn: str) -> None:
    from django.db import transaction

    def write(command: Command, context: Context) -> None:
        with transaction.atomic():
            place("A")
            with suppress(ZeroDivisionError), transaction.atomic():
                place("B")
                raise ZeroDivisionError
        with suppress(ZeroDivisionError), transaction.atomic():
            place("C")
            raise ZeroDivisionError
        place("D")

    assert run_one(django_dsn, write).status == "COMPLETED"
    assert orders(django_dsn) == ["A", "D"]


def uses_durable(command: Command, context: Context) -> None:
    from django.db import transaction

    with transaction.atomic(durable=True):
        place("A")


def uses(name: str, *arguments: object) -> Function:
    def use(command: Command, context: Context) -> None:
        from django.db import transaction

        place("A")
        getattr(transaction, name)(*arguments)

    return use


def swallows_an_error(command: Command, context: Context) -> None:
    from django.db import IntegrityError

    place("A")
    with suppress(IntegrityError):
        place("A")


def swallows_an_error_in_sql(command: Command, context: Context) -> None:
    from django.db import ProgrammingError, connection

    place("A")
    with suppress(ProgrammingError), connection.cursor() as cursor:
        cursor.execute("SELECT nonsense")


@pytest.mark.parametrize(
    ("function", "code", "message"),
    [
        (uses_durable, "RuntimeError", "leave durable out"),
        (uses("commit"), "InvalidOperationError", "commit() of Django's connection would end"),
        (uses("rollback"), "InvalidOperationError", "use a savepoint (with transaction.atomic())"),
        (uses("set_autocommit", True), "InvalidOperationError", "set_autocommit(True) of Django's"),
        (uses("set_rollback", True), "TRANSACTION_ABORTED", "marked Django's transaction"),
        (swallows_an_error, "TRANSACTION_ABORTED", "marked Django's transaction"),
        (swallows_an_error_in_sql, "TRANSACTION_ABORTED", "an error had aborted the transaction"),
    ],
)
def test_what_would_end_or_spoil_the_transaction_fails_the_command(
    django_dsn: str, function: Function, code: str, message: str
) -> None:
    record = run_one(django_dsn, function)
    assert record.error_code == code
    assert message in str(record.error_message)
    assert orders(django_dsn) == []


def closes(command: Command, context: Context) -> None:
    from django.db import close_old_connections, connection, connections

    place("A")
    connection.close()
    close_old_connections()
    connections.close_all()
    connection.close_if_unusable_or_obsolete()
    place("B")


def test_closing_it_leaves_the_session_and_the_transaction_open(django_dsn: str) -> None:
    from django.db import connections

    changed = {"CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": True}
    given = connections.settings["default"]
    connections.settings["default"] = {**given, **changed}
    assert run_one(django_dsn, closes).error_message is None
    assert orders(django_dsn) == ["A", "B"]


def note(called: list[object], what: object) -> None:
    """With what the database has, and its session."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid(), count(*) FROM shop_order")
        called.append((what, *cursor.fetchone(), connection.get_autocommit()))


def test_functions_of_on_commit_are_called_in_order_after_the_commit(
    django_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """On the same session, and what they write stays. An error of one is logged."""
    from django.db import transaction

    called: list[Any] = []

    def fail() -> None:
        called.append("fail")
        raise LookupError("no such receiver")

    def write(command: Command, context: Context) -> int:
        transaction.on_commit(partial(note, called, "first"))
        place("A")
        with suppress(ZeroDivisionError), transaction.atomic():
            transaction.on_commit(partial(note, called, "never"))
            raise ZeroDivisionError
        transaction.on_commit(fail, robust=True)
        transaction.on_commit(lambda: place("B"))
        transaction.on_commit(lambda: transaction.on_commit(partial(note, called, "at once")))
        transaction.on_commit(fail)
        transaction.on_commit(partial(note, called, "never"))
        called.append(orders(django_dsn))
        return context.connection.info.backend_pid

    def fails(command: Command, context: Context) -> None:
        transaction.on_commit(partial(note, called, "never"))
        place("C")
        raise LookupError("no such thing")

    written, _ = run_all(django_dsn, write, fails)
    pid = written.result
    assert called == [[], ("first", pid, 1, True), "fail", ("at once", pid, 2, True), "fail"]
    assert orders(django_dsn) == ["A", "B"]
    assert "and 1 more are not called" in caplog.text


def test_nothing_of_an_execution_is_left_to_the_next(django_dsn: str) -> None:
    from django.db import connection
    from django.utils import timezone, translation

    def state() -> list[object]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('TimeZone'), current_user, pg_backend_pid()")
            return [
                *cursor.fetchone(),
                translation.get_language(),
                timezone.get_current_timezone_name(),
                connection.in_atomic_block,
                len(connection.savepoint_ids),
            ]

    def leave(command: Command, context: Context) -> list[object]:
        found = state()
        translation.activate("de")
        timezone.activate("Asia/Tokyo")
        with connection.cursor() as cursor:
            cursor.execute("SET TimeZone = 'Asia/Tokyo'")
        return found

    first, second = run_all(django_dsn, leave, leave)
    assert first.status == "COMPLETED"
    assert first.result == second.result


def test_a_longer_deadline_outlasts_the_savepoint_in_which_it_was_asked_for(
    django_dsn: str,
) -> None:
    """The limits of statements follow it."""
    from django.db import connection, transaction

    def limit() -> str:
        with connection.cursor() as cursor:
            cursor.execute("SHOW statement_timeout")
            return str(cursor.fetchone()[0])

    def extend(command: Command, context: Context) -> list[str]:
        found = [limit()]
        with suppress(ZeroDivisionError), transaction.atomic():
            place("A")
            context.extend(1000)
            found.append(limit())
            raise ZeroDivisionError
        place("B")
        return [*found, limit()]

    before, inside, after = run_one(django_dsn, extend).result
    assert before != inside == after


def test_named_cursors_end_with_the_transaction(django_dsn: str) -> None:
    from django.db import connection
    from django_project.shop.models import Order

    def read(command: Command, context: Context) -> object:
        place("A")
        place("B")
        left_open = Order.objects.iterator(chunk_size=1)
        next(left_open)
        with connection.cursor() as cursor:
            cursor.execute("SELECT is_holdable FROM pg_cursors WHERE name LIKE '\\_django%'")
            return cursor.fetchall()

    assert run_one(django_dsn, read).result == [[False]]


def test_what_a_handler_sends_on_the_connection_commits_with_its_command(django_dsn: str) -> None:
    from django.db import connection, connections

    with CommandBus(django_dsn) as bus:

        def send(command: Command, context: Context) -> None:
            bus.send("mail", "Receipt", connection=connection)
            place(command.type)
            requests = [SendRequest("mail", "Receipt")] * 2
            bus.send_many(requests, connection=connections["default"])
            assert bus.snapshot("mail")["depth"] == {"T0": 0, "T1": 3}[command.type]
            if command.type == "T1":
                raise LookupError("no such thing")

        sent, failed = run_all(django_dsn, send, send)
        assert (sent.error_message, failed.error_code) == (None, "LookupError")
        assert bus.snapshot("mail")["depth"] == 3
    assert orders(django_dsn) == ["T0"]


def test_models_and_a_session_of_sqlalchemy_share_the_transaction(django_dsn: str) -> None:
    from sqlalchemy import text

    def write(command: Command, context: Context) -> list[object]:
        place("A")
        context.session.execute(text("UPDATE shop_order SET number = 'B'"))
        place("C")
        return [scalar(context.connection, "SELECT count(*) FROM shop_order WHERE number = 'B'")]

    assert run_one(django_dsn, write).result == [1]
    assert orders(django_dsn) == ["B", "C"]
