"""A worker, in a thread of the test's, that runs tasks of Django."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

from django.test import override_settings
from django_support import set_up
from handlers import running

from cmdbus import CommandBus, HandlerRegistry

MODULE = "tasks_that_end"
BACKEND = "cmdbus.django.CommandBusBackend"


def tasks_setting(modules: tuple[str, ...] = (MODULE,), /, **options: Any) -> dict[str, Any]:
    """The setting TASKS with a backend of these options."""
    queues = ["default", "mail"]
    return {
        "default": {
            "BACKEND": BACKEND,
            "QUEUES": queues,
            "OPTIONS": {"modules": [*modules], **options},
        }
    }


@contextmanager
def task_settings(setting: dict[str, Any] | None = None) -> Iterator[ModuleType]:
    """Gives the module of tasks, of which none has seen anything yet."""
    set_up()
    with override_settings(TASKS=setting or tasks_setting()):
        tasks = import_module(MODULE)
        tasks.seen.clear()
        yield tasks


@contextmanager
def running_tasks(dsn: str, **options: Any) -> Iterator[None]:
    """One thread, so that each task meets what the one before it has left."""
    with running(dsn, HandlerRegistry(django=True), **{"concurrency": 1, **options}):
        yield


def ended(bus: CommandBus, *results: Any) -> list[Any]:
    """The results of these tasks once they have ended."""
    for result in results:
        bus.wait(result.task.queue_name, result.id, 10)
        result.refresh()
    return [*results]
