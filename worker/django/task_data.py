"""The data of a task's command: its arguments and, where they are not the framework's defaults, its
backend, priority and run_after."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cmdbus.checks import shown
from cmdbus.data import Undecodable, defect
from cmdbus.django.frameworks import task_backends

#: The defaults of both frameworks.
DEFAULT_ALIAS, DEFAULT_PRIORITY = "default", 0
_MAX_PRIORITY = 100
#: Values of Django's priorities in one of the bus's.
_PRIORITIES_OF_ONE = 20
_NORMAL = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskData:
    args: list[Any]
    kwargs: dict[str, Any]
    #: None where the data names none: then it is the default one, or the one that has the queue.
    backend: str | None = None
    priority: int = DEFAULT_PRIORITY
    #: Naive in a project without time zones.
    run_after: datetime | None = None


def encode(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    backend: str = DEFAULT_ALIAS,
    priority: int = DEFAULT_PRIORITY,
    run_after: datetime | None = None,
) -> dict[str, Any]:
    """Raises a TypeError or ValueError that names the argument which cannot be JSON."""
    data: dict[str, Any] = {
        "args": [normalized(value, f"args[{i}]") for i, value in enumerate(args)],
        "kwargs": {name: normalized(value, f"kwargs[{name!r}]") for name, value in kwargs.items()},
    }
    if backend != DEFAULT_ALIAS:
        data["backend"] = backend
    if priority != DEFAULT_PRIORITY:
        data["priority"] = int(priority)
    if run_after is not None:
        data["run_after"] = run_after.isoformat()
    return data


def decode(data: object) -> TaskData:
    """Raises a ValueError for data that is no task's. What it lacks has its default: sends with
    SQL say only what is needed."""
    given = {} if data is None else data
    if not isinstance(given, dict):
        text = given.text if isinstance(given, Undecodable) else given
        raise ValueError(
            f"data of a task must be an object with args and kwargs, not {shown(text)}"
        )
    known = {name: given[name] for name in TaskData.__slots__ if given.get(name) is not None}
    for name, kind in _KINDS.items():
        if name in known and (not isinstance(known[name], kind) or known[name] is True):
            raise ValueError(f"{name} of a task must be {_WORDS[kind]}, not {shown(known[name])}")
    if abs(known.get("priority", 0)) > _MAX_PRIORITY:
        raise ValueError(
            f"priority of a task must be from -{_MAX_PRIORITY} to {_MAX_PRIORITY}, "
            f"not {known['priority']}"
        )
    if "run_after" in known:
        known["run_after"] = _time(known["run_after"])
    return TaskData(**{"args": [], "kwargs": {}, **known})


def read(task: Any, domain: str, data: object) -> tuple[Any, list[Any], dict[str, Any]]:
    """The task with what the data of its command says, its args and its kwargs. `task` is in a
    backend that has this queue. Raises a ValueError for data that is no task's."""
    found = decode(data)
    return with_data(task, domain, found), found.args, found.kwargs


def with_data(task: Any, domain: str, found: TaskData) -> Any:
    """The task with what this data says."""
    alias = found.backend or DEFAULT_ALIAS
    backend = alias if _has_queue(alias, domain) else task.backend
    options = {"queue_name": domain, "backend": backend, "priority": found.priority}
    return task.using(**options, run_after=found.run_after)


def _has_queue(alias: str, queue: str) -> bool:
    """Whether it is a backend of cmdbus with this queue."""
    from cmdbus.django.backend import CommandBusBackend  # which imports this module

    if alias not in task_backends.settings:
        return False
    backend = task_backends[alias]
    return isinstance(backend, CommandBusBackend) and queue in backend.queues


def command_priority(priority: int) -> int:
    """The bus's of a task's priority from -100 (last) to 100 (first): 0 is 5, each higher one runs
    before it, and each lower one after it."""
    steps = math.ceil(abs(priority) / _PRIORITIES_OF_ONE)
    return _NORMAL - steps if priority > 0 else _NORMAL + steps


def normalized(value: object, path: str, depth: int = 0) -> Any:
    """As the frameworks normalise values, so that tuples become lists; but what JSON or PostgreSQL
    lacks is refused with its place."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise ValueError(f"{path} is bytes that are not UTF-8, which JSON lacks") from None
    if isinstance(value, Mapping):
        value = dict(value)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        value = list(value)
    if problem := defect(value, depth):
        raise (TypeError if _has_wrong_type(value) else ValueError)(f"{path} {problem}")
    if isinstance(value, dict):
        return {key: normalized(each, f"{path}[{key!r}]", depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [normalized(each, f"{path}[{i}]", depth + 1) for i, each in enumerate(value)]
    return value


def _has_wrong_type(value: object) -> bool:
    """Itself, or one of its keys."""
    if isinstance(value, dict):
        return not all(isinstance(key, str) for key in value)
    return not (value is None or isinstance(value, bool | int | float | str | list))


_KINDS: dict[str, type] = {
    "args": list,
    "kwargs": dict,
    "backend": str,
    "priority": int,
    "run_after": str,
}
_WORDS: dict[type, str] = {
    list: "a list",
    dict: "an object",
    str: "a text",
    int: "a whole number",
}


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"run_after of a task must be like '2026-01-31T12:00:00+00:00', not {shown(text)}"
        ) from None
