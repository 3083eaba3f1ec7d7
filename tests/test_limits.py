"""Limits as they are declared: their values, and what is wrong with them."""

import sys
from types import ModuleType
from typing import Any

import pytest

from cmdbus import Command, Context, HandlerRegistry, handler
from cmdbus.errors import AppError
from cmdbus.limits import Declaration, Limit, rate_text, starts_per_second
from cmdbus.worker.boot.app import load
from cmdbus.worker.worker import Worker


def do_nothing(command: Command, context: Context) -> None: ...


def registered(**options: Any) -> HandlerRegistry:
    registry = HandlerRegistry()
    registry.register("payments", "Charge", do_nothing, **options)
    return registry


@pytest.mark.parametrize(
    ("rate", "starts", "text"),
    [
        ("5/s", 5.0, "5/s"),
        ("5/sec", 5.0, "5/s"),
        ("5 / second", 5.0, "5/s"),
        ("100/min", 100 / 60, "100/min"),
        ("120/minute", 2.0, "2/s"),
        ("1000/h", 1000 / 3600, "1000/h"),
        ("7/hour", 7 / 3600, "7/h"),
        ("10/d", 10 / 86400, "10/day"),
        ("0.5/s", 0.5, "30/min"),
        ("1.2345/s", 1.2345, "1.2345/s"),
        ("0.0001/day", 0.0001 / 86400, "0.0001/day"),
    ],
)
def test_a_rate_is_read_and_shown(rate: str, starts: float, text: str) -> None:
    assert starts_per_second("rate", rate) == starts
    assert starts_per_second("rate", rate_text(starts)) == pytest.approx(starts)
    assert rate_text(starts) == text


@pytest.mark.parametrize(
    ("options", "limit", "text"),
    [
        ({}, None, ""),
        ({"concurrency": 5}, Limit(concurrency=5), "5 at once"),
        (
            {"rate": "100/min", "burst": 10},
            Limit(starts_per_second=100 / 60, burst=10),
            "100/min with a burst of 10",
        ),
        ({"ordered": True}, Limit(ordered=True), "in order (block on trouble)"),
        (
            {"ordered": True, "concurrency": 1, "on_trouble": "skip"},
            Limit(concurrency=1, ordered=True, on_trouble="skip"),
            "in order (skip on trouble)",
        ),
        (
            {"fair": True, "concurrency": 2, "rate": "1/s"},
            Limit(concurrency=2, starts_per_second=1.0, fair=True),
            "2 at once, 1/s, fair",
        ),
    ],
)
def test_a_handlers_options_make_its_limit(
    options: dict[str, Any], limit: Limit | None, text: str
) -> None:
    declared = [Declaration("payments Charge", limit)] if limit else []
    assert registered(**options).limits() == declared
    assert [str(each) for each in declared] == (
        [f"payments/Charge: {text}, by key"] if text else []
    )
    assert [Declaration.of(each.name, row_of(each)) for each in declared] == declared


def row_of(declaration: Declaration) -> dict[str, Any]:
    return {name: value for name, value in declaration.row.items() if name != "name"}


def test_marked_methods_have_limits_too() -> None:
    class Service:
        @handler("payments", "Charge", concurrency=3, limit=["stripe", "bank"])
        def charge(self, command: Command, context: Context) -> None: ...

    registry = HandlerRegistry()
    registry.limit("stripe", concurrency=5)
    registry.limit("bank", domain="payments", rate="1/s", per="node")
    registry.register_instance(Service())
    stripe, bank = Limit(concurrency=5), Limit(starts_per_second=1.0, per_node=True)
    assert registry.limits() == [
        Declaration("payments Charge", Limit(concurrency=3)),
        Declaration("stripe", stripe, ("payments Charge",)),
        Declaration("bank", bank, ("payments Charge", "payments")),
    ]
    assert str(registry.limits()[2]) == "bank: 1/s, on each node, for payments/Charge, payments"


def test_a_mistake_in_a_mark_is_an_error_where_it_is_made() -> None:
    with pytest.raises(ValueError, match="concurrency of payments/Charge must be"):
        handler("payments", "Charge", concurrency=0)
    with pytest.raises(ValueError, match="timeout of payments/Charge must be"):
        handler("payments", "Charge", timeout=-1)
    with pytest.raises(ValueError, match="type must be"):
        handler("payments", "Charge!")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"concurrency": 0},
            "concurrency of payments/Charge must be a whole number from 1 to 2147483646, not 0",
        ),
        ({"concurrency": 2.5}, "concurrency of payments/Charge must be a whole number from 1 to"),
        ({"concurrency": True}, "concurrency of payments/Charge must be a whole number from 1 to"),
        (
            {"rate": "0/s"},
            "rate of payments/Charge must be more than 0, not '0/s': to start nothing, pause the "
            "domain",
        ),
        (
            {"rate": "-1/s"},
            "rate of payments/Charge must be a number and s, min, h or day, like '100/min', "
            "not '-1/s'",
        ),
        ({"rate": "5/week"}, "must be a number and s, min, h or day, like '100/min'"),
        ({"rate": 5}, "must be a number and s, min, h or day, like '100/min', not 5"),
        ({"rate": "1/s", "burst": 0}, "burst of payments/Charge must be a whole number from 1 to"),
        ({"burst": 2}, "burst of payments/Charge needs a rate: it is how many may start at once"),
        (
            {"ordered": True, "concurrency": 2},
            "concurrency of payments/Charge must be 1 or left out, not 2: ordered commands run "
            "one at a time",
        ),
        (
            {"on_trouble": "skip"},
            "on_trouble of payments/Charge needs ordered=True: it is about the order",
        ),
        (
            {"ordered": True, "on_trouble": "wait"},
            "on_trouble of payments/Charge must be 'block' or 'skip', not 'wait'",
        ),
        ({"ordered": 1}, "ordered of payments/Charge must be True or False, not 1"),
        ({"fair": "yes"}, "fair of payments/Charge must be True or False, not 'yes'"),
        ({"limit": 5}, "limit must be a limit's name or a list of names, not 5"),
        ({"limit": ["a b"]}, "limit must be a letter and up to 99 more of"),
    ],
)
def test_a_wrong_option_is_one_sentence_where_it_is_registered(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError) as raised:
        registered(**options)
    assert sentence in str(raised.value) and "\n" not in str(raised.value)


def test_an_option_that_does_not_exist_is_named() -> None:
    wrong: dict[str, Any] = {"concurency": 5}
    with pytest.raises(TypeError, match=r"no option 'concurency': did you mean 'concurrency'\?"):
        registered(**wrong)
    with pytest.raises(TypeError, match="no option 'concurency'"):
        handler("payments", "Charge", **wrong)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "the limit stripe limits nothing: give it concurrency, a rate, or both"),
        ({"concurrency": 0}, "concurrency of the limit stripe must be a whole number from 1"),
        ({"rate": "0.0/s"}, "rate of the limit stripe must be more than 0"),
        ({"burst": 5, "concurrency": 1}, "burst of the limit stripe needs a rate"),
        (
            {"concurrency": 1, "per": "worker"},
            "per of the limit stripe must be 'fleet' or 'node', not 'worker'",
        ),
        ({"concurrency": 1, "domain": "a b"}, "domain must be a letter"),
    ],
)
def test_a_wrong_shared_limit_is_one_sentence(options: dict[str, Any], sentence: str) -> None:
    registry = HandlerRegistry()
    with pytest.raises(ValueError, match=sentence):
        registry.limit("stripe", **options)
    assert registry.limits() == []


def test_a_limit_is_declared_once() -> None:
    registry = HandlerRegistry()
    registry.limit("stripe", concurrency=1)
    with pytest.raises(ValueError, match="the limit stripe is declared twice: give each"):
        registry.limit("stripe", concurrency=2)
    with pytest.raises(ValueError, match="limit must be a letter"):
        registry.limit("payments Charge", concurrency=2)


def test_a_limit_that_is_not_declared_is_a_mistake_of_the_app(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = registered(limit="strpe")
    registry.limit("stripe", concurrency=5)
    sentence = (
        "the handler of payments/Charge has the limit 'strpe', which its registry does not "
        "declare: did you mean 'stripe'?"
    )
    with pytest.raises(ValueError) as refused:
        Worker("", registry)
    assert str(refused.value) == sentence
    app = ModuleType("limited_app")
    app.registry = registry  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "limited_app", app)
    with pytest.raises(AppError) as raised:
        load("limited_app:registry")
    assert str(raised.value) == f"limited_app:registry: {sentence}"
