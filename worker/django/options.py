"""The options of cmdbus's backend in the setting TASKS, and those of each task."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cmdbus.checks import (
    check_flag,
    check_name,
    check_options,
    check_schema,
    check_seconds,
    check_whole,
    shown,
)
from cmdbus.django.frameworks import InvalidTask
from cmdbus.retry import MAX_ATTEMPTS, RetryPolicy
from cmdbus.schedules import schedule_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """How a task is run; see RetryPolicy and `registry.handler`."""

    max_attempts: int = 1
    backoff: Sequence[float] = (10, 60, 300)
    timeout: float = 35.0
    #: Whether it runs in its command's transaction.
    atomic: bool = True


def _checked_backoff(what: str, value: Any) -> Sequence[float]:
    try:
        return RetryPolicy(backoff=value).backoff
    except ValueError as error:
        raise ValueError(str(error).replace("backoff", what, 1)) from None


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "max_attempts": lambda what, value: check_whole(what, value, 1, MAX_ATTEMPTS),
    "backoff": _checked_backoff,
    "timeout": check_seconds,
    "atomic": check_flag,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """An entry of TASKS, checked."""

    queues: tuple[str, ...]
    using: str = "default"
    schema: str = "cmdbus"
    #: That workers import besides the modules `tasks` of the installed apps.
    modules: tuple[str, ...] = ()
    defaults: TaskOptions = field(default_factory=TaskOptions)
    #: Options of single tasks, by path.
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Cron lines of tasks, by path.
    schedule: Mapping[str, str] = field(default_factory=dict)


def options_of(task: Any) -> TaskOptions:
    """Those that the settings have for this task, else its own, else those of its backend."""
    configured: BackendOptions = task.get_backend().configured
    own = {**own_options(task), **configured.tasks.get(task.module_path, {})}
    return replace(configured.defaults, **own)


def own_options(task: Any) -> dict[str, Any]:
    """Those of its decorator. Raises an InvalidTask if one is wrong."""
    own = {name: getattr(task, name, None) for name in _CHECKS}
    try:
        return _task_options("", {name: own[name] for name in own if own[name] is not None})
    except ValueError as error:
        raise InvalidTask(f"the task {task.module_path}: {error}") from None


def backend_options(params: Mapping[str, Any]) -> BackendOptions:
    """Of an entry of TASKS; the first problem as a ValueError."""
    options = params.get("OPTIONS", {})
    _check_mapping("OPTIONS", options)
    names = [*_OPTIONS, *_CHECKS]
    _check_known("OPTIONS has", options, names)
    return BackendOptions(
        queues=queues_of(params),
        defaults=TaskOptions(
            **_task_options("", {name: options[name] for name in _CHECKS if name in options})
        ),
        **{name: check(options[name]) for name, check in _OPTIONS.items() if name in options},
    )


def queues_of(params: Mapping[str, Any]) -> tuple[str, ...]:
    queues = params.get("QUEUES", ["default"])
    if isinstance(queues, str) or not isinstance(queues, Sequence | set | frozenset):
        raise ValueError(f"QUEUES must be a list of names, not {shown(queues)}")
    if not queues:
        raise ValueError(
            "QUEUES is empty, which elsewhere means any: workers must know which queues they "
            "claim, so name them"
        )
    return tuple(check_name("each of QUEUES", queue) for queue in queues)


def _using(alias: Any) -> str:
    if not isinstance(alias, str):
        raise ValueError(f"using must be an alias of DATABASES, not {shown(alias)}")
    return alias


def _modules(modules: Any) -> tuple[str, ...]:
    if (
        isinstance(modules, str)
        or not isinstance(modules, Sequence)
        or not all(isinstance(module, str) for module in modules)
    ):
        raise ValueError(
            f"modules must be a list of names like 'shop.reports', not {shown(modules)}"
        )
    return tuple(modules)


def _tasks(tasks: Any) -> Mapping[str, Mapping[str, Any]]:
    _check_mapping("tasks", tasks)
    for path, options in tasks.items():
        check_name("each task in tasks", path)
        _check_mapping(f"tasks[{path!r}]", options)
    return {path: _task_options(f" of tasks[{path!r}]", options) for path, options in tasks.items()}


def _schedule(schedule: Any) -> Mapping[str, str]:
    _check_mapping("schedule", schedule)
    for path, cron in schedule.items():
        where = f"schedule[{path!r}]"
        if not isinstance(cron, str):
            raise ValueError(f"{where} must be a cron line like '0 3 * * *', not {shown(cron)}")
        check_name("each task in schedule", path)
        schedule_of(path, "any", "Any", cron, {}, where=where)
    return dict(schedule)


_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "using": _using,
    "schema": check_schema,
    "modules": _modules,
    "tasks": _tasks,
    "schedule": _schedule,
}


def _task_options(where: str, options: Mapping[str, Any]) -> dict[str, Any]:
    _check_known(f"a task{where} has", options, _CHECKS)
    return {name: _CHECKS[name](f"{name}{where}", value) for name, value in options.items()}


def _check_mapping(what: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} must be a dict, not {shown(value)}")


def _check_known(what: str, options: Mapping[str, Any], known: Any) -> None:
    try:
        check_options("it", options, known)
    except TypeError as error:
        raise ValueError(str(error).replace("it has", what, 1)) from None
