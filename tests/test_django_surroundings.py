"""What is around the handlers of a registry made with `django=True`, and what it needs."""

import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from django_support import fresh_connections
from eventually import eventually
from forks import result_of_child
from handlers import connect
from psycopg.adapt import Dumper
from test_django_lending import orders, place, run_all, run_one, swallows_an_error
from test_django_lent_sessions import database_options, pid_of, settings
from test_process_groups import COUNT, Watched, are_completed, moved, replied

from cmdbus import Command, CommandBus, Context, HandlerRegistry, Reply
from cmdbus.errors import InvalidOperationError


def test_a_registry_needs_the_settings_of_a_project() -> None:
    code = "from cmdbus import HandlerRegistry; HandlerRegistry(django=True)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    [*_, last] = done.stderr.splitlines()
    assert last == (
        "ValueError: HandlerRegistry(django=True) needs the settings of a project: set "
        "DJANGO_SETTINGS_MODULE to their module, as manage.py does"
    )


def test_its_database_must_be_postgresql(django_dsn: str) -> None:
    from django.core.exceptions import ImproperlyConfigured

    sqlite = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    refused = pytest.raises(ImproperlyConfigured, match="and that is SQLite: it must be the Postg")
    with settings(**sqlite), fresh_connections(), refused:
        HandlerRegistry(django=True)


def test_a_worker_of_another_database_lends_nothing(django_dsn: str) -> None:
    def use(command: Command, context: Context) -> None:
        with pytest.raises(InvalidOperationError) as refused:
            place("A")
        raise refused.value

    def use_none(command: Command, context: Context) -> None:
        pass

    with settings(NAME="postgres"):
        record, without = run_all(django_dsn, use, use_none)
    assert re.fullmatch(
        r"DATABASES\['default'\] is the database 'postgres', and the worker's is 'cmdbus_test\w+': "
        r"run the worker with .* the option using",
        str(record.error_message),
    )
    assert without.status == "COMPLETED"


def test_a_process_forgets_the_connections_that_it_has_inherited(django_dsn: str) -> None:
    """Without a word to the server: the other process goes on."""
    from django.db import connections

    registry, pid = HandlerRegistry(django=True), pid_of()

    def look() -> str:
        with registry.hooks.around():
            other = pid_of()
            connections.close_all()
            return str(other)

    assert int(result_of_child(look)) != pid
    with registry.hooks.around():
        assert pid_of() == pid  # The process that has made the registry.


class Shout(str):
    pass


class ShoutDumper(Dumper):
    def dump(self, obj: Any) -> bytes:
        return str(obj).upper().encode()


def engine_of(connected: list[int]) -> Any:
    """A module of a project that makes Django's connections."""
    from django.db.backends.postgresql import base

    class DatabaseWrapper(base.DatabaseWrapper):  # type: ignore[misc]
        def get_new_connection(self, conn_params: Any) -> Any:
            connection = super().get_new_connection(conn_params)
            connected.append(connection.info.backend_pid)
            connection.adapters.register_dumper(Shout, ShoutDumper)
            return connection

    return SimpleNamespace(DatabaseWrapper=DatabaseWrapper)


def test_an_engine_of_the_projects_own_does_with_the_session_what_it_does(
    django_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As PostGIS, which registers its types on each new connection."""
    connected: list[int] = []
    for name in ("own_engine", "own_engine.base"):
        monkeypatch.setitem(sys.modules, name, engine_of(connected))

    def use(command: Command, context: Context) -> int:
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute("SELECT %s::text", [Shout("abc")])
            assert cursor.fetchone() == ("ABC",)
        assert context.connection.execute("SELECT %s::text", ["abc"]).fetchone() == ("abc",)
        return context.connection.info.backend_pid

    with settings(ENGINE="own_engine"), fresh_connections():
        record = run_one(django_dsn, use)
    assert connected == [record.result]


def test_a_statement_that_a_migration_has_invalidated_charges_no_attempt(django_dsn: str) -> None:
    options = {**database_options(), "server_side_binding": True, "prepare_threshold": 0}
    attempts: list[int] = []

    def read(command: Command, context: Context) -> None:
        from django.db import connection

        attempts.append(context.attempt)
        with connection.cursor() as cursor:
            cursor.execute("SELECT * FROM shop_order WHERE number = %s", ["A"])

    def migrate(command: Command, context: Context) -> None:
        with connect(django_dsn) as other:
            other.execute("ALTER TABLE shop_order ADD COLUMN IF NOT EXISTS more text")

    with settings(OPTIONS=options):
        records = run_all(django_dsn, read, migrate, read)
    assert [record.status for record in records] == ["COMPLETED"] * 3
    assert attempts == [1, 1, 1]


class WithModels(Watched):
    """A manager that writes an order for each reply."""

    def update_state(self, state: Any, step: Any, reply: Reply) -> Any:
        place(f"{state.city} {step} {pid_of()}")
        return super().update_state(state, step, reply)


def test_managers_of_processes_use_models_in_the_transaction_of_their_group(
    django_dsn: str,
) -> None:
    def fail(calls: int) -> None:
        if calls < 3:
            raise LookupError("in the group, and by itself")

    surroundings = HandlerRegistry(django=True).django_surroundings
    with CommandBus(django_dsn) as bus:
        manager = WithModels(fail)
        with replied(django_dsn, bus, manager, surroundings) as ids:
            bus.resume("trips")
            eventually(lambda: moved(bus, ids))
            eventually(lambda: are_completed(bus, ids))
    placed = [order.split()[0] for order in orders(django_dsn)]
    assert sorted(placed) == sorted(["first", *map(str, range(COUNT))])


def test_what_watches_the_statements_of_a_connection_ends_with_the_handler(django_dsn: str) -> None:
    """Libraries add theirs to each new connection."""
    from django.db import connections
    from django.db.backends.signals import connection_created

    seen: list[int] = []

    def watched(command: Command, context: Context) -> None:
        place("A")

    def receive(connection: Any, **_: Any) -> None:
        connection.execute_wrappers.append(lambda execute, *rest: execute(*rest))
        seen.append(len(connection.execute_wrappers))

    connection_created.connect(receive)
    try:
        run_all(django_dsn, watched, watched)
    finally:
        connection_created.disconnect(receive)
    assert seen == [1, 1]
    assert connections["default"].execute_wrappers == []


def test_an_error_that_a_handler_ignores_is_in_the_log(
    django_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Where it has marked Django's transaction to be rolled back."""
    assert run_one(django_dsn, swallows_an_error).error_code == "TRANSACTION_ABORTED"
    assert "IntegrityError" in caplog.text
