"""Which tasks workers know: those of modules that the settings name. A worker never imports what a
row of the database names."""

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

from django.apps import apps
from django.core.signals import setting_changed
from django.utils.module_loading import module_has_submodule

from cmdbus.app_errors import app_error
from cmdbus.django.frameworks import Task

#: The module or package of an app that holds its tasks.
_TASKS = "tasks"
#: Settings by which other tasks may be found.
_SETTINGS = ("TASKS", "INSTALLED_APPS")


@cache
def tasks() -> dict[str, Any]:
    """Tasks by module path, in the order in which they are found. Imports their modules; what one
    of these raises is in an AppError, with its traceback."""
    found: dict[str, Any] = {}
    for module in _modules():
        for value in list(vars(module).values()):
            if isinstance(value, Task):
                found.setdefault(value.module_path, _named(value))
    return found


def find_task(path: str) -> Any | None:
    """The one of `tasks` with this path. If its module has been imported, no other one matters:
    an error in another app's tasks must not keep a program from sending this one."""
    module, _, name = path.rpartition(".")
    task = getattr(sys.modules.get(module), name, None)
    if isinstance(task, Task) and task.module_path == path and is_imported(module):
        return task
    return tasks().get(path)


def is_imported(module: str) -> bool:
    """Whether workers import the module of this name for its tasks. Imports nothing."""
    names = [f"{app.name}.{_TASKS}" for app in apps.get_app_configs()]
    inside = any(module == name or module.startswith(f"{name}.") for name in names)
    return inside or module in _listed()


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting in _SETTINGS:
        tasks.cache_clear()


setting_changed.connect(_forget)


def _named(task: Any) -> Any:
    """The one that its module path names: there may be others of the same function, made with
    `using`."""
    module = sys.modules.get(task.func.__module__)
    own = getattr(module, task.func.__qualname__, None)
    return own if isinstance(own, Task) and own.func is task.func else task


def _modules() -> Iterator[ModuleType]:
    for app in apps.get_app_configs():
        if module_has_submodule(app.module, _TASKS):
            yield from _with_submodules(_imported(f"{app.name}.{_TASKS}"))
    for name in _listed():
        yield _imported(name)


def _listed() -> list[str]:
    """In the option `modules` of the backends."""
    from cmdbus.django.backend import command_bus_backends  # which imports this module

    return [name for backend in command_bus_backends() for name in backend.modules]


def _with_submodules(module: ModuleType) -> Iterator[ModuleType]:
    yield module
    for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
        if found.name != "__main__":
            yield from _with_submodules(_imported(f"{module.__name__}.{found.name}"))


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise app_error(f"importing {name} for its tasks", error, __file__) from error
