"""Limits that an operator sets, sees and clears."""

import psycopg
import pytest
from roles import role
from test_limits_in_force import declare

from cmdbus import CommandBus, DeclaredLimit, InvalidOperationError, Limit, SetLimit
from cmdbus.errors import MissingRightError

CHARGE = {"name": "payments Charge", "concurrency": 5}
POST = {"name": "ledger Post", "ordered": True}
STRIPE = {"name": "stripe", "starts_per_second": 2, "covers": ["payments Charge", "refunds"]}


@pytest.fixture(autouse=True)
def declared(connection: psycopg.Connection) -> None:
    declare(connection, "shop", CHARGE, POST, STRIPE)


def test_limits_are_listed_with_what_is_declared_set_and_in_force(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    declare(connection, "other", {**CHARGE, "concurrency": 7})
    bus.limits.set("payments", "Charge", rate="100/min", operator="ann", reason="slow provider")
    bus.limits.set("mail", "Send", fair=True)
    post, mail, charge, stripe = bus.limits.list()
    assert [each.name for each in (post, mail, charge, stripe)] == [
        *("ledger/Post", "mail/Send", "payments/Charge", "stripe")
    ]
    assert charge.in_force == Limit(concurrency=7, starts_per_second=100 / 60, burst=1)
    assert [(each.app, each.limit) for each in charge.declared] == [
        ("other", Limit(concurrency=7)),
        ("shop", Limit(concurrency=5)),
    ]
    assert isinstance(charge.set, SetLimit) and isinstance(charge.declared[0], DeclaredLimit)
    assert (charge.set.values, charge.set.operator) == ({"rate": "100/min"}, "ann")
    assert (charge.set.reason, charge.covers) == ("slow provider", ["payments/Charge"])
    assert charge.declared[0].declared_at < charge.set.set_at
    assert (stripe.covers, stripe.set) == (["payments/Charge", "refunds"], None)
    assert stripe.in_force == Limit(starts_per_second=2.0, burst=2)
    assert (mail.declared, mail.in_force) == ([], Limit(fair=True))
    assert (post.in_force, post.set) == (Limit(ordered=True, concurrency=1), None)


def test_what_is_not_set_stays_declared_and_clear_ends_it(bus: CommandBus) -> None:
    def in_force() -> Limit | None:
        [found] = [each for each in bus.limits.list() if each.name == "payments/Charge"]
        return found.in_force

    bus.limits.set("payments", "Charge", rate="3/s", burst=9)
    assert in_force() == Limit(concurrency=5, starts_per_second=3.0, burst=9)
    bus.limits.set("payments", "Charge", concurrency=None, burst=None)
    assert in_force() == Limit(starts_per_second=3.0, burst=3)
    bus.limits.set("payments", "Charge", rate=None)
    assert in_force() is None
    bus.limits.clear("payments", "Charge")
    assert in_force() == Limit(concurrency=5)
    with pytest.raises(InvalidOperationError, match="nothing is set of the limit payments/Charge"):
        bus.limits.clear("payments", "Charge")
    bus.limits.set("ledger", "Post", ordered=False)
    assert [each.name for each in bus.limits.list() if each.in_force is None] == ["ledger/Post"]


def test_changes_are_recorded_in_the_domains_of_the_limit(bus: CommandBus) -> None:
    bus.limits.set("payments", "Charge", concurrency=2, operator="ann", reason="slow")
    bus.limits.set("payments", "Charge", concurrency=2)
    bus.limits.clear("payments", "Charge", operator="bob")
    bus.limits.set(name="stripe", concurrency=1, operator="ann")
    first, second, third = bus.domain_audit("payments")
    assert [(event.kind, event.operator, event.message) for event in (first, second, third)] == [
        ("LIMIT_SET", "ann", "slow"),
        ("LIMIT_CLEARED", "bob", None),
        ("LIMIT_SET", "ann", None),
    ]
    details = first.details
    assert details["limit"] == "payments/Charge"
    assert [details[when]["concurrency"] for when in ("before", "after")] == [5, 2]
    assert [second.details[when]["concurrency"] for when in ("before", "after")] == [2, 5]
    [refunds] = bus.domain_audit("refunds")
    assert refunds.details == third.details
    assert (refunds.details["limit"], refunds.details["after"]["concurrency"]) == ("stripe", 1)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda limits: limits.set("ledger", "Post", concurrency=5),
            "ledger/Post is ordered, so its commands run one at a time: set "
            "--unordered (ordered=False), too",
        ),
        (
            lambda limits: limits.set("payments", "Charge", burst=5),
            "payments/Charge has no rate, and a burst is about one: set the rate, too",
        ),
        (
            lambda limits: limits.set("payments", "Charge", on_trouble="skip"),
            "payments/Charge is not ordered, and on_trouble is about the order: set "
            "--ordered (ordered=True), too",
        ),
        (
            lambda limits: limits.set(name="strpe", concurrency=5),
            "no app declares a shared limit 'strpe': did you mean 'stripe'?",
        ),
        (
            lambda limits: limits.set(name="unlike", concurrency=5),
            "no app declares a shared limit 'unlike': cmdbus limit list shows those that are "
            "declared",
        ),
        (
            lambda limits: limits.clear(name="stripe"),
            "nothing is set of the limit stripe: cmdbus limit list (bus.limits.list()) shows what "
            "is",
        ),
    ],
)
def test_what_contradicts_a_limit_changes_nothing(
    bus: CommandBus, call: object, sentence: str
) -> None:
    before = bus.limits.list()
    with pytest.raises(InvalidOperationError) as raised:
        call(bus.limits)  # type: ignore[operator]
    assert (str(raised.value), bus.limits.list()) == (sentence, before)
    assert bus.domain_audit("payments") == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"domain": "payments", "type": "Charge"},
            "set needs at least one of concurrency, rate, burst, ordered, on_trouble, fair",
        ),
        ({"domain": "payments", "concurrency": 1}, "a limit is named by domain and type, or by"),
        ({"domain": "payments", "name": "stripe"}, "a limit is named by domain and type, or by"),
        ({"name": "a b", "concurrency": 1}, "name must be a letter and up to 99 more"),
        (
            {"name": "stripe", "fair": True},
            "fair of stripe cannot be set: that is only for limits of one type",
        ),
        ({"name": "stripe", "concurrency": 0}, "concurrency of stripe must be a whole number"),
        ({"name": "stripe", "rate": "0/s"}, "rate of stripe must be more than 0, not '0/s'"),
        ({"name": "stripe", "burst": 1.5}, "burst of stripe must be a whole number from 1"),
        (
            {"domain": "a", "type": "B", "ordered": True, "concurrency": 2},
            "concurrency of a/B must be 1 or left out, not 2",
        ),
        ({"domain": "a", "type": "B", "ordered": None}, "ordered of a/B must be True or False"),
        (
            {"domain": "a", "type": "B", "on_trouble": "wait"},
            "on_trouble of a/B must be 'block' or 'skip', not 'wait'",
        ),
        ({"name": "stripe", "concurrency": 1, "operator": " "}, "operator must be 1 to 200"),
    ],
)
def test_a_wrong_argument_is_one_sentence(
    bus: CommandBus, arguments: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError) as raised:
        bus.limits.set(**arguments)  # type: ignore[arg-type]
    assert sentence in str(raised.value)


def test_a_repeated_change_does_nothing_again(connection: psycopg.Connection) -> None:
    def call(function: str, again: bool) -> None:
        connection.execute(f"SELECT cmdbus.{function}, p_call => 7, p_again => {again})".encode())

    set_two = "set_limit('payments Charge', '{concurrency}', NULL, NULL, p_concurrency => 2"
    set_three = "set_limit('payments Charge', '{concurrency}', NULL, NULL, p_concurrency => 3)"
    clear = "clear_limit('payments Charge', NULL, NULL"
    for change, expected in ((set_two, 3), (clear, 3)):
        connection.execute("DELETE FROM cmdbus.domain_event")
        call(change, again=False)
        connection.execute(f"SELECT cmdbus.{set_three}".encode())
        call(change, again=True)
        row = connection.execute(
            "SELECT concurrency FROM cmdbus.limit_in_force WHERE name = 'payments Charge'"
        ).fetchone()
        assert row == (expected,)


def test_operators_change_limits_and_monitors_see_them(dsn: str, bus: CommandBus) -> None:
    with role(dsn, "operator") as operator:
        bus.limits.set("payments", "Charge", concurrency=2, connection=operator)
        bus.limits.clear("payments", "Charge", connection=operator)
        assert len(bus.limits.list(connection=operator)) == 3
    with role(dsn, "monitor") as monitor:
        assert len(bus.limits.list(connection=monitor)) == 3
        with pytest.raises(MissingRightError, match="--operator"):
            bus.limits.set("payments", "Charge", concurrency=2, connection=monitor)
    with role(dsn, "producer") as producer, pytest.raises(MissingRightError, match="--monitor"):
        bus.limits.list(connection=producer)
