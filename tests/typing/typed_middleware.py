"""What type checkers must take as middleware, and what not. Nothing runs this."""

# Of what follows from an error.
# pyright: reportUntypedFunctionDecorator=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from cmdbus import Command, Context, ExecutionOutcome, HandlerRegistry

registry = HandlerRegistry(forward_headers=("traceparent",))


@registry.around
def timed(command: Command, context: Context) -> Generator[None, ExecutionOutcome, None]:
    outcome = yield
    print(outcome.status.lower(), outcome.delay)
    print(outcome.statsu)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


@registry.around(domain="payments", type="Debit")
def plain(command: Command, context: Context) -> Iterator[None]:
    context.headers["tenant"] = "blue"
    context.headers["number"] = 7  # type: ignore[assignment]  # pyright: ignore[reportArgumentType]
    yield
    if context.outcome is not None:
        print(context.outcome.code)


@registry.around(domain="payments")
@contextmanager
def managed(command: Command[Any], context: Context) -> Generator[None, None, None]:
    yield


@registry.around
def made(command: Command, context: Context) -> AbstractContextManager[None]:
    return nullcontext()


@registry.around
class Manager:
    def __init__(self, command: Command, context: Context) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


@registry.around  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportCallIssue]
def returns_nothing(command: Command, context: Context) -> None: ...


@registry.around(domain="payments")  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
def without_context(command: Command) -> Iterator[None]:
    yield
