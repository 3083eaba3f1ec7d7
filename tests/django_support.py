"""Django in the tests' own process, where it can be set up only once: with the settings of
apps/django_project. A test that needs other settings overrides them, or starts a process.

What a test has of it is taken back afterwards: connections, and the database that they are to.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest
from databases import Databases
from psycopg.conninfo import conninfo_to_dict

APPS = Path(__file__).resolve().parent / "apps"
SETTINGS = "django_project.settings"


@cache
def set_up() -> None:
    """The settings' module is named only meanwhile: processes of other tests have no Django."""
    import django
    from django.conf import ENVIRONMENT_VARIABLE

    zone = os.environ["TZ"]
    sys.path.append(str(APPS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENVIRONMENT_VARIABLE, SETTINGS)
        django.setup()
    os.environ["TZ"] = zone
    time.tzset()


@contextmanager
def database_of(dsn: str, alias: str = "default") -> Iterator[None]:
    """Django's connections `alias` are to this database meanwhile."""
    from django.db import connections

    given = connections.settings[alias]
    connections.settings[alias] = {**given, **database_settings(dsn)}
    try:
        with fresh_connections():
            yield
    finally:
        connections.settings[alias] = given


@contextmanager
def fresh_connections() -> Iterator[None]:
    """Those of this thread are closed and forgotten, before and after."""
    _forget_connections()
    try:
        yield
    finally:
        _forget_connections()


def _forget_connections() -> None:
    from django.db import connections

    for wrapper in connections.all(initialized_only=True):
        wrapper.close()
        if hasattr(wrapper, "close_pool"):
            wrapper.close_pool()
        del connections[wrapper.alias]


def database_settings(dsn: str) -> dict[str, Any]:
    """An entry of DATABASES."""
    parts = conninfo_to_dict(dsn)
    names = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST"}
    names["port"] = "PORT"
    return {
        "ENGINE": "django.db.backends.postgresql",
        **{setting: str(parts.pop(name, "") or "") for name, setting in names.items()},
        "OPTIONS": parts,
    }


@pytest.fixture(scope="session")
def django_template(databases: Databases, template: str) -> Iterator[str]:
    """The name of a database to be copied, with cmdbus's schema and the tables of the project."""
    from django.core.management import call_command

    set_up()
    with databases.fresh(template) as name:
        with database_of(databases.dsn_of(name)):
            call_command("migrate", verbosity=0)
        psycopg.connect(databases.dsn_of(name)).close()
        yield name


@pytest.fixture
def django_dsn(databases: Databases, django_template: str) -> Iterator[str]:
    """A database of this test's own, with the project's tables, to which Django's default
    connections are."""
    with databases.fresh(django_template) as name, database_of(databases.dsn_of(name)):
        yield databases.dsn_of(name)
