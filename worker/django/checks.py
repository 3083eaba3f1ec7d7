"""What `manage.py check` finds wrong about cmdbus in a project; no check touches the database. What
is wrong with a backend of TASKS is that one's to say."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import django
from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from cmdbus.django.buses import VENDOR, Bus, backends
from cmdbus.errors import AppError

_OLDEST = (5, 2)
_HAS_TASKS = (6, 0)


def register_checks() -> None:
    register("cmdbus")(check_project)


def check_project(**_: Any) -> list[CheckMessage]:
    return [*_version(), *_framework(), *_database(), *_app()]


def _version() -> Iterator[CheckMessage]:
    if django.VERSION < _OLDEST:
        yield Error(
            f"Django {django.get_version()} is too old for cmdbus.django.",
            hint="Install Django 5.2 or later.",
            id="cmdbus.E001",
        )


def _framework() -> Iterator[CheckMessage]:
    """Without its app, the backport checks no backend, and logs nothing."""
    if backends() and django.VERSION < _HAS_TASKS and not apps.is_installed("django_tasks"):
        yield Error(
            "TASKS has a backend of cmdbus, and INSTALLED_APPS lacks 'django_tasks', which has the "
            "tasks of Django before 6.0.",
            hint="Add 'django_tasks' to INSTALLED_APPS (pip install django-tasks).",
            id="cmdbus.E002",
        )


def _database() -> Iterator[CheckMessage]:
    wrapper = connections[Bus().using]
    if not backends() and wrapper.vendor != VENDOR:
        yield Warning(
            f"The default database is of {wrapper.display_name}, so migrate installs no schema of "
            f"cmdbus, and there is nothing that a fleet could run on.",
            hint="Use PostgreSQL, or name the alias of such a database in a backend of TASKS: "
            "OPTIONS = {'using': ...}.",
            id="cmdbus.W001",
        )


def _app() -> Iterator[CheckMessage]:
    """Whether its modules can be imported, which takes as long as they need."""
    if "cmdbus.E003" in settings.SILENCED_SYSTEM_CHECKS:
        return
    app = getattr(settings, "CMDBUS_APP", None)
    try:
        _import_app(app)
    except AppError as error:
        yield Error(
            f"CMDBUS_APP: {error}" if app else str(error),
            hint="No worker can start. Where the code of workers is not installed, put "
            "'cmdbus.E003' into SILENCED_SYSTEM_CHECKS.",
            id="cmdbus.E003",
        )


def _import_app(app: object) -> None:
    if app:
        from cmdbus.worker.boot.app import load

        load(str(app))
    elif backends():
        from cmdbus.django.discovery import tasks

        with suppress(ImproperlyConfigured):  # of a backend, which says it itself
            tasks()
