"""`registry.around`: what an application puts around its handlers."""

import contextlib
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, ClassVar

from eventually import eventually
from handlers import Function, do_nothing, effects, found, handling, leave_effect, running
from middleware import Case, Outcomes, Yields, ended, registry_of

from cmdbus import (
    BreakerOpenError,
    BusinessRuleError,
    Command,
    CommandBus,
    Context,
    PermanentCommandError,
    RetryPolicy,
)

FORM = "a middleware yields once, where the handler runs, or returns a context manager"
LATER = {"retry": RetryPolicy(max_attempts=3, backoff=(60,), jitter=0.0)}
TROUBLE = "IN_TROUBLESHOOTING_QUEUE"


def failing(error: BaseException) -> Function:
    def handle(command: Command, context: Context) -> None:
        leave_effect(command, context)
        raise error

    return handle


def test_the_first_one_is_the_outermost_and_each_covers_its_types(
    dsn: str, bus: CommandBus
) -> None:
    seen: list[str] = []
    registry = handling(lambda command, context: seen.append("handler"))
    registry.register("other", "Debit", do_nothing)

    def naming(name: str) -> Callable[[Command, Context], Yields]:
        def around(command: Command, context: Context) -> Yields:
            seen.append(name)
            yield
            seen.append(f"/{name}")

        return around

    registry.around(naming("all"))
    registry.around(domain="payments")(naming("domain"))
    registry.around(domain="payments", type="Noop")(naming("one"))
    registry.around(type="Debit")(naming("type"))
    registry.around(domain="other")(naming("other"))
    with running(dsn, registry, concurrency=1):
        for domain, type_ in (("payments", "Debit"), ("payments", "Noop"), ("other", "Debit")):
            bus.call(domain, type_)
            seen.append("|")
    assert " ".join(seen).split(" | ") == [
        "all domain type handler /type /domain /all",
        "all domain one /one /domain /all",
        "all type other /other /type /all |",
    ]


@contextlib.contextmanager
def decorated(command: Command, context: Context) -> Iterator[None]:
    yield


class Manager:
    """A context manager as a class."""

    seen: ClassVar[list[object]] = []

    def __init__(self, command: Command, context: Context) -> None:
        self.context = context

    def __enter__(self) -> None:
        assert self.context.outcome is None

    def __exit__(self, kind: object, error: object, trace: TracebackType | None) -> None:
        self.seen.append(self.context.outcome)


def retry_late(command: Command, context: Context) -> None:
    context.retry_after(77)
    raise LookupError


def test_outcomes_are_seen_as_they_are_settled(dsn: str, bus: CommandBus) -> None:
    def balance(command: Command, context: Context) -> dict[str, int]:
        return {"balance": 7}

    outermost, inner = Outcomes(), Outcomes()
    arounds = decorated, Manager, inner
    functions: dict[str, tuple[Function, dict[str, Any], object]] = {
        "completed": (balance, {}, ("COMPLETED", {"balance": 7}, None, None, "COMPLETED")),
        "failed": (failing(BusinessRuleError("NO", "no")), {}, ("FAILED", "NO", None, "FAILED")),
        "exhausted": (
            failing(LookupError()),
            {},
            ("TROUBLESHOOTING", "LookupError", None, TROUBLE),
        ),
        "permanent": (
            failing(PermanentCommandError("GONE", "no account")),
            LATER,
            ("TROUBLESHOOTING", "GONE", None, TROUBLE),
        ),
        "retried": (failing(LookupError()), LATER, ("RETRY", "LookupError", 60, "PENDING")),
        "late": (retry_late, LATER, ("RETRY", "LookupError", 77, "PENDING")),
        "exit": (failing(SystemExit(3)), LATER, ("RETRY", "SystemExit", 60, "PENDING")),
        "stop": (failing(StopIteration()), LATER, ("RETRY", "StopIteration", 60, "PENDING")),
        "close": (failing(GeneratorExit()), LATER, ("RETRY", "GeneratorExit", 60, "PENDING")),
        "object": (
            lambda command, context: object(),
            LATER,
            ("RETRY", "RESULT_NOT_STORABLE", 60, "PENDING"),
        ),
    }
    cases = {name: Case(f, arounds, options) for name, (f, options, _) in functions.items()}
    records = ended(dsn, bus, cases, outermost)
    for name, (_, _, expected) in functions.items():
        [outcome], record = outermost.seen[name], records[name]
        assert inner.seen[name] == [outcome]
        assert outcome in Manager.seen
        assert "middleware" not in str(record.error_message)
        if name == "completed":
            assert outcome == ("COMPLETED", {"balance": 7}, None, None, None)
            assert record.result == {"balance": 7}
        else:
            assert (outcome.status, outcome.code, outcome.delay, record.status) == expected
            assert record.error_code == outcome.code
    assert effects(dsn) == 0
    trace = bus.audit("payments", records["failed"].command_id)[-1].details["traceback"]
    assert "in failing" not in trace and "in __call__" not in trace  # no frames of middleware


def open_breaker(command: Command, context: Context) -> None:
    raise BreakerOpenError("stripe", 60.0)


def give_back(command: Command, context: Context) -> None:
    context.checkpoint(1)
    context.again(60)


def test_a_command_that_runs_again_uncharged_is_seen_as_such(dsn: str, bus: CommandBus) -> None:
    cases = {"deferred": Case(open_breaker), "again": Case(give_back)}
    outcomes = Outcomes()
    with running(dsn, registry_of(cases, outcomes)):
        ids = [bus.send("payments", type_) for type_ in cases]
        for id_ in ids:
            eventually(lambda: found(bus, id_).status == "PENDING" and len(outcomes.seen) == 2)  # noqa: B023
    [deferred], [again] = outcomes.seen["deferred"], outcomes.seen["again"]
    assert (deferred.status, deferred.code, deferred.delay) == ("DEFERRED", "BREAKER_OPEN", 60.0)
    assert again == ("AGAIN", None, None, None, 60)
    assert [found(bus, id_).attempts for id_ in ids] == [0, 0]


def before(command: Command, context: Context) -> Yields:
    if context.attempt:
        raise BusinessRuleError("CLOSED", "not today")
    yield


def after(command: Command, context: Context) -> Yields:
    yield
    raise BusinessRuleError("CLOSED", "not today")


def instead(command: Command, context: Context) -> Yields:
    try:
        yield
    except LookupError as error:
        raise BusinessRuleError("CLOSED", "not today") from error


@contextlib.contextmanager
def managing(command: Command, context: Context) -> Iterator[None]:
    yield
    raise BusinessRuleError("CLOSED", "not today")


def long(command: Command, context: Context) -> Yields:
    yield
    raise ZeroDivisionError("x" * 3000)


def never(command: Command, context: Context) -> Yields:
    if command.data:
        yield


def twice(command: Command, context: Context) -> Yields:
    yield
    yield


def twice_after_an_error(command: Command, context: Context) -> Yields:
    try:
        yield
    finally:
        yield


def no_manager(command: Command, context: Context) -> Any:
    return command.data


def test_an_error_of_a_middleware_is_the_commands_and_names_it(dsn: str, bus: CommandBus) -> None:
    closed = "FAILED", "CLOSED", "not today"
    wrong = TROUBLE, "MIDDLEWARE_INVALID"
    expected: dict[Any, tuple[str, str, str]] = {
        before: closed,
        after: closed,
        managing: closed,
        instead: closed,
        long: (TROUBLE, "ZeroDivisionError", "xxx"),
        never: (*wrong, f"it ended before it yielded, so the handler was not called: {FORM}"),
        twice: (*wrong, f"it yielded a second time: {FORM}"),
        twice_after_an_error: (*wrong, f"it yielded a second time: {FORM}"),
        no_manager: (*wrong, f"it returned None: {FORM}"),
    }
    outcomes = Outcomes()
    cases = {
        around.__name__: Case(
            failing(LookupError()) if around in (instead, twice_after_an_error) else leave_effect,
            (around,),
        )
        for around in expected
    }
    records = ended(dsn, bus, cases, outcomes)
    for around, (status, code, message) in expected.items():
        name = around.__name__
        [outcome], record = outcomes.seen[name], records[name]
        assert (record.status, record.error_code, outcome.code) == (status, code, code)
        start = f"in the middleware {__name__}.{name}: {message}"
        assert record.error_message is not None and record.error_message.startswith(start)
        assert record.error_message == start or len(record.error_message) == 2000
    assert effects(dsn) == 0
    details = bus.audit("payments", records["long"].command_id)[-1].details
    began, first, *_ = details["traceback"].splitlines()
    assert (began, first.split(", ")[-1]) == ("Traceback (most recent call last):", "in long")


def swallowing(command: Command, context: Context) -> Yields:
    with contextlib.suppress(LookupError):
        yield


def suppressing(command: Command, context: Context) -> Any:
    return contextlib.suppress(LookupError)


def test_a_middleware_that_swallows_an_error_completes_the_command(
    dsn: str, bus: CommandBus
) -> None:
    cases = {
        around.__name__: Case(failing(LookupError()), (around,))
        for around in (swallowing, suppressing)
    }
    outcomes = Outcomes()
    for name, record in ended(dsn, bus, cases, outcomes).items():
        assert (record.status, record.result, record.error_code) == ("COMPLETED", None, None)
        assert outcomes.seen[name] == [("COMPLETED", None, None, None, None)]
    assert effects(dsn) == 2
