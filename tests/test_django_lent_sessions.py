"""Which sessions the handlers of a Django project use, whatever its settings, and what becomes of
these sessions."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from django_support import fresh_connections
from eventually import eventually
from forks import result_of_child
from handlers import SOON, connect
from queries import rows, scalar
from test_django_lending import note, orders, place, run_all, run_one

from cmdbus import Command, Context
from cmdbus.django.lending import lent

#: Those that are neither a worker's nor a bus's.
SESSIONS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
        AND backend_type = 'client backend' AND application_name NOT LIKE 'cmdbus%'"""


@contextmanager
def settings(alias: str = "default", **changed: Any) -> Iterator[None]:
    """Of the database, or of another alias to the same one."""
    from django.db import connections

    given = connections.settings.get(alias)
    connections.settings[alias] = {**connections.settings["default"], **changed}
    try:
        yield
    finally:
        with fresh_connections():
            if given is None:
                del connections.settings[alias]
            else:
                connections.settings[alias] = given


def pid_of(alias: str = "default") -> int:
    from django.db import connections

    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


@pytest.mark.parametrize(
    "changed",
    [
        {"OPTIONS": {"pool": True}},
        {"OPTIONS": {"server_side_binding": True, "prepare_threshold": 0}},
        {"OPTIONS": {"isolation_level": 4}, "TIME_ZONE": "Asia/Tokyo"},
        {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True, "AUTOCOMMIT": False},
    ],
    ids=str,
)
def test_a_worker_opens_no_session_for_django(django_dsn: str, changed: dict[str, Any]) -> None:
    """And Django's settings of its own connections do no harm."""
    from django.db import transaction
    from django_project.shop.models import Order

    counts: list[object] = []

    def count_sessions() -> None:
        counts.append(scalar(observer, SESSIONS))

    def use(command: Command, context: Context) -> int:
        transaction.on_commit(count_sessions)
        transaction.on_commit(lambda: note(counts, "same"))
        with transaction.atomic():
            place("A")
        assert [each.number for each in Order.objects.iterator()] == ["A"]
        assert Order.objects.get(number="A").placed_at.tzinfo is not None
        count_sessions()
        return pid_of()

    options = {**database_options(), **changed.get("OPTIONS", {})}
    with settings(**{**changed, "OPTIONS": options}), connect(django_dsn) as observer:
        record = run_one(django_dsn, use)
    assert counts == [0, 0, ("same", record.result, 1, True)]


def database_options() -> dict[str, Any]:
    from django.db import connections

    return dict(connections.settings["default"]["OPTIONS"])


@pytest.mark.parametrize("swallows", [True, pytest.param(False, marks=pytest.mark.long)])
def test_an_outage_charges_no_attempt(django_dsn: str, swallows: bool) -> None:
    """Django's error is made of that of the driver."""
    from django.db import OperationalError

    attempts: list[object] = []

    def lose(command: Command, context: Context) -> None:
        attempts.append(context.attempt)
        place("A")
        if len(attempts) == 1:
            with connect(django_dsn) as other:
                other.execute("SELECT pg_terminate_backend(%s)", [pid_of()])
            with suppress(OperationalError):
                place("B")
            if not swallows:
                place("C")

    record = run_one(django_dsn, lose, retry=SOON)
    assert (record.status, attempts) == ("COMPLETED", [1, 1])
    assert orders(django_dsn) == ["A"]


def test_asynchronous_calls_of_the_orm_are_in_the_transaction(django_dsn: str) -> None:
    from asgiref.sync import async_to_sync
    from django_project.shop.models import Order

    async def place_later() -> int:
        await Order.objects.acreate(number="A", amount=1)
        await asyncio.sleep(0)
        return int(await Order.objects.acount())

    def write(command: Command, context: Context) -> list[int]:
        place("B")
        return [async_to_sync(place_later)(), len(orders(django_dsn))]

    assert run_one(django_dsn, write).result == [2, 0]
    assert orders(django_dsn) == ["A", "B"]


def test_another_thread_of_the_handler_has_a_session_of_its_own(django_dsn: str) -> None:
    from django.db import connection

    def elsewhere(found: list[object]) -> None:
        place("of the thread")
        found.append(pid_of())
        connection.close()

    def write(command: Command, context: Context) -> None:
        place("A")
        found: list[object] = []
        thread = threading.Thread(target=elsewhere, args=(found,))
        thread.start()
        thread.join()
        assert pid_of() not in found
        raise LookupError("undoes only what is in the transaction")

    assert run_one(django_dsn, write).error_code == "LookupError"
    assert orders(django_dsn) == ["of the thread"]


@pytest.mark.parametrize("closes", [False, True])
def test_a_forked_process_opens_a_connection_of_its_own(django_dsn: str, closes: bool) -> None:
    """Once it has closed the one that it has inherited, or if that was not open yet."""
    from django.db import connections

    def in_child() -> str:
        try:
            connections.close_all()
            pid = pid_of()
            connections.close_all()
            return str(pid)
        except BaseException as error:
            return repr(error)

    def fork(command: Command, context: Context) -> list[object]:
        if closes:
            place("A")
        child = result_of_child(in_child)
        place("B")
        return [child, pid_of()]

    child, pid = run_one(django_dsn, fork).result
    assert int(child) != pid
    assert "B" in orders(django_dsn)


@pytest.mark.parametrize("later", [False, True])
def test_a_forked_process_that_returns_ends_in_good_order(django_dsn: str, later: bool) -> None:
    """From the handler, or from a function of on_commit."""
    from django.db import connections, transaction

    codes: list[int] = []

    def fork() -> None:
        place("parent")
        if (pid := os.fork()) == 0:
            connections.close_all()
            place("child")
        else:
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def handle(command: Command, context: Context) -> None:
        if later:
            transaction.on_commit(fork)
        else:
            fork()

    assert run_one(django_dsn, handle).status == "COMPLETED"
    eventually(lambda: codes == [0])
    assert orders(django_dsn) == ["child", "parent"]


def test_the_role_of_the_settings_ends_before_the_settlement(django_dsn: str) -> None:
    role = f'django "{os.getpid()}"'
    quoted = '"' + role.replace('"', '""') + '"'
    options = {**database_options(), "assume_role": role}
    with connect(django_dsn) as connection:
        connection.execute(f"CREATE ROLE {quoted}; GRANT USAGE ON SCHEMA cmdbus TO {quoted}")
        name = connection.info.dbname  # Its tables are in the schema that is named after the user.
        connection.execute(f"ALTER DATABASE {name} SET search_path = cmdbus, public")
        connection.execute(f"GRANT ALL ON shop_order TO {quoted}")
        connection.execute(f"GRANT ALL ON SEQUENCE shop_order_id_seq TO {quoted}")
        try:
            with settings(OPTIONS=options):
                written, after = run_all(django_dsn, place_as, lambda _, context: user_of(context))
        finally:
            connection.execute(f"DROP OWNED BY {quoted}; DROP ROLE {quoted}")
    assert (written.error_message, written.result) == (None, role)
    assert after.result != role
    assert orders(django_dsn) == ["A"]


def place_as(command: Command, context: Context) -> str:
    place("A")
    return user_of(context)


def user_of(context: Context) -> str:
    return str(scalar(context.connection, "SELECT current_user"))


def test_a_wrapper_that_was_kept_is_of_no_use_to_a_later_command(django_dsn: str) -> None:
    from django.db import connections

    kept: list[Any] = []

    def keep(command: Command, context: Context) -> None:
        place("A")
        kept.append(connections["default"])
        kept.append(kept[0].cursor())

    def use(command: Command, context: Context) -> list[str]:
        place("B")
        errors = []
        uses: list[Callable[[], object]] = [lambda: kept[1].execute("SELECT 1"), kept[0].cursor]
        for each in uses:
            try:
                each()
            except Exception as error:
                errors.append(str(error))
        return errors

    _, used = run_all(django_dsn, keep, use)
    assert len(used.result) == 2
    assert all("after the handler returned" in each for each in used.result)
    assert orders(django_dsn) == ["A", "B"]


def test_receivers_see_each_connection_that_is_lent(django_dsn: str) -> None:
    """As django.contrib.postgres does, they may register adapters on it."""
    from django.db import connections
    from django.db.backends.signals import connection_created

    seen: list[Any] = []

    def receive(sender: Any, connection: Any, **_: Any) -> None:
        seen.append((sender.__name__, connection.alias, connection.connection is not None))

    connection_created.connect(receive)
    try:
        run_all(django_dsn, note_only, note_only)
    finally:
        connection_created.disconnect(receive)
    assert seen == [("DatabaseWrapper", "default", True)] * 2
    assert connections["default"].connection is None


def note_only(command: Command, context: Context) -> None:
    note([], command.type)


def test_other_aliases_are_closed_around_each_handler(django_dsn: str) -> None:
    """With what they have not committed. They are sessions of their own."""
    from django.db import connections, transaction

    pids: list[int] = []

    def use(command: Command, context: Context) -> bool:
        assert not connections["other"].in_atomic_block
        pids.append(pid_of("other"))
        transaction.set_autocommit(True, using="other")
        block = transaction.atomic(using="other")
        block.__enter__()
        with connections["other"].cursor() as cursor:
            cursor.execute("INSERT INTO effect VALUES (gen_random_uuid(), 1)")
        return pids[-1] != pid_of()

    with settings("other"):
        records = run_all(django_dsn, use, use)
        assert [record.result for record in records] == [True, True]
    assert len(set(pids)) == 2
    assert rows(django_dsn, "SELECT FROM effect") == []


def test_in_autocommit_mode_what_is_written_stays(django_dsn: str) -> None:
    """Functions of on_commit are called when their own block commits; a close rolls back."""
    from django.db import connection, transaction

    called: list[Any] = []

    def write(command: Command, context: Context) -> None:
        with lent(context, "default", atomic=False):
            with lent(context, "default", atomic=False):
                place("A")
            with suppress(ZeroDivisionError), transaction.atomic():
                place("B")
                raise ZeroDivisionError
            with transaction.atomic(durable=True):
                place("C")
                transaction.on_commit(lambda: called.append(orders(django_dsn)))
            transaction.set_autocommit(False)
            place("D")
            connection.close()
            place("E")
            with connection.cursor() as cursor:
                cursor.execute("SET application_name = 'mine'")
        assert scalar(context.connection, "SHOW application_name") != "mine"
        place("F")
        raise LookupError("no such thing")

    assert run_one(django_dsn, write).error_code == "LookupError"
    assert called == [["A", "C"]]
    assert orders(django_dsn) == ["A", "C", "E"]
