"""Handlers: registered once, checked when they are registered."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from cmdbus import Command, HandlerAlreadyRegisteredError, HandlerRegistry, RetryPolicy, handler
from cmdbus.handlers import Handler, make_handler


def debit(command: Command, context: object) -> None: ...


def test_a_decorated_function_is_registered_with_its_limits_and_stays_itself() -> None:
    registry = HandlerRegistry()
    retry = RetryPolicy(max_attempts=1)
    assert registry.handler("payments", "Debit", timeout=35.0, retry=retry)(debit) is debit
    found = registry.find("payments", "Debit")
    assert found is not None
    assert (found.function, found.timeout, found.retry) == (debit, 35.0, retry)
    assert registry.find("payments", "Credit") is None
    assert (len(registry), registry.domains) == (1, ["payments"])


def test_a_second_handler_for_the_same_pair_is_refused_and_the_first_one_stays() -> None:
    registry = HandlerRegistry()
    registry.register("payments", "Debit", debit)
    with pytest.raises(
        HandlerAlreadyRegisteredError, match=r"payments/Debit .* test_registry.debit"
    ):
        registry.register("payments", "Debit", lambda command, context: None)
    found = registry.find("payments", "Debit")
    assert found is not None and found.function is debit


@pytest.mark.parametrize("ask", [len, list, lambda registry: registry.find("mail", "Send")])
def test_handlers_that_are_registered_later_are_made_once_when_they_are_asked_for(
    ask: Callable[[HandlerRegistry], object],
) -> None:
    made = list[str]()
    registry = HandlerRegistry()

    def make() -> list[Handler]:
        made.append("once")
        return [make_handler("mail", "Send", debit, {})]

    registry.register_later(make)
    registry.register("payments", "Debit", debit)
    assert not made
    ask(registry)
    assert {each.name for each in registry} == {"payments Debit", "mail Send"}
    assert made == ["once"]


def test_handlers_that_are_registered_later_collide_each_time_they_are_asked_for() -> None:
    registry = HandlerRegistry()
    registry.register_later(lambda: [make_handler("payments", "Debit", debit, {})])
    registry.register("payments", "Debit", debit)
    for _ in range(2):
        with pytest.raises(HandlerAlreadyRegisteredError):
            list(registry)


class Service:
    def __init__(self) -> None:
        self.seen: list[object] = []

    @property
    def broken(self) -> None:
        raise RuntimeError("properties must not run")

    @handler("payments", "Debit", timeout=5, statement_timeout=2)
    @handler("payments", "Credit")
    def book(self, command: object, context: object) -> str:
        self.seen.append(command)
        return "booked"

    @handler("payments", "Secret")
    def _private(self, command: object, context: object) -> None: ...


def test_marked_methods_are_registered_bound_and_private_ones_are_not() -> None:
    service, registry = Service(), HandlerRegistry()
    registry.register_instance(service)
    limits = sorted((h.type, h.timeout, h.statement_timeout) for h in registry)
    assert limits == [("Credit", None, None), ("Debit", 5, 2)]
    found = registry.find("payments", "Credit")
    assert found is not None and found.function("c", None) == "booked"  # type: ignore[arg-type]
    assert service.seen == ["c"]


def test_an_instance_is_registered_whole_or_not_at_all() -> None:
    registry = HandlerRegistry()
    registry.register("payments", "Debit", debit)
    with pytest.raises(HandlerAlreadyRegisteredError):
        registry.register_instance(Service())
    assert [h.type for h in registry] == ["Debit"]


def test_an_instance_without_marks_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="object has no public method marked with @handler"):
        HandlerRegistry().register_instance(object())


async def later(command: object, context: object) -> None: ...


async def stream(command: object, context: object) -> object:
    yield


def each(command: object, context: object) -> Iterator[int]:
    yield 1


class CalledLater:
    async def __call__(self, command: object, context: object) -> None: ...


@pytest.mark.parametrize("function", [later, stream, CalledLater(), partial(later)])
def test_async_handlers_are_refused(function: object) -> None:
    with pytest.raises(ValueError, match="is async: handlers are ordinary functions"):
        HandlerRegistry().register("payments", "Debit", function)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (each, "is a generator"),
        (lambda: None, r"is called with \(command, context\)"),
        (None, "must be callable, not None"),
    ],
)
def test_what_cannot_be_a_handler_is_refused(function: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        HandlerRegistry().register("payments", "Debit", function)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"timeout": 0}, "timeout of payments/Debit must be more than 0"),
        ({"timeout": float("inf")}, "timeout of payments/Debit must be more than 0"),
        ({"retry": 3}, "retry must be a RetryPolicy"),
    ],
)
def test_limits_of_a_handler_are_checked(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        HandlerRegistry().register("payments", "Debit", debit, **arguments)  # type: ignore[arg-type]


def test_names_of_a_handler_are_checked() -> None:
    with pytest.raises(ValueError, match="type must be a letter"):
        HandlerRegistry().register("payments", "De bit", debit)
