"""Runs a task: the handler of its commands.

What the task writes through Django's connection commits together with its outcome. Signals are sent
outside of that transaction, on the same session: an error of their receivers changes nothing.
"""

import inspect
import logging
import traceback
from dataclasses import dataclass
from functools import partial
from typing import Any

from cmdbus.command import Command
from cmdbus.context import Context
from cmdbus.django.frameworks import TaskContext, task_finished, task_started
from cmdbus.django.lending import lent
from cmdbus.django.options import options_of
from cmdbus.django.task_data import TaskData, decode, normalized, with_data
from cmdbus.django.task_runs import ended, started
from cmdbus.errors import PayloadInvalidError
from cmdbus.surroundings import execution_of
from cmdbus.worker.claims.outcomes import Outcome

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Run:
    """How the commands of a task with the same backend and priority run."""

    task: Any
    #: Of signals: the class of the backend.
    sender: type
    #: The alias of Django's connection.
    using: str
    atomic: bool


class TaskHandler:
    """Handles the commands of a task in one queue."""

    def __init__(self, task: Any) -> None:
        """The task as a backend has it that has this queue."""
        self._task = task
        #: By backend and priority: what the framework checks at each change of a task takes as
        #: long as a short task itself.
        self._runs: dict[tuple[str | None, int], _Run] = {}
        # Messages name a handler by these.
        self.__module__, self.__qualname__ = task.func.__module__, task.func.__qualname__

    def __call__(self, command: Command[Any], context: Context) -> Any:
        try:
            data = decode(command.data)
            run = self._run_of(data, command.domain)
        except ValueError as error:
            raise PayloadInvalidError(str(error)) from None
        with lent(context, run.using, atomic=False):
            result = started(run.task, command, context, data.args, data.kwargs)
            _announce(task_started, run, result)
        execution_of(context).after_settlement(partial(_announce_end, run, result, context))
        with lent(context, run.using, atomic=run.atomic):
            return _call(result)

    def _run_of(self, data: TaskData, queue: str) -> _Run:
        known = data.backend, data.priority
        if data.run_after is None and known in self._runs:
            return self._runs[known]
        task = with_data(self._task, queue, data)
        backend = task.get_backend()
        run = _Run(task, type(backend), backend.using, options_of(task).atomic)
        if data.run_after is None:
            self._runs[known] = run
        return run


def _call(result: Any) -> Any:
    """Calls the task, and returns what it returns as JSON keeps it."""
    task = result.task
    first = (TaskContext(task_result=result),) if task.takes_context else ()
    returned = task.call(*first, *result.args, **result.kwargs)
    try:
        return normalized(returned, "the return value")
    except ValueError as error:
        raise TypeError(str(error)) from None


def _announce_end(
    run: _Run, result: Any, context: Context, outcome: Outcome, error: BaseException | None
) -> None:
    """Once the outcome is committed; nothing if the task runs again."""
    if found := ended(result, outcome):
        with lent(context, run.using, atomic=False):
            _announce(task_finished, run, found)
    if error is not None and inspect.iscoroutinefunction(run.task.func):
        # The frames of asgiref refer to the error, and to the thread of the event loop, which ends
        # with them: not before the next collection of garbage.
        traceback.clear_frames(error.__traceback__)


def _announce(signal: Any, run: _Run, result: Any) -> None:
    """Errors of its receivers are logged."""
    try:
        signal.send_robust(run.sender, task_result=result)
    except BaseException:  # It lets SystemExit and KeyboardInterrupt out.
        logger.exception("a receiver of a signal of the task %s failed", run.task.module_path)
