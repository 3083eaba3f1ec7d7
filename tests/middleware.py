"""Middleware for tests, and commands that are executed within it."""

from collections import defaultdict
from collections.abc import Generator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from eventually import eventually
from handlers import ONCE, Function, do_nothing, found, kinds, running

from cmdbus import (
    Command,
    CommandBus,
    CommandRecord,
    Context,
    ExecutionOutcome,
    HandlerRegistry,
)

Yields = Generator[None, ExecutionOutcome, None]


class Case(NamedTuple):
    """A handler, what is around it, and its options."""

    function: Function = do_nothing
    arounds: tuple[Any, ...] = ()
    options: Mapping[str, Any] = MappingProxyType({})


class Outcomes:
    """A middleware that keeps the outcomes of what is inside of it, by the types of commands."""

    def __init__(self) -> None:
        self.seen = defaultdict[str, list[ExecutionOutcome]](list)

    def __call__(self, command: Command, context: Context) -> Yields:
        try:
            outcome = yield
            assert context.outcome is outcome
        except BaseException as error:
            outcome = context.outcome  # type: ignore[assignment]  # it is over
            assert outcome.error is error
            raise
        finally:
            self.seen[command.type].append(outcome)


def registry_of(cases: dict[str, Case], outermost: Outcomes | None = None) -> HandlerRegistry:
    """With a handler of `payments` for each."""
    registry = HandlerRegistry()
    if outermost is not None:
        registry.around(outermost)
    for type_, (function, arounds, options) in cases.items():
        registry.register("payments", type_, function, **{"retry": ONCE, **options})
        for around in arounds:
            assert registry.around(type=type_)(around) is around
    return registry


def ended(
    dsn: str, bus: CommandBus, cases: dict[str, Case], outermost: Outcomes | None = None
) -> dict[str, CommandRecord]:
    """What has become of a command of each type, by the type, after one execution that is
    charged."""
    registry = registry_of(cases, outermost)
    ids = {type_: bus.send("payments", type_) for type_ in cases}
    with running(dsn, registry):
        for id_ in ids.values():
            eventually(lambda: kinds(bus, id_)[-1] not in ("SENT", "RECEIVED"))  # noqa: B023
    return {type_: found(bus, id_) for type_, id_ in ids.items()}
