"""Circuit breakers as values: what is declared, what counts, and how long commands are deferred."""

from datetime import timedelta
from typing import Any

import pytest
from handlers import do_nothing

from cmdbus import (
    Breaker,
    BreakerOpenError,
    BreakerTerms,
    BusinessRuleError,
    HandlerRegistry,
    PermanentCommandError,
    TransientCommandError,
    handler,
)
from cmdbus.breakers import BreakerDeclaration, Verdict, deferral
from cmdbus.worker import Worker

STRIPE = Breaker("stripe")


def test_a_breaker_has_these_terms_by_default() -> None:
    assert STRIPE.terms == BreakerTerms(failures=5, window=60, cooldown=30, probes=1)
    assert STRIPE.counts == (TransientCommandError, TimeoutError)
    assert str(STRIPE.terms) == "opens at 5 failures in 60 s, for 30 s, then 1 probe"


def test_times_are_seconds_or_timedeltas_and_long_ones_are_shown_in_hours_and_days() -> None:
    breaker = Breaker("stripe", window=timedelta(hours=1), cooldown=timedelta(days=400))
    assert breaker.terms == BreakerTerms(failures=5, window=3600.0, cooldown=34560000.0, probes=1)
    assert str(breaker.terms) == "opens at 5 failures in 1h, for 400d, then 1 probe"
    assert str(Breaker("x", cooldown=100_000.5).terms).endswith("for 100000.5 s, then 1 probe")


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (None, Verdict.SUCCESS),
        (TransientCommandError("RATE", "too many requests"), Verdict.FAILURE),
        (TimeoutError(), Verdict.FAILURE),
        (BusinessRuleError("POOR", "no money"), Verdict.SUCCESS),
        (PermanentCommandError("GONE", "no such card"), Verdict.SUCCESS),
        (KeyError("amount"), Verdict.OTHER),
        (BreakerOpenError("stripe", 3.0), Verdict.NOTHING),
        (BreakerOpenError("other", 3.0), Verdict.OTHER),
    ],
)
def test_an_answer_is_a_success_and_what_counts_is_a_failure(
    error: BaseException | None, verdict: Verdict
) -> None:
    assert STRIPE.verdict(error) is verdict


def test_the_exceptions_that_count_can_be_others() -> None:
    breaker = Breaker("stripe", counts=(PermanentCommandError, ConnectionError))
    assert breaker.verdict(PermanentCommandError("GONE", "")) is Verdict.FAILURE
    assert breaker.verdict(BrokenPipeError()) is Verdict.FAILURE
    assert breaker.verdict(TransientCommandError("DOWN", "")) is Verdict.OTHER
    assert Breaker("stripe", counts=OSError).counts == (OSError,)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("terms", "sentence"),
    [
        ({"failures": 0}, "failures of the breaker stripe must be a whole number from 1 to 1000"),
        ({"failures": 2.5}, "failures of the breaker stripe must be a whole number"),
        ({"window": 0}, "window of the breaker stripe must be more than 0 seconds"),
        ({"cooldown": "30"}, "cooldown of the breaker stripe must be a number of seconds"),
        ({"probes": True}, "probes of the breaker stripe must be a whole number from 1 to 1000"),
        ({"counts": ("TimeoutError",)}, "must be exception classes, not 'TimeoutError'"),
        ({"counts": (TimeoutError, dict)}, "must be exception classes, not <class 'dict'>"),
        ({"counts": ()}, "counts of the breaker stripe is empty: name the exceptions"),
    ],
)
def test_impossible_terms_are_one_sentence(terms: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Breaker("stripe", **terms)


def test_a_breaker_is_declared_once_and_with_a_name() -> None:
    registry = HandlerRegistry()
    registry.breaker(STRIPE)
    with pytest.raises(ValueError, match="the breaker stripe is declared twice"):
        registry.breaker(Breaker("stripe", failures=9))
    with pytest.raises(ValueError, match="breaker takes a Breaker, not 'stripe'"):
        registry.breaker("stripe")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="breaker must be a letter and up to 99 more"):
        Breaker("the bank")


def test_a_declaration_names_the_types_that_are_bound() -> None:
    registry = HandlerRegistry()
    registry.register("payments", "Refund", do_nothing, breaker="stripe")
    registry.register("payments", "Charge", do_nothing, breaker="stripe")
    registry.register("payments", "Noop", do_nothing)
    registry.breaker(STRIPE)
    [declared] = registry.breakers()
    assert declared.covers == ("payments Charge", "payments Refund")
    assert str(declared) == (
        "stripe: opens at 5 failures in 60 s, for 30 s, then 1 probe, counts "
        "TransientCommandError, TimeoutError, for payments/Charge, payments/Refund"
    )
    assert BreakerDeclaration.of("stripe", declared.row) == declared


def test_a_handler_cannot_have_a_breaker_that_its_registry_does_not_declare() -> None:
    class Payments:
        @handler("payments", "Charge", breaker="stirpe")
        def charge(self, command: object, context: object) -> None:
            pass

    registry = HandlerRegistry()
    registry.register_instance(Payments())
    registry.breaker(STRIPE)
    sentence = (
        "the handler of payments/Charge has the breaker 'stirpe', which its registry does not "
        "declare: did you mean 'stripe'?"
    )
    for refuse in (registry.breakers, lambda: Worker("host=nowhere.invalid", registry)):
        with pytest.raises(ValueError) as refused:
            refuse()
        assert str(refused.value) == sentence
    for wrong, rule in (
        (3, "the name of one breaker, not 3"),
        (["x", "y"], r"the name of one breaker, not \['x', 'y'\]"),
        (Breaker("x"), "its name: pass 'x'"),
        ("a b", "a letter and up to 99 more"),
    ):
        with pytest.raises(ValueError, match=f"^breaker of payments/Refund must be {rule}"):
            registry.register("payments", "Refund", do_nothing, breaker=wrong)  # type: ignore[arg-type]


def test_a_bound_handler_is_checked_and_named_like_any_other() -> None:
    registry = HandlerRegistry()

    async def charge(command: object, context: object) -> None:
        pass

    with pytest.raises(ValueError, match="is async: handlers are ordinary functions"):
        registry.register("payments", "Charge", charge, breaker="stripe")
    with pytest.raises(ValueError, match="must be callable"):
        registry.register("payments", "Charge", 3, breaker="stripe")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"is called with \(command, context\)"):
        registry.register("payments", "Charge", lambda command: None, breaker="stripe")  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(
    ("retry_in", "changed_ago", "least", "most"),
    [
        (20.0, 10.0, 20.0, 20.5),
        (0.2, 0.8, 0.2, 0.7),
        # Other calls are probes: soon, then less and less often.
        (-0.1, 30.0, 0.25, 0.5),
        (-8.0, 30.0, 4.0, 8.0),
        (-900.0, 30.0, 15.0, 30.0),
        # An operator keeps it open.
        (None, 10.0, 30.0, 33.0),
        (None, 1000.0, 200.0, 220.0),
    ],
)
def test_a_command_is_deferred_until_the_cooldown_ends_and_a_little_longer(
    retry_in: float | None, changed_ago: float, least: float, most: float
) -> None:
    assert deferral(30.0, retry_in, changed_ago, 0.0) == pytest.approx(least)
    assert deferral(30.0, retry_in, changed_ago, 1.0) == pytest.approx(most)
