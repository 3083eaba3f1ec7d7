"""The backend of the task framework that makes each task a command; its half that sends and reads.
Workers are the other half."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from math import isnan
from typing import Any

from cmdbus.checks import check_id, check_name, shown
from cmdbus.data import decode
from cmdbus.django import task_data
from cmdbus.django.backend_checks import messages
from cmdbus.django.discovery import find_task, is_imported
from cmdbus.django.frameworks import (
    BaseTaskBackend,
    InvalidTask,
    InvalidTaskBackend,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
)
from cmdbus.django.options import BackendOptions, backend_options, own_options, queues_of
from cmdbus.django.results import new_result, result_of
from cmdbus.django.task import CommandTask
from cmdbus.django.task_commands import TaskCommands, task_commands
from cmdbus.django.times import aware
from cmdbus.producer.requests import SendRequest
from cmdbus.uniqueness import REJECT


class CommandBusBackend(BaseTaskBackend):
    """Sends tasks in the transaction of Django's connection `using`, if there is one, so that none
    runs for what was rolled back."""

    task_class = CommandTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        """Wrong params are reported by `check`, and by the first use."""
        self.params = params
        try:
            queues = queues_of(params)
        except ValueError:
            queues = ()
        super().__init__(alias, {**params, "QUEUES": queues})

    @cached_property
    def configured(self) -> BackendOptions:
        try:
            return backend_options(self.params)
        except ValueError as error:
            raise InvalidTaskBackend(f"TASKS[{self.alias!r}]: {error}") from None

    @property
    def using(self) -> str:
        return self.configured.using

    @property
    def modules(self) -> Sequence[str]:
        return self.configured.modules

    @property
    def schedule(self) -> Mapping[str, str]:
        return self.configured.schedule

    @property
    def _commands(self) -> TaskCommands:
        return task_commands(self.using, self.configured.schema)

    def validate_task(self, task: Any) -> None:
        """At the decorator, and whenever it is enqueued. Wrong settings are no matter of the task,
        whose module `manage.py check` may import before it reports them."""
        priority, run_after = task.priority, task.run_after
        if isinstance(priority, bool) or not isinstance(priority, int | float) or isnan(priority):
            raise InvalidTask(f"priority must be a whole number, not {shown(priority)}")
        if run_after is not None and not isinstance(run_after, datetime):
            raise InvalidTask(f"run_after must be a datetime, not {shown(run_after)}")
        super().validate_task(task)
        _check_path(task)
        own_options(task)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self.validate_task(task)
        _check_found(task)
        data = task_data.encode(
            args, kwargs, backend=self.alias, priority=task.priority, run_after=task.run_after
        )
        command_id, sent_at = self._commands.send(_request(task, data))
        if sent_at is None:  # Another command has its unique key.
            return self.get_result(str(command_id))
        status = TaskResultStatus.READY
        result = new_result(task, str(command_id), status, sent_at, data["args"], data["kwargs"])
        task_enqueued.send_robust(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        try:
            command_id = check_id("result_id", str(result_id))
        except ValueError as error:
            raise TaskResultDoesNotExist(str(error)) from None
        row = self._commands.read(self.queues, command_id)
        if row is None:
            raise TaskResultDoesNotExist(
                f"no queue of TASKS[{self.alias!r}] has a task {command_id}, or has it any longer"
            )
        declared = find_task(row.type)
        try:
            if declared is None:
                raise ValueError("no worker knows a task of this name")
            there = declared.using(queue_name=row.domain, backend=self.alias)
            task, args, kwargs = task_data.read(there, row.domain, decode(row.data))
        except (ValueError, InvalidTask) as error:
            raise TaskResultDoesNotExist(
                f"command {command_id} of type {row.type} is no task: {error}"
            ) from None
        return result_of(row, task, str(command_id), args, kwargs)

    def check(self, **kwargs: Any) -> Iterable[Any]:
        return messages(self)


def command_bus_backends() -> list[CommandBusBackend]:
    """Those of the setting TASKS."""
    return [each for each in task_backends.all() if isinstance(each, CommandBusBackend)]


def _request(task: Any, data: dict[str, Any]) -> SendRequest:
    return SendRequest(
        task.queue_name,
        task.module_path,
        data,
        priority=task_data.command_priority(task.priority),
        run_at=aware(task.run_after),
        key=getattr(task, "key", None),
        unique=getattr(task, "unique", None),
        on_conflict=getattr(task, "on_conflict", None) or REJECT,
        expires=aware(getattr(task, "expires", None)),
    )


def _check_path(task: Any) -> None:
    function, path = task.func, task.module_path
    if function.__module__ == "__main__":
        raise InvalidTask(
            f"the task {function.__qualname__} is defined in __main__, which is another module in "
            f"a worker: move it into a module `tasks` of an installed app"
        )
    if "." in function.__qualname__:
        raise InvalidTask(f"the task {path} is in a class: a task is a function of a module")
    try:
        check_name("a task's path", path)
    except ValueError as error:
        raise InvalidTask(f"{error}: it is the type of the task's commands") from None


def _check_found(task: Any) -> None:
    """A command of another task would wait for ever."""
    found = find_task(task.module_path)
    if found is not None and found.func is task.func:
        return
    module, path = task.func.__module__, task.module_path
    if found is not None:
        raise InvalidTask(f"the task {path} is another function than the one that workers run")
    if is_imported(module):
        raise InvalidTask(f"the task {path} is in no variable of its module, where workers look")
    raise InvalidTask(
        f"the task {path} is in a module that no worker imports: move it into a module `tasks` of "
        f"an installed app, or add {module!r} to OPTIONS['modules'] of TASKS[{task.backend!r}]"
    )
