"""The tasks of cmdbus's backend: the framework's own, with options of cmdbus."""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack

from cmdbus.django.frameworks import Task


class UsingOptions(TypedDict, total=False):
    """Of `Task.using`."""

    priority: int
    queue_name: str
    run_after: datetime
    backend: str
    key: str
    unique: str
    on_conflict: str
    expires: float | timedelta | datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTask(Task):
    """What is None is left to the backend's options. How a task is sent and run is not compared:
    a result does not show it."""

    max_attempts: int | None = field(default=None, compare=False)
    backoff: Any = field(default=None, compare=False)
    timeout: float | None = field(default=None, compare=False)
    atomic: bool | None = field(default=None, compare=False)
    key: str | None = field(default=None, compare=False)
    unique: str | None = field(default=None, compare=False)
    on_conflict: str | None = field(default=None, compare=False)
    expires: float | timedelta | datetime | None = field(default=None, compare=False)

    def using(self, **options: Unpack[UsingOptions]) -> Any:
        """A task with these options instead of its own: the framework's, and `key`, `unique`,
        `on_conflict` and `expires`, which are those of `CommandBus.send`."""
        unknown = options.keys() - UsingOptions.__annotations__
        if unknown:
            raise TypeError(
                f"using() got an unexpected keyword argument {min(unknown)!r}: "
                f"there are {', '.join(UsingOptions.__annotations__)}"
            )
        given: dict[str, Any] = {
            name: value for name, value in options.items() if value is not None
        }
        return replace(self, **given)
