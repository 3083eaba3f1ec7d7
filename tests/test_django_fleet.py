"""`manage.py cmdbus`: a fleet on the database of a project's settings."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli import supervise
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.test.utils import override_settings
from django_support import APPS, database_settings, fresh_connections, set_up
from fleet import Fleet
from psycopg.conninfo import conninfo_to_dict

from cmdbus import CommandBus
from cmdbus.django.buses import Bus, bus_in, bus_of_process
from cmdbus.django.dsn import dsn_of
from cmdbus.django.fleet import fleet_environment
from cmdbus.exits import Exit

set_up()

POSTGRESQL = "django.db.backends.postgresql"
MANAGE = APPS / "django_project" / "manage.py"


def entry(**given: Any) -> dict[str, Any]:
    return {"ENGINE": POSTGRESQL, "NAME": "shop", **given}


@contextmanager
def database(**given: Any) -> Iterator[None]:
    """The settings of the database `default`, to which nothing connects."""
    before = connections.settings["default"]
    connections.settings["default"] = connections.configure_settings({"default": entry(**given)})[
        "default"
    ]
    try:
        with fresh_connections():
            yield
    finally:
        connections.settings["default"] = before


def parts_of(**given: Any) -> dict[str, Any]:
    with database(**given):
        return conninfo_to_dict(dsn_of("default"))


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({}, {}),
        ({"HOST": "", "PORT": "", "USER": "", "PASSWORD": ""}, {}),
        (
            {"HOST": "db.example", "PORT": 6432, "USER": "web", "PASSWORD": "a'b \\@/?#c"},
            {"host": "db.example", "port": "6432", "user": "web", "password": "a'b \\@/?#c"},
        ),
        ({"HOST": "/run/postgresql"}, {"host": "/run/postgresql"}),
        (
            {"OPTIONS": {"sslmode": "require", "connect_timeout": 3, "passfile": "/etc/pass"}},
            {"sslmode": "require", "connect_timeout": "3", "passfile": "/etc/pass"},
        ),
        ({"OPTIONS": {"pool": {"min_size": 2}, "server_side_binding": True}}, {}),
        ({"OPTIONS": {"isolation_level": 4, "prepare_threshold": 5}}, {}),
        (
            {"OPTIONS": {"options": "-c search_path=shop", "assume_role": "the owner"}},
            {"options": "-c search_path=shop -c role=the\\ owner"},
        ),
    ],
)
def test_a_database_of_the_settings_is_the_fleets(
    given: dict[str, Any], parts: dict[str, Any]
) -> None:
    assert parts_of(**given) == {"dbname": "shop", **parts}


def test_a_service_names_the_database() -> None:
    assert parts_of(NAME="", OPTIONS={"service": "shop"}) == {"service": "shop"}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"OPTIONS": {"isolation_level": 4}}, "another isolation_level than READ COMMITTED"),
        ({"OPTIONS": {"init_command": "SET x"}}, "'init_command', which is no parameter"),
        ({"ENGINE": "django.db.backends.sqlite3"}, "is of SQLite, and cmdbus needs PostgreSQL"),
    ],
)
def test_what_a_fleet_cannot_have_is_refused_in_one_sentence(
    given: dict[str, Any], sentence: str
) -> None:
    with database(**given), pytest.raises(ImproperlyConfigured, match=sentence) as caught:
        fleet_environment(SimpleNamespace(SETTINGS_MODULE="shop.settings"), Bus(), {}, [])
    assert "'default'" in str(caught.value)


def test_an_unknown_alias_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ImproperlyConfigured, match="no 'othr': there are default"):
        dsn_of("othr")


def backend(**options: str) -> dict[str, Any]:
    return {"BACKEND": "cmdbus.django.CommandBusBackend", "OPTIONS": options}


@pytest.mark.parametrize(
    ("tasks", "using", "bus"),
    [
        ({}, None, Bus("default", "cmdbus")),
        ({}, "other", Bus("other", "cmdbus")),
        ({"default": {"BACKEND": "not.installed"}}, None, Bus()),
        ({"default": backend(), "mail": backend()}, None, Bus()),
        ({"default": backend(using="other", schema="tasks")}, None, Bus("other", "tasks")),
        ({"a": backend(), "b": backend(using="other")}, "other", Bus("other")),
    ],
)
def test_the_bus_is_the_one_that_the_backends_name(
    tasks: dict[str, Any], using: str | None, bus: Bus
) -> None:
    with override_settings(TASKS=tasks):
        assert bus_in(using) == bus


@pytest.mark.parametrize(
    ("tasks", "sentence"),
    [
        ({"a": backend(), "b": backend(using="other")}, "several databases .default, other.*"),
        ({"a": backend(), "b": backend(schema="b")}, "several schemas in the database 'default'"),
    ],
)
def test_several_buses_need_a_choice(tasks: dict[str, Any], sentence: str) -> None:
    with override_settings(TASKS=tasks), pytest.raises(ImproperlyConfigured, match=sentence):
        bus_in(None)


def test_processes_without_a_fleet_have_the_first_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    with override_settings(TASKS={"a": backend(using="b"), "b": backend(schema="tasks")}):
        assert bus_of_process() == Bus("b")
        monkeypatch.setenv("CMDBUS_DJANGO_DATABASE", "default")
        assert bus_of_process() == Bus("default", "tasks")


def environment(given: dict[str, str], bus: Bus | None = None, **more: str) -> dict[str, str]:
    named = SimpleNamespace(SETTINGS_MODULE="shop.settings", **more)
    with database():
        return fleet_environment(named, bus or Bus(), given, [*sys.path, "/nowhere", str(APPS)])


def test_a_fleet_gets_the_settings_and_where_the_project_is() -> None:
    made = environment({"HOME": "/root", "CMDBUS_EMBEDDED": "1"}, Bus("default", "orders"))
    path = made.pop("PYTHONPATH").split(os.pathsep)
    assert str(APPS) in path
    assert "/nowhere" not in path and not any("site-packages" in entry for entry in path)
    assert made == {
        "HOME": "/root",
        "DJANGO_SETTINGS_MODULE": "shop.settings",
        "CMDBUS_DSN": "dbname=shop",
        "CMDBUS_SCHEMA": "orders",
        "CMDBUS_DJANGO_DATABASE": "default",
        "PGTZ": "UTC",
    }


def test_a_project_without_tasks_has_the_schema_of_the_environment() -> None:
    with override_settings(TASKS={}):
        assert environment({"CMDBUS_SCHEMA": "orders"})["CMDBUS_SCHEMA"] == "orders"


def test_workers_find_the_setting_of_the_app_once_django_is_set_up() -> None:
    app = "shop.handlers:registry"
    assert "CMDBUS_APP" not in environment({}, CMDBUS_APP=app)
    assert environment({"CMDBUS_APP": "x:y"}, CMDBUS_APP=app)["CMDBUS_APP"] == "x:y"


def test_settings_without_a_module_are_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match="DJANGO_SETTINGS_MODULE"):
        fleet_environment(SimpleNamespace(SETTINGS_MODULE=None), Bus(), {}, [])


def manage(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(MANAGE), *arguments],
        env={**os.environ, "PYTHONPATH": str(APPS), **variables},
        capture_output=True,
        text=True,
        timeout=50,
    )


@pytest.mark.process
def test_the_help_is_the_commands_and_the_supervisors() -> None:
    done = manage("cmdbus", "--help")
    assert done.returncode == 0, done.stderr
    assert "--database ALIAS" in done.stdout
    assert "Usage: manage.py cmdbus [OPTIONS]" in done.stdout
    assert "--drain-timeout" in done.stdout


SHOP = """
from cmdbus import HandlerRegistry
from django.contrib.contenttypes.models import ContentType  # needs Django to be set up

registry = HandlerRegistry()

@registry.handler("shop", "Greet")
def greet(command, context):
    return "hello"
"""


def write_project(place: Path, dsn: str) -> None:
    place.mkdir(exist_ok=True)
    server = {**database_settings(dsn), "PASSWORD": "a secret"}
    (place / "greetings.py").write_text(SHOP)
    (place / "conf.py").write_text(
        "INSTALLED_APPS = ['django.contrib.contenttypes', 'cmdbus.django']\n"
        "CMDBUS_APP = 'greetings:registry'\n"
        "SECRET_KEY = 'x'\n"
        f"DATABASES = {{'default': {server!r}}}\n"
    )
    (place / "manage.py").write_text(MANAGE.read_text().replace("django_project.settings", "conf"))


def greet(fleet: Fleet) -> None:
    with CommandBus(fleet.dsn) as bus:
        fleet.await_all_completed([bus.send("shop", "Greet")])


@pytest.mark.fleet(started=False, procs=1, name="django")
def test_manage_py_becomes_the_supervisor_of_a_fleet(fleet: Fleet, tmp_path: Path) -> None:
    """From another directory than the project's, which its workers import from nevertheless."""
    write_project(tmp_path / "project", fleet.dsn)
    fleet.program = [sys.executable, str(tmp_path / "project" / "manage.py"), "cmdbus"]
    del fleet.options["app"]
    fleet.dsn, dsn = "dbname=nowhere", fleet.dsn
    fleet.start()
    fleet.dsn = dsn
    fleet.wait_until_ready()
    greet(fleet)
    loaded = Path(f"/proc/{fleet.pid}/maps").read_text()
    assert "psycopg" not in loaded and "libpq" not in loaded
    for pid in fleet.living():
        assert "secret" not in Path(f"/proc/{pid}/cmdline").read_text()
    assert fleet.stop(signal.SIGTERM) == 0


@pytest.mark.fleet(started=False, procs=1, name="django")
def test_a_supervisor_of_a_django_project_runs_the_app_of_its_settings(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project(fleet.place, fleet.dsn)
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "conf")
    del fleet.options["app"]
    fleet.start()
    fleet.wait_until_ready()
    greet(fleet)


@pytest.mark.process
def test_a_supervisor_of_a_django_project_never_runs_the_demo() -> None:
    done = supervise(DJANGO_SETTINGS_MODULE="shop.settings")
    assert done.returncode == Exit.CANNOT_START
    assert "cmdbus.django.app:registry has no database" in done.stderr
    assert "manage.py cmdbus" in done.stderr
