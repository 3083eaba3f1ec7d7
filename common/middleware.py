"""Middleware: what an application puts around the executions of its handlers."""

import dis
import functools
import inspect
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FunctionType, GeneratorType
from typing import TYPE_CHECKING, Any, TypeVar

from cmdbus.callables import check_arguments, name_of
from cmdbus.checks import check_name, shown
from cmdbus.errors import TransientCommandError
from cmdbus.surroundings import Run, note_error, note_given_back, note_swallowed

if TYPE_CHECKING:
    from cmdbus.command import Command
    from cmdbus.context import Context

#: Called with the command and its context: a generator function, or one that returns a manager.
Around = Callable[
    ["Command[Any]", "Context"],
    Generator[None, Any, object] | Iterator[None] | AbstractContextManager[Any],
]
A = TypeVar("A", bound=Around)
_FORM = "a middleware yields once, where the handler runs, or returns a context manager"


@dataclass(frozen=True, slots=True)
class Middleware:
    """A function, and what it is around: all types, those of a domain or of a name, or one."""

    function: Around
    domain: str | None
    type: str | None
    name: str

    def covers(self, domain: str, type: str) -> bool:
        return self.domain in (None, domain) and self.type in (None, type)

    def __call__(self, run: Run) -> Run:
        """`run` within it."""
        function, name = self.function, self.name

        def inside(command: "Command[Any]", context: "Context") -> Any:
            try:
                entered = function(command, context)
                if isinstance(entered, GeneratorType):
                    result = _run_in_generator(entered, run, command, context)
                else:
                    result = _run_in_manager(entered, run, command, context)
            except BaseException as error:
                note_error(context, error, name)
                raise
            note_given_back(context, result)
            return result

        return inside


class Middlewares:
    """All middleware of a registry, in the order of declaration: the first one is the outermost."""

    def __init__(self) -> None:
        self._all: list[Middleware] = []

    def declaring(self, domain: str | None, type: str | None) -> Callable[[A], A]:
        """A decorator. A ValueError says what is wrong, as far as that is known before an
        execution."""
        for what, name in (("domain", domain), ("type", type)):
            if name is not None:
                check_name(f"{what} of around", name)

        def declare(function: A) -> A:
            self._all.append(Middleware(function, domain, type, _checked_name(function)))
            return function

        return declare

    def of(self, domain: str, type: str) -> list[Middleware]:
        return [each for each in self._all if each.covers(domain, type)]

    def check(self, types: Sequence[tuple[str, str]]) -> None:
        """A ValueError if one is around none of these."""
        for each in self._all:
            if not any(each.covers(*one) for one in types):
                wanted = f"{each.domain or 'any domain'}/{each.type or 'any type'}"
                raise ValueError(
                    f"the middleware {each.name} is for {wanted}, of which the registry has no "
                    f"handler"
                )


def _run_in_generator(
    generator: Generator[None, Any, object], run: Run, command: "Command[Any]", context: "Context"
) -> Any:
    try:
        next(generator)
    except StopIteration:
        raise _invalid("it ended before it yielded, so the handler was not called") from None
    try:
        result = run(command, context)
    except BaseException as error:
        if not _swallows(generator, error):
            raise
        note_swallowed(context)
        return None
    try:
        generator.send(context.outcome)
    except StopIteration:
        return result
    raise _yielded_again(generator)


def _swallows(generator: Generator[None, Any, object], error: BaseException) -> bool:
    """False if it lets the error out; raises the one that it raises instead."""
    trace = error.__traceback__
    try:
        generator.throw(error)
    except StopIteration:
        return True
    except BaseException as raised:
        # A generator cannot let a StopIteration out.
        if raised is not error and not (
            isinstance(error, StopIteration) and raised.__cause__ is error
        ):
            raise
        error.__traceback__ = trace  # Without the frames of the middleware.
        return False
    raise _yielded_again(generator)


def _run_in_manager(manager: Any, run: Run, command: "Command[Any]", context: "Context") -> Any:
    if not _is_manager(type(manager)):
        raise _invalid(f"it returned {shown(manager)}")
    with manager:
        return run(command, context)
    note_swallowed(context)
    return None


def _yielded_again(generator: Generator[None, Any, object]) -> TransientCommandError:
    generator.close()
    return _invalid("it yielded a second time")


def _invalid(defect: str) -> TransientCommandError:
    return TransientCommandError("MIDDLEWARE_INVALID", f"{defect}: {_FORM}")


def _is_manager(kind: type) -> bool:
    return hasattr(kind, "__enter__") and hasattr(kind, "__exit__")


def _checked_name(function: object) -> str:
    """The name by which errors call it."""
    if not callable(function):
        raise ValueError(
            f"a middleware must be a function, not {shown(function)}: write @registry.around, or "
            f"@registry.around(domain=..., type=...)"
        )
    code: Any = function
    while isinstance(code, functools.partial):
        code = code.func
    if not isinstance(code, type) and not inspect.isroutine(code):
        name, code = name_of(type(code)), type(code).__call__
    else:
        name = name_of(code)
    what = f"the middleware {name}"
    # Also of contextlib.asynccontextmanager, whose function is an ordinary one around it.
    inner = inspect.unwrap(code)
    if inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner):
        raise ValueError(
            f"{what} is async: handlers and what is around them are ordinary functions"
        )
    if _returns_nothing(code) or (isinstance(code, type) and not _is_manager(code)):
        raise ValueError(f"{what} is neither a generator nor a context manager: {_FORM}")
    check_arguments(function, what)
    return name


def _returns_nothing(function: object) -> bool:
    """Whether the code of an ordinary function cannot return anything but None."""
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType) or inspect.isgeneratorfunction(function):
        return False
    before: dis.Instruction | None = None
    for instruction in dis.get_instructions(function):
        found = instruction if instruction.opname == "RETURN_CONST" else before
        if instruction.opname in ("RETURN_CONST", "RETURN_VALUE") and (
            found is None
            or found.argval is not None
            or not found.opname.endswith("_CONST")
            or instruction.is_jump_target
        ):
            return False
        before = instruction
    return True
