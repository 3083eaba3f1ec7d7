"""`manage.py migrate` and the test runner: the schema of cmdbus in the database of a project."""

from collections.abc import Iterator
from io import StringIO
from uuid import uuid4

import psycopg
import pytest
from django.core.management import call_command
from django.core.management.base import CommandError, OutputWrapper
from django.core.management.sql import emit_pre_migrate_signal
from django.db import connections
from django.test.utils import (
    override_settings,
    setup_test_environment,
    teardown_test_environment,
)
from django_support import database_of, set_up
from psycopg import sql
from psycopg.conninfo import make_conninfo
from queries import rows

from cmdbus import CommandBus
from cmdbus.database.schema import install

set_up()

TASKS = {
    "default": {
        "BACKEND": "cmdbus.django.CommandBusBackend",
        "OPTIONS": {"using": "default", "schema": "orders"},
    }
}


def migrate(**options: object) -> str:
    output = StringIO()
    call_command("migrate", stdout=output, no_color=True, **options)
    return output.getvalue()


def beginning_of_migrate(verbosity: int = 1, using: str = "default") -> str:
    """The signal that it sends before it makes the tables of the project, which takes longer."""
    output = OutputWrapper(StringIO())
    emit_pre_migrate_signal(verbosity, False, using, stdout=output, plan=[])
    return str(output._out.getvalue())


def schemas(dsn: str) -> list[str]:
    query = "SELECT nspname FROM pg_namespace WHERE nspname IN ('cmdbus', 'orders') ORDER BY 1"
    return [name for (name,) in rows(dsn, query)]


@pytest.fixture
def project(empty_dsn: str) -> Iterator[str]:
    with database_of(empty_dsn):
        yield empty_dsn


@pytest.fixture
def poor_role(project: str) -> Iterator[str]:
    """The role that the project assumes: it may make tables, and no schema."""
    name = f"cmdbus_test_poor_{uuid4().hex[:8]}"
    role = sql.Identifier(name)
    with psycopg.connect(project, autocommit=True) as admin:
        for line in ("CREATE ROLE {}", "GRANT ALL ON SCHEMA public TO {}"):
            admin.execute(sql.SQL(line).format(role))
        connections.settings["default"]["OPTIONS"]["assume_role"] = name
        yield name
        admin.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(role))


def grant(dsn: str, role: str, *rights: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as admin:
        for right in rights:
            admin.execute(f'GRANT {right} TO "{role}"'.encode())


def test_migrate_installs_the_schema_once_and_says_so(project: str) -> None:
    assert "schema cmdbus installed, version" in (output := migrate())
    assert output.count("cmdbus: ") == 1
    assert output.index("cmdbus: ") < output.index("Running migrations:")  # which may send commands
    assert "cmdbus: " not in beginning_of_migrate()
    assert "schema cmdbus up to date" in beginning_of_migrate(verbosity=2)
    with CommandBus(project) as bus:
        assert bus.send("mail", "Hello")


def test_the_plan_of_migrate_installs_nothing(project: str) -> None:
    migrate(plan=True)
    assert schemas(project) == []


def test_the_schema_is_the_one_of_the_backends_options(project: str) -> None:
    with override_settings(TASKS=TASKS):
        beginning_of_migrate()
    assert schemas(project) == ["orders"]


def test_only_the_database_of_a_backend_gets_its_schema(
    project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings, "other", connections.settings["default"])
    tasks = {"default": {**TASKS["default"], "OPTIONS": {"using": "other"}}}
    with override_settings(TASKS=tasks):
        assert beginning_of_migrate() == ""
        assert schemas(project) == []
        assert "schema cmdbus installed" in beginning_of_migrate(using="other")
    del connections["other"]


def test_tables_without_migrations_change_nothing(project: str) -> None:
    with override_settings(MIGRATION_MODULES=dict.fromkeys(["shop", "blog", "cmdbus"])):
        assert migrate(run_syncdb=True, verbosity=0) == ""
    assert schemas(project) == ["cmdbus"]


def test_a_role_that_may_make_no_schema_is_told_what_to_do(poor_role: str) -> None:
    with pytest.raises(CommandError, match="GRANT CREATE ON DATABASE") as caught:
        beginning_of_migrate()
    assert poor_role in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_role_that_owns_nothing_migrates_where_the_schema_is_current(
    project: str, poor_role: str
) -> None:
    install(project)
    grant(project, poor_role, "USAGE ON SCHEMA cmdbus", "SELECT ON cmdbus.migration")
    assert "schema cmdbus up to date" in beginning_of_migrate(verbosity=2)


def test_the_role_that_the_project_assumes_owns_the_schema(project: str, poor_role: str) -> None:
    grant(
        project, poor_role, f'CREATE ON DATABASE "{connections["default"].settings_dict["NAME"]}"'
    )
    beginning_of_migrate()
    owner = "SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'cmdbus'"
    assert rows(project, owner) == [(poor_role,)]


@pytest.mark.parametrize("in_tests", [True, False])
def test_flush_deletes_commands_in_tests_and_nowhere_else(project: str, in_tests: bool) -> None:
    """Other programs send `post_migrate`, too, and nothing says that they have flushed."""
    migrate(verbosity=0)  # with no table of models, `flush` does nothing
    with CommandBus(project) as bus:
        bus.send("mail", "Hello")
    if in_tests:
        setup_test_environment()
    try:
        call_command("flush", interactive=False, verbosity=0)
    finally:
        if in_tests:
            teardown_test_environment()
    assert rows(project, "SELECT count(*) FROM cmdbus.command") == [(0 if in_tests else 1,)]


@pytest.mark.long
def test_a_test_database_has_the_schema_and_so_have_its_clones(project: str) -> None:
    from django.db import connection

    creation = connection.creation
    connection.settings_dict["TEST"] = {"NAME": f"{connection.settings_dict['NAME']}_t"}
    connection.settings_dict["TEST"].update(MIGRATE=True, TEMPLATE=None, CHARSET=None)
    given = connection.settings_dict["NAME"]
    creation.create_test_db(verbosity=0, autoclobber=True)
    try:
        creation.clone_test_db(suffix="1", verbosity=0, autoclobber=True)
        for suffix in ("", "_1"):
            assert schemas(make_conninfo(project, dbname=f"{given}_t{suffix}")) == ["cmdbus"]
    finally:
        creation.destroy_test_db(verbosity=0, suffix="1")
        creation.destroy_test_db(given, verbosity=0)
