"""The schedules that a registry declares, each of a function that handles one type."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from cmdbus.checks import check_name
from cmdbus.schedules import Schedule, ScheduleOptions, schedule_of

F = TypeVar("F", bound=Callable[..., Any])


class TypeHandler(Protocol):
    """A handler."""

    @property
    def domain(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def function(self) -> Callable[..., Any]: ...


class DeclaredSchedules:
    def __init__(self) -> None:
        #: Functions, and their schedules without the domain and type; also without a name, if that
        #: was not given.
        self._declared: list[tuple[Callable[..., Any], Schedule, bool]] = []

    def declare(
        self, cron: str | None, name: str | None, options: ScheduleOptions
    ) -> Callable[[F], F]:
        """What is wrong with the options is an error of the decorated function."""

        def decorate(function: F) -> F:
            called = getattr(function, "__name__", "").strip("_<>") or "unnamed"
            made = schedule_of(called if name is None else name, "any", "Any", cron, options)
            self._declared.append((function, made, name is not None))
            return function

        return decorate

    def bound(self, handlers: Iterable[TypeHandler]) -> list[Schedule]:
        """A ValueError if a function handles no type, or several."""
        of_functions: dict[object, list[TypeHandler]] = {}
        for handler in handlers:
            function = getattr(handler.function, "__func__", handler.function)
            of_functions.setdefault(function, []).append(handler)
        found: dict[str, Schedule] = {}
        for function, schedule, is_named in self._declared:
            handler = _only(schedule.name, function, of_functions.get(function, []))
            name = schedule.name
            if not is_named:
                name = check_name("name of a schedule", f"{handler.domain}.{handler.type}")
            if name in found:
                raise ValueError(
                    f"the schedule {name} is declared twice: give each a name of its own"
                )
            found[name] = dataclasses.replace(
                schedule, name=name, domain=handler.domain, type=handler.type
            )
        return [*found.values()]


def _only(name: str, function: object, handlers: list[TypeHandler]) -> TypeHandler:
    if len(handlers) == 1:
        return handlers[0]
    what = getattr(function, "__qualname__", function)
    if not handlers:
        raise ValueError(
            f"the schedule {name} is declared for {what}, which handles no type: decorate it with "
            f"@registry.handler(domain, type), too"
        )
    types = " and ".join(f"{each.domain}/{each.type}" for each in handlers)
    raise ValueError(
        f"the schedule {name} is declared for {what}, which handles {types}: give one of them a "
        f"function of its own"
    )
