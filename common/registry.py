"""Which function handles which commands. The only way from a command to code."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from cmdbus.checks import check_name, check_seconds
from cmdbus.command import Command
from cmdbus.errors import HandlerAlreadyRegisteredError
from cmdbus.retry import RetryPolicy

#: Called with the command and its context; returns the command's result.
HandlerFunction = Callable[..., Any]
F = TypeVar("F", bound=HandlerFunction)

_MARKS = "_cmdbus_marks"


class Group(Protocol):
    """Commands of one domain that are handled in one transaction. Nothing of that is left if it
    fails: then each of them is handled by its own function."""

    def takes(self, command: Command, /) -> bool:
        """False: its own function handles it."""

    def handle(self, command: Command, /) -> None: ...
    def write(self) -> None:
        """After all have been handled."""


#: Called with commands that have different correlation ids, with the connection of a transaction,
#: and with the schema's name.
MakeGroup = Callable[[Sequence[Command], Any, str], Group]


@dataclass(frozen=True, slots=True)
class Handler:
    """A function with its limits; None stands for the worker's default."""

    domain: str
    type: str
    function: HandlerFunction
    timeout: float | None = None
    #: Bounds one SQL statement in the handler's transaction.
    statement_timeout: float | None = None
    retry: RetryPolicy | None = None
    #: The same for all types of a domain whose commands may be handled together.
    group: MakeGroup | None = field(default=None, repr=False)
    #: `retry`, or the default.
    policy: RetryPolicy = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_name("domain", self.domain)
        check_name("type", self.type)
        for name in ("timeout", "statement_timeout"):
            if (seconds := getattr(self, name)) is not None:
                check_seconds(f"{name} of {self.domain}/{self.type}", seconds)
        if self.retry is not None and not isinstance(self.retry, RetryPolicy):
            raise ValueError(f"retry must be a RetryPolicy, not {self.retry!r:.80}")
        _check_callable(self.function, f"the handler of {self.domain}/{self.type}")
        object.__setattr__(self, "policy", self.retry or RetryPolicy())


def handler(
    domain: str,
    type: str,
    *,
    timeout: float | None = None,
    statement_timeout: float | None = None,
    retry: RetryPolicy | None = None,
) -> Callable[[F], F]:
    """Marks a method for `HandlerRegistry.register_instance`; the method stays as it is."""

    def mark(function: F) -> F:
        made = domain, type, (timeout, statement_timeout, retry)
        setattr(function, _MARKS, (*getattr(function, _MARKS, ()), made))
        return function

    return mark


class Manager(Protocol):
    """See ProcessManager."""

    domain: str
    type: str

    def check_manager(self) -> None: ...
    def process_handlers(self, managers: "Mapping[str, Any]", /) -> list[Handler]: ...


class HandlerRegistry:
    """Handlers by domain and type, each pair once."""

    def __init__(self) -> None:
        self._handlers: dict[tuple[str, str], Handler] = {}
        #: By domain and type.
        self._managers: dict[str, dict[str, Manager]] = {}

    def handler(
        self,
        domain: str,
        type: str,
        *,
        timeout: float | None = None,
        statement_timeout: float | None = None,
        retry: RetryPolicy | None = None,
    ) -> Callable[[F], F]:
        """Registers the decorated function, and returns it unchanged."""

        def decorate(function: F) -> F:
            self._add([Handler(domain, type, function, timeout, statement_timeout, retry)])
            return function

        return decorate

    def register(
        self,
        domain: str,
        type: str,
        function: HandlerFunction,
        *,
        timeout: float | None = None,
        statement_timeout: float | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        self._add([Handler(domain, type, function, timeout, statement_timeout, retry)])

    def register_instance(self, instance: object) -> None:
        """Registers the public methods marked with `handler`: all of them, or none."""
        found = [
            Handler(domain, type_, getattr(instance, name), *limits)
            for name in dir(type(instance))
            if not name.startswith("_")
            # Looked up on the class: properties of the instance must not run.
            for domain, type_, limits in getattr(getattr(type(instance), name), _MARKS, ())
        ]
        if not found:
            raise ValueError(
                f"{type(instance).__name__} has no public method marked with "
                f"@handler(domain, type): nothing to register"
            )
        self._add(found)

    def register_process(self, manager: Manager) -> None:
        """Registers an instance of a subclass of ProcessManager. The domain's type Reply, and
        types that begin with `process:`, are handled by the processes of the domain."""
        if isinstance(manager, type) or not hasattr(manager, "process_handlers"):
            raise ValueError(
                f"register_process takes an instance of a ProcessManager, not {manager!r:.80}"
            )
        manager.check_manager()
        present = self._managers.get(manager.domain, {})
        if other := present.get(manager.type):
            raise HandlerAlreadyRegisteredError(manager.domain, manager.type, _name(type(other)))
        if not present:
            self._add(manager.process_handlers(present))
            self._managers[manager.domain] = present
        present[manager.type] = manager

    def find(self, domain: str, type: str) -> Handler | None:
        return self._handlers.get((domain, type))

    @property
    def domains(self) -> list[str]:
        return sorted({handler.domain for handler in self})

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._handlers.values())

    def __len__(self) -> int:
        return len(self._handlers)

    def _add(self, handlers: list[Handler]) -> None:
        added = dict(self._handlers)
        for new in handlers:
            if present := added.get((new.domain, new.type)):
                raise HandlerAlreadyRegisteredError(new.domain, new.type, _name(present.function))
            added[new.domain, new.type] = new
        self._handlers = added


def _check_callable(function: object, what: str) -> None:
    if not callable(function):
        raise ValueError(f"{what} must be callable, not {function!r:.80}")
    code = inspect.unwrap(function)
    code = code if inspect.isroutine(code) else getattr(code, "func", code.__call__)
    if inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code):
        raise ValueError(
            f"{what}, {_name(function)}, is async: handlers are ordinary functions; "
            f"call asyncio.run() inside one if it must await something"
        )
    if inspect.isgeneratorfunction(code):
        raise ValueError(f"{what}, {_name(function)}, is a generator: return the result instead")
    try:
        inspect.signature(function).bind("command", "context")
    except TypeError as error:
        raise ValueError(f"{what} is called with (command, context): {error}") from None
    except ValueError:
        pass  # Some builtins have no signature.


def _name(function: object) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', function)}"
