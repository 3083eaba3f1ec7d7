"""The result of a task as its worker knows it: while an attempt runs, and after the last one."""

import dataclasses
from typing import Any

from django.utils import timezone

from cmdbus.command import Command
from cmdbus.context import Context
from cmdbus.data import decode
from cmdbus.django.frameworks import TaskError, TaskResultStatus
from cmdbus.django.results import Event, error_of, new_result
from cmdbus.surroundings import execution_of
from cmdbus.worker.claims.outcomes import Outcome, OutcomeKind


def started(
    task: Any, command: Command[Any], context: Context, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """The result of an attempt that begins. If there was one before, it is read."""
    command_id, execution = str(command.command_id), execution_of(context)
    if not execution.is_first:
        return task.get_backend().get_result(command_id)
    now = timezone.now()
    return new_result(
        *(task, command_id, TaskResultStatus.RUNNING, command.created_at, args, kwargs),
        started_at=now,
        last_attempted_at=now,
        worker_ids=[execution.worker],
    )


def ended(result: Any, outcome: Outcome) -> Any:
    """The result once this outcome is committed; None if the task runs again."""
    if outcome.kind is OutcomeKind.RETRY:
        return None
    is_successful = outcome.kind is OutcomeKind.COMPLETED
    found = dataclasses.replace(
        result,
        status=TaskResultStatus.SUCCESSFUL if is_successful else TaskResultStatus.FAILED,
        finished_at=timezone.now(),
        errors=[*result.errors, *([] if is_successful else [_error(outcome)])],
    )
    if is_successful:
        object.__setattr__(found, "_return_value", decode(outcome.result or "null"))
    return found


def _error(outcome: Outcome) -> Any:
    details = decode(outcome.details or "{}")
    event = Event(outcome.kind, None, None, outcome.code, outcome.message, details)
    return TaskError(**error_of(event))
