"""The option `schedule` of the backends: which tasks are sent at which times."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from django.conf import settings

from cmdbus.checks import did_you_mean
from cmdbus.django import task_data
from cmdbus.django.backend import CommandBusBackend, command_bus_backends
from cmdbus.django.buses import Bus, bus_of_process
from cmdbus.django.discovery import tasks
from cmdbus.errors import AppError
from cmdbus.handlers import Handler
from cmdbus.registry import HandlerRegistry


def schedule_tasks(registry: HandlerRegistry, handlers: Iterable[Handler]) -> None:
    """Declares those of the backends on the bus of this process: others have workers of their own.
    Cron lines are read in the time zone of the project."""
    by_name = {handler.name: handler for handler in handlers}
    owners: dict[str, str] = {}
    bus = bus_of_process()
    for backend in command_bus_backends():
        if Bus(backend.using, backend.configured.schema) != bus:
            continue
        for path, cron in backend.schedule.items():
            where = _where(backend)
            if (other := owners.setdefault(path, where)) != where:
                raise AppError(f"{path!r} is in {other}, and in {where}: leave it in one of them")
            task = scheduled_task(path, backend)
            _declare(registry, by_name[f"{task.queue_name} {path}"], task, cron, backend.alias)


def _where(backend: CommandBusBackend) -> str:
    return f"OPTIONS['schedule'] of TASKS[{backend.alias!r}]"


def scheduled_task(path: str, backend: CommandBusBackend) -> Any:
    """The task of this path; an AppError if the backend cannot send it without arguments."""
    where = _where(backend)
    task = tasks().get(path)
    if task is None:
        hint = did_you_mean(path, tasks()) or "it must be in a module that workers import"
        raise AppError(f"{where} names {path!r}, which is no task: {hint}")
    if task.queue_name not in backend.queues:
        raise AppError(
            f"{where} names {path!r}, whose queue {task.queue_name!r} is none of this backend"
        )
    if missing := _missing_argument(task):
        raise AppError(
            f"{where} names {path!r}, which needs the argument {missing!r}: a scheduled task is "
            f"called without arguments"
        )
    return task


def _missing_argument(task: Any) -> str:
    """The first one that has no default; empty if there is none."""
    parameters: Mapping[str, inspect.Parameter] = inspect.signature(task.func).parameters
    needed = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    return next(iter(needed[task.takes_context :]), "")


def _declare(registry: HandlerRegistry, handler: Handler, task: Any, cron: str, alias: str) -> None:
    declare = registry.schedule(
        cron,
        name=task.module_path,
        timezone=settings.TIME_ZONE,
        data=task_data.encode((), {}, backend=alias, priority=task.priority),
        priority=task_data.command_priority(task.priority),
    )
    declare(handler.function)
