"""The states of breakers in the database: failures on record, places for probes, changes."""

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from claiming import Claimer
from handlers import connect
from queries import scalar

from cmdbus import CommandBus

STRIPE = {
    "name": "stripe",
    "failures": 3,
    "window_seconds": 60,
    "cooldown_seconds": 30,
    "probes": 2,
    "counts": ["TimeoutError"],
    "covers": ["payments Charge"],
}


def declare(
    connection: psycopg.Connection, app: str = "shop", *breakers: dict[str, Any]
) -> list[tuple[str, Any, Any]]:
    query = "SELECT * FROM cmdbus.declare_breakers(%s, %s)"
    return connection.execute(query, (app, json.dumps(breakers))).fetchall()


def report(connection: psycopg.Connection, **report: Any) -> list[str]:
    """The names of those that are locked."""
    values = {"failed_ago": [], "probes": [], "verdicts": [], "name": "stripe", **report}
    query = "SELECT cmdbus.report_calls(%s)"
    locked: list[str] = scalar(connection, query, json.dumps([values]))
    return locked


def state(connection: psycopg.Connection) -> tuple[str, int]:
    """And the number of failures on record."""
    query = "SELECT state, cardinality(failed_at) FROM cmdbus.breaker WHERE name = 'stripe'"
    [row] = connection.execute(query).fetchall()
    return row


def end_cooldown(connection: psycopg.Connection) -> None:
    connection.execute("UPDATE cmdbus.breaker SET retry_at = clock_timestamp()")


def take(connection: psycopg.Connection, id: int = 1, claimer: int = 7) -> int | None:
    """The number of a probe by a command that no row of `ready` shows."""
    query = "SELECT cmdbus.take_probe('stripe', %s, 'payments', 5::smallint, %s, 1, 60)"
    number: int | None = scalar(connection, query, claimer, id)
    return number


@pytest.fixture(autouse=True)
def declared(connection: psycopg.Connection) -> None:
    declare(connection, "shop", STRIPE)


@pytest.fixture
def other(dsn: str) -> Iterator[psycopg.Connection]:
    with connect(dsn) as other:
        yield other


@pytest.fixture
def half_open(connection: psycopg.Connection) -> int:
    """The number of the first of two probes."""
    report(connection, failed_ago=[0, 0, 0])
    end_cooldown(connection)
    number = take(connection)
    assert number is not None and state(connection) == ("HALF_OPEN", 0)
    return number


def test_it_opens_at_the_number_of_failures_within_the_window(
    connection: psycopg.Connection, bus: CommandBus
) -> None:
    report(connection, failed_ago=[70, 50])
    assert state(connection) == ("CLOSED", 1)
    report(connection, failed_ago=[1])
    assert state(connection) == ("CLOSED", 2)
    report(connection, failed_ago=[0])
    assert state(connection) == ("OPEN", 0)
    [opened] = bus.breakers.audit("stripe")
    assert (opened.kind, opened.details["failures"]) == ("OPENED", 3)


def test_it_is_known_since_when_it_is_not_closed(
    connection: psycopg.Connection, bus: CommandBus, half_open: int
) -> None:
    [before] = bus.breakers.list()
    report(connection, probes=[half_open], verdicts=["FAILURE"])
    [after] = bus.breakers.list()
    assert (after.state, after.opened_at) == ("OPEN", before.opened_at)
    assert after.changed_at > before.changed_at
    bus.breakers.close("stripe")
    assert bus.breakers.list()[0].opened_at is None


def test_failures_leave_the_window(connection: psycopg.Connection) -> None:
    report(connection, failed_ago=[2, 1])
    passed = "UPDATE cmdbus.breaker SET failed_at = ARRAY(SELECT f - interval '1 min'"
    connection.execute(f"{passed} FROM unnest(failed_at) f)".encode())
    report(connection, failed_ago=[0])
    assert state(connection) == ("CLOSED", 1)


def test_a_success_forgets_the_failures_before_it_however_late_they_are_reported(
    connection: psycopg.Connection,
) -> None:
    report(connection, failed_ago=[5, 3])
    report(connection, succeeded_ago=4)
    assert state(connection) == ("CLOSED", 1)
    report(connection, failed_ago=[4.5])
    assert state(connection) == ("CLOSED", 1)
    report(connection, succeeded_ago=1, failed_ago=[0.5, 0.2])
    assert state(connection) == ("CLOSED", 2)


def test_while_it_is_open_only_probes_are_reported(connection: psycopg.Connection) -> None:
    report(connection, failed_ago=[0, 0, 0])
    report(connection, succeeded_ago=0)
    report(connection, failed_ago=[0] * 5)
    assert state(connection) == ("OPEN", 0)


def test_no_probe_is_let_through_before_the_cooldown_ends(connection: psycopg.Connection) -> None:
    assert take(connection) is None
    report(connection, failed_ago=[0, 0, 0])
    assert take(connection) is None
    end_cooldown(connection)
    assert take(connection) is not None


def test_as_many_probes_are_let_through_at_a_time_as_its_terms_say(
    connection: psycopg.Connection, half_open: int
) -> None:
    assert take(connection, 2) is not None
    assert take(connection, 3) is None
    report(connection, probes=[half_open], verdicts=["NOTHING"])
    assert state(connection) == ("HALF_OPEN", 0)
    assert take(connection, 3) is not None
    assert take(connection, 4) is None


def test_two_sessions_do_not_get_the_same_place(
    connection: psycopg.Connection, other: psycopg.Connection, half_open: int
) -> None:
    """The second does not wait for the first."""
    with connection.transaction():
        assert take(connection, 2) is not None
        assert take(other, 3, claimer=8) is None
    assert take(other, 3, claimer=8) is None


@pytest.mark.parametrize(
    ("verdict", "then"), [("SUCCESS", "CLOSED"), ("FAILURE", "OPEN"), ("OTHER", "OPEN")]
)
def test_the_first_good_probe_closes_it_and_any_other_opens_it_again(
    connection: psycopg.Connection, bus: CommandBus, half_open: int, verdict: str, then: str
) -> None:
    report(connection, probes=[half_open], verdicts=[verdict])
    assert state(connection) == (then, 0)
    assert take(connection, 2) is None
    kinds = [event.kind for event in bus.breakers.audit("stripe")]
    assert kinds == ["OPENED", "HALF_OPENED", {"OPEN": "OPENED"}.get(then, then)]


def test_a_probe_that_still_runs_holds_its_place_in_the_next_period(
    connection: psycopg.Connection, half_open: int
) -> None:
    second = take(connection, 2)
    report(connection, probes=[half_open], verdicts=["FAILURE"])
    end_cooldown(connection)
    assert take(connection, 3) is not None
    assert take(connection, 4) is None
    report(connection, probes=[second], verdicts=["SUCCESS"])
    assert state(connection) == ("CLOSED", 0)


def test_calls_that_are_no_probes_do_not_end_the_half_open_state(
    connection: psycopg.Connection, half_open: int
) -> None:
    report(connection, succeeded_ago=0)
    report(connection, failed_ago=[0] * 5)
    report(connection, probes=[half_open + 100], verdicts=["SUCCESS"])
    assert state(connection) == ("HALF_OPEN", 0)


def test_a_place_is_free_once_its_command_was_released(
    connection: psycopg.Connection, bus: CommandBus, claimer: Claimer
) -> None:
    """But not while its settlement is not followed by the end of its call."""
    declare(connection, "shop", {**STRIPE, "probes": 1})
    bus.send("payments", "Debit")
    report(connection, failed_ago=[0, 0, 0])
    end_cooldown(connection)
    claim = claimer.claim_one()
    query = "SELECT cmdbus.take_probe('stripe', %s, 'payments', 5::smallint, %s, %s, 60)"
    assert scalar(connection, query, claimer.incarnation, claim.id, claim.token)
    assert take(connection, 99) is None
    claimer.release(claim)
    assert take(connection, 99) is not None
    connection.execute("DELETE FROM cmdbus.ready")
    assert take(connection, 100) is None
    connection.execute("UPDATE cmdbus.breaker_probe SET held_until = clock_timestamp()")
    assert take(connection, 100) is not None


@pytest.mark.parametrize(("seconds", "cooldown", "least", "most"), [(5, 30, 4, 5), (5, 2, 1, 2)])
def test_the_place_of_a_dead_process_is_free_after_a_pause(
    connection: psycopg.Connection,
    half_open: int,
    seconds: float,
    cooldown: float,
    least: float,
    most: float,
) -> None:
    """Of a cooldown at most, and not of a process that ends by itself."""
    connection.execute("UPDATE cmdbus.breaker SET cooldown_seconds = %s", (cooldown,))
    give_back = "SELECT cmdbus.give_back_probes(%s, %s)"
    connection.execute(give_back, (7, 0))
    number = take(connection, 2, claimer=8)
    connection.execute(give_back, (8, seconds))
    assert number is not None and take(connection, 3) is None
    left = "SELECT extract(epoch FROM retry_at - clock_timestamp()) FROM cmdbus.breaker"
    assert least < scalar(connection, left) <= most
    end_cooldown(connection)
    assert take(connection, 3) is not None


HOLDERS = {
    "extended": ("SET token = token", True),
    "gone": ("SET lease_until = clock_timestamp() - interval '1 min'", False),
    "claimed again": ("SET token = token + 1", False),
}


@pytest.mark.parametrize(("change", "holds"), HOLDERS.values(), ids=HOLDERS)
def test_a_place_is_held_as_long_as_the_lease_of_its_claim(
    connection: psycopg.Connection, bus: CommandBus, claimer: Claimer, change: str, holds: bool
) -> None:
    """However long its handler was to take: one that is extended takes longer, and a node that is
    gone renews nothing."""
    declare(connection, "shop", {**STRIPE, "probes": 1})
    bus.send("payments", "Debit")
    report(connection, failed_ago=[0, 0, 0])
    end_cooldown(connection)
    claim = claimer.claim_one()
    seconds = 0 if holds else 3600
    query = "SELECT cmdbus.take_probe('stripe', %s, 'payments', 5::smallint, %s, %s, %s)"
    assert scalar(connection, query, claimer.incarnation, claim.id, claim.token, seconds)
    connection.execute(f"UPDATE cmdbus.ready {change}".encode())
    types = ["payments Charge", "payments Other"]
    let_through = types[1:] if holds else types
    assert scalar(connection, "SELECT cmdbus.let_through(%s)", types) == let_through
    assert (take(connection, 99) is None) == holds


def test_a_report_does_not_wait_for_a_session_that_has_locked_the_breaker(
    connection: psycopg.Connection, other: psycopg.Connection, half_open: int
) -> None:
    with connection.transaction():
        assert take(connection, 2) is not None
        assert report(other, probes=[half_open], verdicts=["SUCCESS"]) == ["stripe"]
    assert report(other, probes=[half_open], verdicts=["SUCCESS"]) == []
    assert report(other, name="unknown", failed_ago=[0]) == []


def test_the_state_outlives_a_start_with_other_terms(connection: psycopg.Connection) -> None:
    report(connection, failed_ago=[2, 1])
    declare(connection, "shop", {**STRIPE, "failures": 5, "covers": ["payments Refund"]})
    assert state(connection) == ("CLOSED", 2)
    declare(connection, "other", STRIPE)
    [(covers,)] = connection.execute("SELECT covers FROM cmdbus.breaker").fetchall()
    assert covers == ["payments Charge", "payments Refund"]
    report(connection, failed_ago=[0])
    assert state(connection) == ("OPEN", 0), "the latest declaration holds"
    declare(connection, "other")
    assert scalar(connection, "SELECT failures FROM cmdbus.breaker") == 5
    declare(connection, "shop")
    assert scalar(connection, "SELECT count(*) FROM cmdbus.breaker") == 0
    declare(connection, "shop", STRIPE)
    assert state(connection) == ("CLOSED", 0)


def test_the_audit_keeps_the_latest_thousand_changes(
    connection: psycopg.Connection, bus: CommandBus
) -> None:
    note = "SELECT cmdbus.note_breaker('stripe', 'SET', to_json(n)) FROM generate_series(1, 1010) n"
    connection.execute(note)
    audit = bus.breakers.audit("stripe")
    assert [audit[0].details, audit[-1].details, len(audit)] == [11, 1010, 1000]
