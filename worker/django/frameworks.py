"""The task framework: Django's own, from Django 6 on, or its backport, the package django-tasks.
Some names differ; no other module knows that there are two. Not imported in a project without
tasks."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

#: Any: neither Django nor the types of django-tasks that are Django's can be seen by type checkers.
_Module = Any

#: The framework's package.
NAME = "django.tasks" if find_spec("django.tasks") else "django_tasks"

try:
    _tasks: _Module = import_module(NAME)
except ModuleNotFoundError as error:
    if error.name != NAME:
        raise
    raise ModuleNotFoundError(
        "tasks need Django 6, or on an older one its backport: pip install 'django-tasks>=0.12'",
        name=NAME,
    ) from None

_base: _Module = import_module(f"{NAME}.base")
_exceptions: _Module = import_module(f"{NAME}.exceptions")

#: Of the backends in the setting TASKS, by alias.
task_backends = _tasks.task_backends

Task = _base.Task
TaskContext = _base.TaskContext
TaskError = _base.TaskError
TaskResult = _base.TaskResult
TaskResultStatus = _base.TaskResultStatus
BaseTaskBackend = import_module(f"{NAME}.backends.base").BaseTaskBackend

#: The backport has named two of them as errors.
InvalidTask = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
InvalidTaskBackend = (
    getattr(_exceptions, "InvalidTaskBackend", None) or _exceptions.InvalidTaskBackendError
)
TaskResultDoesNotExist = _exceptions.TaskResultDoesNotExist
TaskResultMismatch = _exceptions.TaskResultMismatch

_signals: _Module = import_module(f"{NAME}.signals")
task_enqueued = _signals.task_enqueued
task_started = _signals.task_started
task_finished = _signals.task_finished
