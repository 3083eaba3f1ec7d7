"""An execution leaves nothing to the garbage collector, which may come late: its command's data may
be large."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest
from eventually import eventually
from handlers import ONCE, handling, running
from sentries import sentry

from cmdbus import Command, CommandBus, Context, HandlerRegistry
from cmdbus.otel import CmdbusInstrumentor


@contextmanager
def otel() -> Iterator[None]:
    CmdbusInstrumentor().instrument()
    try:
        yield
    finally:
        CmdbusInstrumentor().uninstrument()


def passing(command: Command, context: Context) -> Iterator[None]:
    yield


def raising(command: Command, context: Context) -> Iterator[None]:
    yield
    raise LookupError("of the middleware")


def surrounded(registry: HandlerRegistry, what: str) -> AbstractContextManager[object]:
    if what == "middleware":
        registry.around(passing)
    elif what == "a failing middleware":
        registry.around(raising)
    elif what == "otel":
        return otel()
    elif what == "sentry":
        return sentry(traces_sample_rate=1.0)
    return nullcontext()


@pytest.mark.parametrize(
    "what", ["nothing", "middleware", "a failing middleware", "otel", "sentry"]
)
def test_an_execution_is_forgotten_at_its_end(what: str, dsn: str, bus: CommandBus) -> None:
    contexts: list[weakref.ref[Context]] = []

    def handle(command: Command, context: Context) -> None:
        contexts.append(weakref.ref(context))
        assert context.connection
        if command.data:
            raise ValueError("no reason")

    registry = handling(handle, retry=ONCE)
    gc.disable()
    try:
        with surrounded(registry, what), running(dsn, registry):
            for fails in (False, True):
                bus.send("payments", "Debit", fails, headers={"tenant": "acme"})
            eventually(lambda: len(contexts) == 2)
            eventually(lambda: [context() for context in contexts] == [None, None])
    finally:
        gc.enable()
