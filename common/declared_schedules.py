"""The schedules that a registry declares, each of a function that handles one type."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from cmdbus.checks import check_name
from cmdbus.payloads.forms import Encoder
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
    def __init__(self, encoder: Encoder | None = None) -> None:
        self._encoder = encoder
        #: Functions, and their schedules without the domain and type; also without a name, if that
        #: was not given.
        self._declared: list[tuple[Callable[..., Any], Schedule, bool]] = []

    def declare(
        self, cron: str | None, name: str | None, options: ScheduleOptions
    ) -> Callable[[F], F]:
        """What is wrong with the options is an error of the decorated function."""

        def decorate(function: F) -> F:
            # The name of one without is known when its type is.
            called = "unnamed" if name is None else name
            where = f"the schedule of {_name_of(function)}" if name is None else ""
            made = schedule_of(
                called, "any", "Any", cron, options, where=where, encoder=self._encoder
            )
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
            name = schedule.name
            what = f"the schedule {name}" if is_named else "a schedule"
            handler = _only(what, function, of_functions.get(function, []))
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


def _name_of(function: object) -> object:
    return getattr(function, "__qualname__", function)


def _only(what: str, function: object, handlers: list[TypeHandler]) -> TypeHandler:
    if len(handlers) == 1:
        return handlers[0]
    name = _name_of(function)
    if not handlers:
        raise ValueError(
            f"{what} is declared for {name}, which handles no type: decorate it with "
            f"@registry.handler(domain, type), too"
        )
    types = " and ".join(f"{each.domain}/{each.type}" for each in handlers)
    raise ValueError(
        f"{what} is declared for {name}, which handles {types}: give one of them a "
        f"function of its own"
    )
