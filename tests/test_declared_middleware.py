"""What may be declared as middleware, and what is refused."""

import contextlib
from collections.abc import Iterator
from functools import partial
from types import TracebackType
from typing import Any

import pytest
from handlers import do_nothing, handling
from middleware import Yields

from cmdbus import Command, Context, HandlerRegistry


def generator(command: Command, context: Context) -> Yields:
    yield


@contextlib.contextmanager
def decorated(command: Command, context: Context) -> Iterator[None]:
    yield


class Manager:
    def __init__(self, command: Command, context: Context) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


async def awaiting(command: Command, context: Context) -> None: ...


async def yielding(command: Command, context: Context) -> Any:
    yield


yielding_manager = contextlib.asynccontextmanager(yielding)


def alone() -> Yields:
    yield


def raising(command: Command, context: Context) -> Any:
    raise NotImplementedError


class NoManager:
    def __init__(self, command: Command, context: Context) -> None: ...


class Called:
    def __call__(self, command: Command, context: Context) -> None: ...


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (7, r"a middleware must be a function, not 7: write @registry\.around, or @registry"),
        ("payments", r"not 'payments': write @registry\.around, or @registry\.around\(domain="),
        (awaiting, "the middleware test_declared_middleware.awaiting is async"),
        (yielding, "the middleware test_declared_middleware.yielding is async"),
        (yielding_manager, "the middleware test_declared_middleware.yielding is async"),
        (do_nothing, "the middleware handlers.do_nothing is neither a generator nor a context"),
        (raising, "the middleware test_declared_middleware.raising is neither"),
        (NoManager, "the middleware test_declared_middleware.NoManager is neither"),
        (Called(), "the middleware test_declared_middleware.Called is neither"),
        (partial(do_nothing), "the middleware handlers.do_nothing is neither"),
        (
            alone,
            r"middleware test_declared_middleware.alone is called with \(command, context\): too",
        ),
    ],
)
def test_what_is_no_middleware_is_refused_at_its_declaration(function: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        HandlerRegistry().around(function)


class Bound:
    def method(self, command: Command, context: Context) -> Yields:
        yield

    def __call__(self, command: Command, context: Context) -> Any:
        return contextlib.nullcontext() if command.data else None


@pytest.mark.parametrize(
    "function",
    [
        Bound().method,
        Bound(),
        Manager,
        decorated,
        partial(generator),
        lambda command, context: contextlib.nullcontext(),
        lambda command, context: contextlib.nullcontext() if command else None,
    ],
)
def test_all_that_may_be_a_middleware_is_taken(function: Any) -> None:
    HandlerRegistry().around(function)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"domain": "paymnts"}, "paymnts/any type"),
        ({"domain": "payments", "type": "Dbit"}, "payments/Dbit"),
        ({"type": "Dbit"}, "any domain/Dbit"),
    ],
)
def test_a_middleware_for_no_handler_is_an_error_of_the_start(
    given: dict[str, str], wanted: str
) -> None:
    registry = handling()
    registry.around(**given)(generator)
    sentence = f"the middleware {__name__}.generator is for {wanted}, of which the registry has"
    with pytest.raises(ValueError, match=sentence):
        registry.declarations()
    with pytest.raises(ValueError, match="domain of around must be"):
        registry.around(domain="a b")
