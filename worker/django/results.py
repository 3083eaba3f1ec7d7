"""The result of a task, out of the rows of its command."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from cmdbus.data import decode
from cmdbus.django.frameworks import TaskError, TaskResult, TaskResultStatus
from cmdbus.django.times import local

_STATUSES = {
    "PENDING": TaskResultStatus.READY,
    "IN_PROGRESS": TaskResultStatus.RUNNING,
    "COMPLETED": TaskResultStatus.SUCCESSFUL,
}
#: Of a failure that is no exception of the task.
_VERDICT, _TIMEOUT = "cmdbus.errors.CommandFailedError", "builtins.TimeoutError"


class TaskRow(NamedTuple):
    """What read_task returns."""

    domain: str
    type: str
    status: str
    #: Charged executions, and the running one.
    attempts: int
    data: str
    result: str | None
    error_code: str | None
    error_message: str | None
    worker: str | None
    created_at: datetime
    #: The first and the latest execution.
    begun_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    #: JSON text: a list of events.
    events: str | None


class Event(NamedTuple):
    """A failure, or a retry by an operator."""

    kind: str
    #: Charged executions until then; None of an operator's.
    attempt: int | None
    worker: str | None
    code: str | None
    message: str | None
    details: Any


def events_of(row: TaskRow) -> list[Event]:
    events = decode(row.events or "[]")
    return [Event(*event) for event in events] if isinstance(events, list) else []


def new_result(
    task: Any, id: str, status: Any, sent_at: datetime, args: Any, kwargs: Any, **more: Any
) -> Any:
    """`more` is what there is after the first attempt has begun."""
    fields = {
        **dict.fromkeys(("started_at", "last_attempted_at", "finished_at")),
        "errors": [],
        "worker_ids": [],
        **more,
    }
    return TaskResult(
        task=task,
        id=id,
        status=status,
        enqueued_at=local(sent_at),
        args=args,
        kwargs=kwargs,
        backend=task.backend,
        **fields,
    )


def result_of(row: TaskRow, task: Any, id: str, args: Any, kwargs: Any) -> Any:
    events = events_of(row)
    status = _STATUSES.get(row.status, TaskResultStatus.FAILED)
    result = new_result(
        *(task, id, status, row.created_at, args, kwargs),
        started_at=local(row.begun_at),
        last_attempted_at=local(row.started_at),
        finished_at=local(row.ended_at),
        errors=[TaskError(**error) for error in errors_of(row, events)],
        worker_ids=workers_of(row, events),
    )
    if row.status == "COMPLETED" and row.result is not None:
        object.__setattr__(result, "_return_value", decode(row.result))
    return result


def workers_of(row: TaskRow, events: Iterable[Event]) -> list[str]:
    """One for each charged execution and one for the running one. An operator's retry begins anew;
    of an uncharged execution the event has the number of charged ones before it."""
    workers: list[str] = []
    for event in events:
        if event.kind == "OPERATOR_RETRY":
            workers = []
        elif event.attempt == len(workers) + 1:
            workers.append(event.worker or "")
    return [*workers, *[row.worker or ""] * (row.attempts - len(workers))]


def errors_of(row: TaskRow, events: Iterable[Event]) -> list[dict[str, str]]:
    """The oldest first: what each failed execution raised, and a verdict for what ended the task
    otherwise."""
    errors = [
        error_of(event)
        for event in events
        if event.kind != "OPERATOR_RETRY" and (event.details or {}).get("reason") != "INTERRUPTED"
    ]
    if row.status == "CANCELED":
        message = f"{row.error_code}: {row.error_message or ''}".rstrip(": ")
        errors.append({"exception_class_path": _VERDICT, "traceback": f"{message}\n"})
    return errors


def error_of(event: Event) -> dict[str, str]:
    details = event.details or {}
    if "exception" in details:
        path, trace = details["exception"], details["traceback"]
        return {"exception_class_path": path, "traceback": trace}
    more = details.get("details")
    stack = more.get("stack") if isinstance(more, dict) else None
    path = _TIMEOUT if event.code == "TIMEOUT" else _VERDICT
    where = f"{stack.rstrip()}\n" if isinstance(stack, str) and stack else ""
    name = path.rpartition(".")[2]
    return {"exception_class_path": path, "traceback": f"{where}{name}: {event.message}\n"}
