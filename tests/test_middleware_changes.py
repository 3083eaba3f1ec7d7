"""Middleware that changes what becomes of a command after its handler has ended."""

from collections import Counter

from eventually import eventually
from handlers import Function, do_nothing, handling, running
from middleware import Outcomes, Yields
from test_process_groups import Watched, are_completed, moved, replied

from cmdbus import Command, CommandBus, Context, HandlerRegistry, RetryPolicy

LATER = RetryPolicy(max_attempts=3, backoff=(60.0,), jitter=0.0)


def look_up(command: Command, context: Context) -> None:
    raise LookupError


def give_back(command: Command, context: Context) -> Yields:
    yield
    context.again(300)


def put_off(command: Command, context: Context) -> Yields:
    try:
        yield
    except LookupError:
        context.retry_after(77)
        raise


def test_what_is_around_it_sees_the_change(dsn: str, bus: CommandBus) -> None:
    cases: tuple[tuple[Function, object, object], ...] = (
        (do_nothing, give_back, ("AGAIN", None, 300)),
        (look_up, put_off, ("RETRY", "LookupError", 77)),
    )
    for function, around, expected in cases:
        registry: HandlerRegistry = handling(function, retry=LATER)
        outcomes = Outcomes()
        registry.around(outcomes)
        registry.around(type="Debit")(around)  # type: ignore[type-var]  # either is one
        with running(dsn, registry):
            bus.send("payments", "Debit")
            eventually(lambda: outcomes.seen["Debit"])  # noqa: B023
        [outcome] = outcomes.seen["Debit"]
        assert (outcome.status, outcome.code, outcome.delay) == expected


def test_a_command_of_a_group_that_it_gives_back_runs_again(dsn: str, bus: CommandBus) -> None:
    """No group can give one of its commands back: all run by themselves."""
    is_asked = list[bool]()
    ran = Counter[object]()

    def around(command: Command, context: Context) -> Yields:
        yield
        if command.type == "Reply" and is_asked:
            ran[command.command_id] += 1
            if ran[command.command_id] == 1:
                context.again()

    with replied(dsn, bus, Watched(), around=around, concurrency=4) as ids:
        is_asked.append(True)
        bus.resume("trips")
        eventually(lambda: are_completed(bus, ids))
        assert moved(bus, ids)
    assert len(ran) == len(ids)
    assert min(ran.values()) > 1
