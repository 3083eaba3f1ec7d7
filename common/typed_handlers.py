"""Handlers whose annotation names the type of their payload, as in `command: Command[Debit]`.

The type is looked at once: when the handler is registered or, if its module defines it further
down, when the registry's declarations are read.
"""

import inspect
from collections import ChainMap
from collections.abc import Callable
from contextlib import suppress
from typing import Any, get_args, get_origin, get_type_hints

from cmdbus.callables import name_of, signature_of
from cmdbus.command import Command, set_payload
from cmdbus.errors import CmdbusError, PayloadInvalidError
from cmdbus.payloads.mismatch import Mismatch, Reader, UnreadableTypeError
from cmdbus.payloads.readers import reader_of

_Function = Callable[..., Any]


class TypedHandler:
    """Reads the payload, and calls the handler."""

    def __init__(self, run: _Function, annotation: "_Annotation") -> None:
        self._run, self._annotation = run, annotation
        self._read: Reader | None = None

    def prepare(self) -> None:
        """A ValueError says what is wrong with the type."""
        if self._read is not None:
            return
        try:
            self._read = payload_reader(self._annotation.payload_type())
        except UnreadableTypeError as error:
            raise ValueError(f"{self._annotation.what}: {error}") from None

    def __call__(self, command: Command, context: Any) -> Any:
        if self._read is None:
            prepare(self)
        assert self._read is not None
        try:
            payload = self._read(command.data)
        except (Mismatch, RecursionError) as error:
            raise PayloadInvalidError(_reason(error)) from error.__cause__
        set_payload(command, payload)
        return self._run(command, context)


def payload_reader(kind: Any) -> Reader:
    """What a model raises by name of cmdbus is the command's outcome."""
    return reader_of(kind, (CmdbusError,))


def typed(function: _Function, run: _Function, what: str) -> _Function:
    """`run`, which calls the handler `function`, with its payload read if that has a type. A
    ValueError says what is wrong with its annotations."""
    parameter = _command_of(function)
    if parameter is None:
        return run
    annotation = _Annotation(parameter.annotation, function, what)
    try:
        hint = annotation.resolved()
    except NameError:
        # Without brackets it is Command, imported for type checkers only.
        return TypedHandler(run, annotation) if "[" in str(parameter.annotation) else run
    annotation.check(hint)
    if get_origin(hint) is not Command or get_args(hint) == (Any,):
        return run
    handler = TypedHandler(run, annotation)
    with suppress(NameError):  # It is defined further down: see `prepare`.
        handler.prepare()
    return handler


def prepare(run: _Function) -> None:
    """All of the application is imported. A ValueError says what is wrong with the type of a
    handler's payload."""
    if not isinstance(run, TypedHandler):
        return
    try:
        run.prepare()
    except NameError as error:
        raise ValueError(
            f"{run._annotation.what}: {error}; define or import it at the top level of its "
            f"module, outside of `if TYPE_CHECKING`"
        ) from None


class _Annotation:
    """Of the parameter that gets the command."""

    def __init__(self, written: Any, function: _Function, what: str) -> None:
        self._written, self._function = written, function
        self.what = f"{what}, {name_of(function)}"

    def resolved(self) -> Any:
        """A NameError while something that it names does not exist."""
        function = inspect.unwrap(self._function)
        function = (
            function
            if inspect.isroutine(function)
            else getattr(function, "func", function.__call__)
        )
        known = getattr(function, "__globals__", {})

        def carrier() -> None: ...

        carrier.__annotations__ = {"command": self._written}
        names = ChainMap(known, {"Command": Command})
        return get_type_hints(carrier, known, names)["command"]

    def payload_type(self) -> Any:
        hint = self.resolved()
        self.check(hint)
        return get_args(hint)[0] if get_origin(hint) is Command else Any

    def check(self, hint: Any) -> None:
        if (
            isinstance(hint, type)
            and hint is not Any  # which is a class since Python 3.11
            and not issubclass(Command, hint)
            and not getattr(hint, "_is_protocol", False)
        ):
            raise ValueError(
                f"{self.what}, is called with (command, context), and its first parameter is "
                f"annotated as {hint.__qualname__}: write Command, or Command[...] with the type "
                f"of its payload"
            )


def _command_of(function: _Function) -> inspect.Parameter | None:
    """The parameter that gets the command, if it is annotated."""
    try:
        parameters = [*signature_of(function).parameters.values()]
    except ValueError:
        return None  # Some builtins have no signature.
    first = parameters[0]
    is_one = first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD)
    return first if is_one and first.annotation is not first.empty else None


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, Mismatch) else "data is nested too deeply to be read"
