"""A handler for each task, in each queue of each backend of cmdbus."""

from collections.abc import Iterator
from typing import Any

from cmdbus.django.backend import CommandBusBackend, command_bus_backends
from cmdbus.django.discovery import tasks
from cmdbus.django.frameworks import InvalidTask
from cmdbus.django.options import options_of
from cmdbus.django.running import TaskHandler
from cmdbus.handlers import Handler, make_handler
from cmdbus.retry import RetryPolicy


def task_handlers() -> list[Handler]:
    """Where several backends have a queue, a task runs there with the options of its own one."""
    backends = command_bus_backends()
    found: dict[str, Handler] = {}
    for task in tasks().values() if backends else ():
        for backend in sorted(backends, key=lambda each: bool(each.alias != task.backend)):
            for handler in _handlers(task, backend):
                found.setdefault(handler.name, handler)
    return [*found.values()]


def _handlers(task: Any, backend: CommandBusBackend) -> Iterator[Handler]:
    for queue in sorted(backend.queues):
        try:
            there = task.using(queue_name=queue, backend=backend.alias)
        except InvalidTask:
            return  # It is another backend's: this one refuses to enqueue it.
        options = options_of(there)
        yield make_handler(
            queue,
            task.module_path,
            TaskHandler(there),
            {
                "timeout": options.timeout,
                "retry": RetryPolicy(max_attempts=options.max_attempts, backoff=options.backoff),
            },
        )
