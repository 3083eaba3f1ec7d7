"""cmdbus.testing in the tests of a Django project."""

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import override_settings
from django_support import database_settings, set_up
from queries import rows

from cmdbus import BusinessRuleError, Command, CommandBus, Context, HandlerRegistry
from cmdbus.testing import CommandTester

set_up()

registry = HandlerRegistry()


@registry.handler("shop", "Greet")
def greet(command: Command, context: Context) -> Any:
    query = "INSERT INTO effect (command_id) VALUES (%s) RETURNING '{\"a\": 1}'::jsonb"
    [returned] = context.connection.execute(query, [command.command_id]).fetchone() or [None]
    return returned


@pytest.fixture
def bus(django_dsn: str) -> Iterator[CommandBus]:
    with CommandBus(django_dsn) as bus:
        yield bus


def effects(dsn: str) -> int:
    return len(rows(dsn, "SELECT FROM effect"))


def test_commands_run_in_the_transaction_of_a_test(django_dsn: str, bus: CommandBus) -> None:
    """And handlers read values as a worker's do, whatever Django's models need."""
    with transaction.atomic():
        bus.send("shop", "Greet", connection=connection.connection)
        tester = CommandTester()
        [done] = tester.run_commands(registry)
        assert done.result == {"a": 1}
        tester.sent("shop", "Greet", count=1)
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM effect")
            assert cursor.fetchone() == (1,)
        transaction.set_rollback(True)
    assert effects(django_dsn) == 0
    assert rows(django_dsn, "SELECT FROM cmdbus.command") == []


def orm_registry(called: list[str]) -> HandlerRegistry:
    """Of handlers that write by a model, one of which fails after that."""
    from django_project.shop.models import Order

    made = HandlerRegistry(django=True)

    def write(command: Command, context: Context) -> None:
        with transaction.atomic():
            Order.objects.create(number=command.type, amount=1)
        transaction.on_commit(partial(called.append, command.type))
        if command.type == "Fail":
            raise BusinessRuleError("REFUSED", "no")

    for name in ("Place", "Fail"):
        made.register("shop", name, write)
    return made


def test_handlers_write_by_models_in_the_transaction_of_a_test(
    django_dsn: str, bus: CommandBus
) -> None:
    """Each in a savepoint, before what the test itself writes then."""
    from django_project.shop.models import Order

    called: list[str] = []
    with transaction.atomic():
        for name in ("Fail", "Place"):
            bus.send("shop", name, connection=connection)
        done = CommandTester().run_commands(orm_registry(called), raises=False)
        assert [each.outcome for each in done] == ["FAILED", "COMPLETED"]
        Order.objects.create(number="own", amount=1)
        assert sorted(Order.objects.values_list("number", flat=True)) == ["Place", "own"]
        transaction.set_rollback(True)
    assert called == ["Place"]
    assert rows(django_dsn, "SELECT FROM shop_order") == []


def test_handlers_write_by_models_where_each_command_commits(
    django_dsn: str, bus: CommandBus
) -> None:
    called: list[str] = []
    bus.send("shop", "Fail")
    bus.send("shop", "Place")
    CommandTester().run_commands(orm_registry(called), raises=False)
    assert rows(django_dsn, "SELECT number FROM shop_order") == [("Place",)]
    assert called == ["Place"]


def test_without_a_transaction_each_command_commits(django_dsn: str, bus: CommandBus) -> None:
    bus.send("shop", "Greet")
    CommandTester().run_commands(registry)
    assert effects(django_dsn) == 1


def test_a_tester_with_a_dsn_is_not_djangos(django_dsn: str, bus: CommandBus) -> None:
    with transaction.atomic():
        bus.send("shop", "Greet")
        CommandTester(django_dsn).run_commands(registry)
        transaction.set_rollback(True)
    assert effects(django_dsn) == 1


def test_the_schema_is_that_of_the_backend() -> None:
    tasks = {
        "default": {
            "BACKEND": "cmdbus.django.CommandBusBackend",
            "OPTIONS": {"schema": "orders"},
        }
    }
    with override_settings(TASKS=tasks):
        assert CommandTester()._executor.schema == "orders"
        assert CommandTester(schema="other")._executor.schema == "other"


SETTINGS = """
import os
SECRET_KEY = "x"
INSTALLED_APPS = ["cmdbus.django", "notes"]
DATABASES = {"default": %r}
TASKS = {}
"""
MODELS = """
from django.db import models

class Note(models.Model):
    text = models.TextField()
"""
HANDLERS = """
from cmdbus import HandlerRegistry

registry = HandlerRegistry()

@registry.handler("notes", "Add")
def add(command, context):
    context.connection.execute("INSERT INTO notes_note (text) VALUES (%s)", [command.data])
"""
PROJECTS_TESTS = """
import pytest
from cmdbus import CommandBus
from cmdbus.testing import CommandTester
from django.db import connection
from django.test import TestCase, TransactionTestCase
from notes.handlers import registry
from notes.models import Note


class InTheTestsTransaction(TestCase):
    def test_it(self):
        tester = CommandTester()
        assert tester._project.open_session() is connection.connection
        bus = CommandBus(tester._project.dsn())
        bus.send("notes", "Add", "a", connection=connection.connection)
        tester.run_commands(registry)
        assert Note.objects.get().text == "a"


class Committing(TransactionTestCase):
    def send(self):
        tester = CommandTester()
        with CommandBus(tester._project.dsn()) as bus:
            bus.send("notes", "Add", "b")
        assert len(tester.sent()) == 1
        tester.run_commands(registry)
        assert Note.objects.get().text == "b"

    def test_one(self):
        self.send()

    def test_another(self):
        self.send()
"""
WITH_FIXTURES = """

@pytest.mark.django_db
@pytest.mark.parametrize("text", ["c", "d"])
def test_with_fixtures(text, bus, run_commands, sent):
    bus.send("notes", "Add", text, connection=connection.connection)
    run_commands(registry)
    sent("notes", "Add", text, count=1)
    assert Note.objects.get().text == text


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("text", ["e", "f"])
def test_with_fixtures_that_commit(text, bus, run_commands, sent):
    bus.send("notes", "Add", text)
    run_commands(registry)
    assert len(sent()) == 1
    assert Note.objects.get().text == text
"""


@pytest.fixture
def project(empty_dsn: str, tmp_path: Path) -> Iterator[Path]:
    """Whose tests make a database beside this one."""
    server = database_settings(empty_dsn)
    server["TEST"] = {"NAME": f"{server['NAME']}_of_project"}  # as databases of this run begin
    (tmp_path / "conf.py").write_text(SETTINGS % server)
    app = tmp_path / "notes"
    app.mkdir()
    for name, text in [("__init__", ""), ("models", MODELS), ("handlers", HANDLERS)]:
        (app / f"{name}.py").write_text(text)
    yield tmp_path


def run_tests(project: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "conf", "PYTHONPATH": str(project)},
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.process
def test_pytest_django_runs_commands_in_its_test_database(project: Path) -> None:
    """In the tests' transactions, with the fixtures of cmdbus and without, and nothing is left."""
    (project / "test_notes.py").write_text(PROJECTS_TESTS + WITH_FIXTURES)
    assert "7 passed" in run_tests(project, "pytest", "-q", "-p", "no:cacheprovider")


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("arguments", [(), ("--parallel", "2")])
def test_djangos_runner_runs_commands_in_its_test_databases(
    project: Path, arguments: tuple[str, ...]
) -> None:
    (project / "notes" / "tests.py").write_text(PROJECTS_TESTS)
    assert "Ran 3 tests" in run_tests(project, "django", "test", *arguments)
