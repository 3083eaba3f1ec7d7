"""What an operator sees of breakers, and changes: in a program, and at a terminal."""

import json
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest
from cli import done, here
from click.testing import Result
from roles import role
from test_breaker_states import STRIPE, declare, report

from cmdbus import BreakerState, BreakerTerms, CommandBus, InvalidOperationError
from cmdbus.errors import MissingRightError

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def declared(connection: psycopg.Connection) -> None:
    declare(connection, "shop", STRIPE)


@pytest.fixture
def run(dsn: str) -> Run:
    return lambda *arguments: here("breaker", *arguments, CMDBUS_DSN=dsn)


def test_breakers_are_listed_with_their_state_and_what_is_declared_and_set(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    declare(connection, "mail", {**STRIPE, "name": "smtp", "covers": []})
    bus.breakers.set("stripe", failures=9, cooldown=5, operator="ann", reason="flaky")
    bus.breakers.set("stripe", cooldown=timedelta(seconds=6))
    report(connection, failed_ago=[1, 0])
    smtp, stripe = bus.breakers.list()
    assert (smtp.name, smtp.covers, smtp.set) == ("smtp", [], None)
    assert (stripe.state, stripe.failures, stripe.retry_at) == (BreakerState.CLOSED, 2, None)
    assert stripe.covers == ["payments/Charge"]
    assert stripe.in_force == BreakerTerms(failures=9, window=60, cooldown=6, probes=2)
    [declared] = stripe.declared
    assert (declared.app, declared.counts) == ("shop", ["TimeoutError"])
    assert declared.terms == BreakerTerms(failures=3, window=60, cooldown=30, probes=2)
    assert stripe.set is not None
    assert (stripe.set.values, stripe.set.operator) == ({"failures": 9, "cooldown": 6}, None)
    bus.breakers.clear("stripe", operator="bob")
    assert bus.breakers.list()[1].in_force == declared.terms
    with pytest.raises(InvalidOperationError, match="nothing is set of the breaker stripe"):
        bus.breakers.clear("stripe")


def test_what_is_set_outlives_a_breaker_that_is_not_declared_for_a_while(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.breakers.set("stripe", probes=7)
    report(connection, failed_ago=[0, 0, 0])
    declare(connection, "shop")
    [undeclared] = bus.breakers.list()
    assert (undeclared.state, undeclared.declared, undeclared.covers) == ("CLOSED", [], [])
    declare(connection, "shop", STRIPE)
    assert bus.breakers.list()[0].in_force.probes == 7
    declare(connection, "shop")
    bus.breakers.clear("stripe")
    assert bus.breakers.list() == []


def test_a_breaker_stays_open_until_an_operator_closes_it_whatever_apps_declare(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.breakers.open("stripe")
    declare(connection, "shop")
    declare(connection, "mail", {**STRIPE, "name": "smtp"})
    assert [(each.name, each.state, each.covers) for each in bus.breakers.list()] == [
        ("smtp", "CLOSED", ["payments/Charge"]),
        ("stripe", "OPEN", []),
    ]
    declare(connection, "shop", STRIPE)
    [_, stripe] = bus.breakers.list()
    assert (stripe.state, stripe.retry_at, stripe.covers) == ("OPEN", None, ["payments/Charge"])
    declare(connection, "shop")
    bus.breakers.close("stripe")
    assert [each.name for each in bus.breakers.list()] == ["smtp"]
    assert [event.kind for event in bus.breakers.audit("stripe")] == [
        *("OPENED", "UNDECLARED", "UNDECLARED", "CLOSED")
    ]


def test_a_new_cooldown_holds_for_one_that_has_begun(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    def for_seconds() -> float | None:
        [record] = bus.breakers.list()
        if record.retry_at is None:
            return None
        return round((record.retry_at - record.changed_at).total_seconds(), 1)

    report(connection, failed_ago=[0, 0, 0])
    assert for_seconds() == 30
    bus.breakers.set("stripe", cooldown=600)
    assert for_seconds() == 600
    bus.breakers.set("stripe", cooldown=4)
    assert for_seconds() == 4
    declare(connection, "shop", {**STRIPE, "cooldown_seconds": 20})
    bus.breakers.clear("stripe")
    assert for_seconds() == 20
    bus.breakers.open("stripe")
    bus.breakers.set("stripe", cooldown=4)
    assert for_seconds() is None


def test_a_breaker_that_no_app_declares_any_longer_leaves_an_event(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    declare(connection, "mail", STRIPE)
    declare(connection, "shop")
    assert bus.breakers.audit("stripe") == []
    declare(connection, "mail")
    declare(connection, "mail")
    [event] = bus.breakers.audit("stripe")
    assert (event.kind, event.details) == ("UNDECLARED", {"app": "mail"})


def test_each_change_is_recorded_with_operator_and_reason(bus: CommandBus) -> None:
    bus.breakers.open("stripe", operator="ann", reason="maintenance")
    [opened] = bus.breakers.list()
    assert (opened.state, opened.retry_at) == ("OPEN", None)
    bus.breakers.close("stripe", operator="bob")
    bus.breakers.reset("stripe")
    bus.breakers.set("stripe", window=5)
    audit = bus.breakers.audit("stripe")
    assert [(event.kind, event.operator, event.message) for event in audit] == [
        ("OPENED", "ann", "maintenance"),
        ("CLOSED", "bob", None),
        ("RESET", None, None),
        ("SET", None, None),
    ]
    assert [event.details["before"] for event in audit[:3]] == ["CLOSED", "OPEN", "CLOSED"]
    assert [audit[3].details[when]["window"] for when in ("before", "after")] == [60, 5]
    assert bus.breakers.list()[0].state == "CLOSED"


def test_reset_forgets_failures_and_close_does_not(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    report(connection, failed_ago=[1, 0])
    bus.breakers.close("stripe")
    assert bus.breakers.list()[0].failures == 2
    bus.breakers.reset("stripe")
    assert bus.breakers.list()[0].failures == 0


@pytest.mark.parametrize("verb", ["open", "close", "reset", "set", "audit"])
def test_a_name_that_no_breaker_has_is_refused(bus: CommandBus, verb: str) -> None:
    options = {"probes": 2} if verb == "set" else {}
    with pytest.raises(InvalidOperationError, match="'strpe': did you mean 'stripe'"):
        getattr(bus.breakers, verb)("strpe", **options)
    assert bus.breakers.audit("stripe") == []


def test_impossible_terms_are_refused(bus: CommandBus) -> None:
    with pytest.raises(ValueError, match="set needs at least one of failures, window"):
        bus.breakers.set("stripe")
    with pytest.raises(ValueError, match="probes of the breaker stripe must be a whole number"):
        bus.breakers.set("stripe", probes=0)


def test_an_operators_role_suffices_and_a_monitor_only_reads(dsn: str, bus: CommandBus) -> None:
    with role(dsn, "operator") as operator:
        for change in (bus.breakers.open, bus.breakers.close, bus.breakers.reset):
            change("stripe", connection=operator)
        bus.breakers.set("stripe", probes=3, connection=operator)
        bus.breakers.clear("stripe", connection=operator)
    with role(dsn, "monitor") as monitor:
        assert len(bus.breakers.list(connection=monitor)) == 1
        for refused in (bus.breakers.open, bus.breakers.audit):
            with pytest.raises(MissingRightError):
                refused("stripe", connection=monitor)


def test_breakers_are_shown_and_changed_at_a_terminal(
    dsn: str, run: Run, connection: psycopg.Connection
) -> None:
    assert done(run("list")).splitlines()[:2] == [
        "stripe  CLOSED, failures on record: 0",
        "  opens at 3 failures in 60 s, for 30 s, then 2 probes, for payments/Charge",
    ]
    remark = ["--operator", "ann", "--reason", "maintenance"]
    shown = done(run("open", "stripe", *remark)).splitlines()[0]
    assert shown.startswith("stripe  OPEN since ")
    assert shown.endswith(", until an operator closes it: cmdbus breaker close stripe")
    status = done(here("status", CMDBUS_DSN=dsn)).splitlines()
    assert status[0] == "nothing waits, nothing runs"
    assert status[1].startswith("breaker stripe is OPEN since ")
    assert "OPENED operator=ann maintenance" in done(run("show", "stripe"))
    assert "CLOSED" in done(run("close", "stripe"))
    changed = done(run("set", "stripe", "--cooldown", "5m", "--failures", "20")).splitlines()
    assert changed[1].startswith("  opens at 20 failures in 60 s, for 300 s, then 2 probes")
    assert changed[3].startswith("  set       failures 20, cooldown 300 s  by ")
    assert len(done(run("clear", "stripe")).splitlines()) == 3
    report(connection, failed_ago=[0, 0, 0])
    assert " OPEN since " in done(run("list")) and ", probes from " in done(run("list"))
    connection.execute("UPDATE cmdbus.breaker SET retry_at = now()")
    assert ", the next call is a probe" in done(run("list"))
    assert done(run("show", "stripe", "--limit", "1")).count("OPENED") == 1
    assert done(run("show", "stripe")).count("OPENED") == 2
    record = json.loads(done(run("reset", "stripe", "--json")))
    assert (record["name"], record["state"], record["probing"]) == ("stripe", "CLOSED", 0)
    assert [each["name"] for each in json.loads(done(run("list", "--json")))["breakers"]] == [
        "stripe"
    ]
    done(run("open", "stripe"))
    declare(connection, "shop")
    assert done(run("list")).splitlines()[2] == "  declared  by no app"
    assert done(run("close", "stripe")) == "stripe: no breaker, as no app declares it\n"
    assert done(run("list")) == "there is no breaker\n"


def test_the_status_of_a_domain_shows_the_breakers_that_concern_it(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """Also those that no type is bound to, as its handlers may use them."""
    declare(
        connection,
        "mail",
        {**STRIPE, "name": "smtp", "covers": ["mail Send"]},
        {**STRIPE, "name": "anywhere", "covers": []},
    )
    for name in ("stripe", "smtp", "anywhere"):
        bus.breakers.open(name)
    bus.send("payments", "Charge")

    def shown(*domains: str) -> set[str]:
        status = json.loads(done(here("status", *domains, "--json", CMDBUS_DSN=dsn)))
        return {each["name"] for each in status["breakers"]}

    assert shown() == {"stripe", "smtp", "anywhere"}
    assert shown("payments") == {"stripe", "anywhere"}


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ("set stripe", 2, "nothing is given to set: --failures, --window, --cooldown, --probes"),
        ("set stripe --probes 0", 2, "it must be"),
        ("set stripe --window soon", 2, "it must be seconds, or like 500ms, 30s"),
        ("open strpe", 1, "there is no breaker 'strpe': did you mean 'stripe'?"),
        ("show strpe", 1, "there is no breaker 'strpe'"),
        ("clear stripe", 1, "nothing is set of the breaker stripe: cmdbus breaker list"),
    ],
)
def test_a_mistake_is_one_sentence(run: Run, arguments: str, code: int, sentence: str) -> None:
    result = run(*arguments.split())
    assert (result.exit_code, sentence in " ".join(result.stderr.split())) == (code, True)
