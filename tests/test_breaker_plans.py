"""What waits behind an open breaker is out of the way of other claims."""

import psycopg
import pytest
from claiming import Claimer
from handlers import running
from other_side import OtherSide, bound_to
from queries import scalar
from test_breaker_states import STRIPE, declare, report
from test_claim_plans import pages_read, send

from cmdbus import BreakerOpenError, CommandBus, SendRequest
from cmdbus.clock import time

pytestmark = pytest.mark.new_database

WAITING = 20_000
READ = "SELECT sum(idx_tup_fetch) + sum(seq_tup_read) FROM pg_stat_xact_user_tables"


@pytest.mark.parametrize("waiting", ["Charge", "Unknown"])
def test_claims_of_others_do_not_walk_over_what_waits_behind_an_open_breaker(
    dsn: str, connection: psycopg.Connection, waiting: str
) -> None:
    """But once a second. Nor do claims of probes walk over what others wait for."""
    declare(connection, "worker:payments", STRIPE)
    connection.execute("SELECT cmdbus.steer_breaker('stripe', 'open', NULL, NULL)")
    if waiting == "Unknown":
        connection.execute("UPDATE cmdbus.breaker SET retry_at = clock_timestamp()")
    send(dsn, SendRequest("payments", waiting), WAITING)
    before, began = pages_read(connection), time.monotonic()
    with running(dsn, bound_to(OtherSide()), concurrency=1), CommandBus(dsn) as bus:
        for _ in range(40):
            bus.call("payments", "Noop")
    seconds_begun = 1 + int(time.monotonic() - began)
    walks = 4 + 2 * seconds_begun
    assert scalar(connection, "SELECT count(*) FROM cmdbus.ready") == WAITING
    assert pages_read(connection) - before < 40 * 150 + walks * WAITING / 4


@pytest.mark.parametrize("analysed", ["never", "when it was empty"])
def test_places_of_probes_are_counted_without_a_walk(
    connection: psycopg.Connection, bus: CommandBus, claimer: Claimer, analysed: str
) -> None:
    declare(connection, "shop", {**STRIPE, "probes": 10})
    if analysed != "never":
        connection.execute("ANALYZE")
    bus.send_many([SendRequest("payments", "Debit")] * WAITING)
    report(connection, failed_ago=[0, 0, 0])
    connection.execute("UPDATE cmdbus.breaker SET retry_at = clock_timestamp()")
    take = "SELECT cmdbus.take_probe('stripe', %s, 'payments', 5::smallint, %s, %s, 60)"
    for claim in claimer.claim(10):
        values = claimer.incarnation, claim.id, claim.token
        with connection.transaction():
            read = scalar(connection, READ) or 0
            assert scalar(connection, take, *values)
            assert scalar(connection, READ) - read < 500
    assert scalar(connection, take, claimer.incarnation, 1, 1) is None


def test_what_waits_for_a_breaker_is_found_without_a_walk(
    connection: psycopg.Connection, bus: CommandBus
) -> None:
    declare(connection, "shop", STRIPE)
    bus.send_many([SendRequest("payments", "Ask", delay=600)] * WAITING)
    for name, count in (("stripe", 20), ("smtp", 30)):
        connection.execute(
            "UPDATE cmdbus.scheduled SET error_code = 'BREAKER_OPEN', error_message = %s"
            " WHERE id IN (SELECT id FROM cmdbus.scheduled WHERE error_code IS NULL LIMIT %s)",
            (str(BreakerOpenError(name, 3.0)), count),
        )
    due = "SELECT count(*) FROM cmdbus.scheduled WHERE due_at <= clock_timestamp()"
    with connection.transaction():
        read = scalar(connection, READ) or 0
        connection.execute("SELECT cmdbus.steer_breaker('stripe', 'reset', NULL, NULL)")
        assert scalar(connection, READ) - read < 500
    assert scalar(connection, due) == 20
