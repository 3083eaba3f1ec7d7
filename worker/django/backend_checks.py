"""What `manage.py check` says about an entry of TASKS. Touches no database."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from cmdbus.checks import did_you_mean
from cmdbus.django.buses import VENDOR
from cmdbus.django.discovery import tasks
from cmdbus.django.frameworks import InvalidTaskBackend
from cmdbus.errors import AppError


def messages(backend: Any) -> Iterator[CheckMessage]:
    where = f"TASKS[{backend.alias!r}]"
    if not apps.is_installed("cmdbus.django"):
        yield Error(
            f"{where} needs the app cmdbus.django, which is not installed.",
            hint="Add 'cmdbus.django' to INSTALLED_APPS.",
            id="cmdbus.E101",
        )
    try:
        configured = backend.configured
    except InvalidTaskBackend as error:
        yield Error(_sentence(error), id="cmdbus.E102")
        return
    if problem := _problem_of(configured.using):
        yield Error(f"{where}: {problem}.", id="cmdbus.E103")
    with suppress(AppError):  # of a module of tasks: the check of the app reports it
        tasks()
        yield from _unknown_tasks(where, configured.tasks)
        yield from _unsendable_tasks(backend)


def _problem_of(using: str) -> str:
    """Of the alias of a database."""
    if using not in connections.settings:
        known = ", ".join(map(repr, connections.settings))
        hint = did_you_mean(using, connections.settings) or f"there are {known}"
        return f"using is {using!r}, which is not in DATABASES: {hint}"
    try:
        vendor = connections[using].vendor
    except ImproperlyConfigured as error:
        return f"the database {using!r} cannot be used: {error}"
    if vendor == VENDOR:
        return ""
    return (
        f"the database {using!r} is {vendor}, and cmdbus needs PostgreSQL: "
        f"give the alias of one as OPTIONS['using']"
    )


def _unknown_tasks(where: str, paths: Iterable[str]) -> Iterator[CheckMessage]:
    for path in paths:
        if path not in tasks():
            hint = did_you_mean(path, tasks())
            yield Warning(
                f"{where}: OPTIONS['tasks'] names {path!r}, which is no task that workers find.",
                hint=f"D{hint[1:]}" if hint else None,
                id="cmdbus.W101",
            )


def _unsendable_tasks(backend: Any) -> Iterator[CheckMessage]:
    """Of its schedule, which keeps workers from starting."""
    from cmdbus.django.task_schedules import scheduled_task

    for path in backend.schedule:
        try:
            scheduled_task(path, backend)
        except AppError as error:
            yield Error(_sentence(error), id="cmdbus.E104")


def _sentence(error: Exception) -> str:
    return str(error) if str(error).endswith("?") else f"{error}."
