"""The mark of a called command, and how its outcome is read."""

from uuid import uuid4

import psycopg
import pytest
from calling import answer
from claiming import Claimer, ended
from handlers import handling, running
from psycopg.conninfo import make_conninfo
from queries import scalar
from roles import role

from cmdbus import (
    CommandBus,
    CommandFailedError,
    SendRequest,
)
from cmdbus.producer.ids import new_id
from cmdbus.worker.claims.claim import plain_and_others
from cmdbus.worker.claims.outcomes import troubled

pytestmark = pytest.mark.new_database


def test_a_producer_needs_no_further_right(dsn: str, bus: CommandBus) -> None:
    with role(dsn, "producer") as connection, running(dsn, handling(answer)):
        [[name]] = connection.execute("SELECT current_user").fetchall()
        with CommandBus(make_conninfo(dsn, options=f"-c role={name}")) as producer:
            assert producer.call("payments", "Debit", [1], timeout=10) == [1]
            with pytest.raises(CommandFailedError, match="NO_FUNDS"):
                producer.call("payments", "Debit", {"fail": "rule"}, timeout=10)
        # It reads the outcome of no id that could be guessed.
        guessable = bus.send("payments", "Debit", "secret", command_id=uuid4())
        bus.wait("payments", guessable, timeout=10)
        query = "SELECT * FROM cmdbus.outcome('payments', %s)"
        assert connection.execute(query, (guessable,)).fetchall() == [(None,) * 5]


@pytest.mark.parametrize("caller", [0, -1, 1, 2**52, 2**63 - 1, -(2**63)])
def test_any_number_of_a_caller_lets_a_command_end(
    bus: CommandBus, connection: psycopg.Connection, claimer: Claimer, caller: int
) -> None:
    """A role that may send can write any."""
    id_ = bus.send("payments", "Debit")
    connection.execute("UPDATE cmdbus.ready SET caller = %s", (caller,))
    assert claimer.settle(ended(claimer.claim_one())) == []
    record = bus.get("payments", id_)
    assert record is not None and record.status == "COMPLETED"


def test_an_outcome_is_read_by_its_key(bus: CommandBus, connection: psycopg.Connection) -> None:
    """Also by a session that has planned while nothing had ended."""
    ids = bus.send_many([SendRequest("payments", "Debit")] * 2000)
    read = (
        "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_xact_user_tables"
        " WHERE relname ~ 'ready|scheduled|troubleshooting|finished|event'"
    )
    query = "SELECT status FROM cmdbus.outcome('payments', %s)"
    for _ in range(7):
        assert connection.execute(query, (uuid4(),)).fetchall() == [(None,)]
        assert connection.execute(query, (new_id(),)).fetchall() == [(None,)]
    for place, status in (("ready", "PENDING"), ("finished", "CANCELED")):
        if place == "finished":
            bus.cancel_all("payments")
        with connection.transaction():
            for id_ in ids[:20]:
                assert connection.execute(query, (id_,)).fetchall() == [(status,)]
            assert scalar(connection, read) <= 40


def test_a_called_command_that_cannot_be_stored_comes_to_troubleshooting(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'no room'; END $$;"
        "CREATE TRIGGER refuse BEFORE INSERT ON cmdbus.finished FOR EACH ROW"
        " EXECUTE FUNCTION refuse()"
    )
    with (
        running(dsn, handling(answer)),
        pytest.raises(CommandFailedError, match="OUTCOME_NOT_STORABLE"),
    ):
        bus.call("payments", "Debit", timeout=20)


def test_the_mark_of_a_call_outlives_troubleshooting(
    dsn: str, bus: CommandBus, claimer: Claimer, connection: psycopg.Connection
) -> None:
    """An operator may retry before the caller has checked; then it goes on waiting."""
    id_ = bus.send("payments", "Debit")
    connection.execute("UPDATE cmdbus.ready SET caller = 5")
    claimer.settle(ended(claimer.claim_one(), troubled("GONE", "never")))
    bus.troubleshooting.retry("payments", id_, operator="ann")
    assert claimer.claim_one().caller == 5


def test_a_called_command_is_not_settled_together_with_plain_ones(
    bus: CommandBus, connection: psycopg.Connection, claimer: Claimer
) -> None:
    """Their settlement sends no notification."""
    bus.send_many([SendRequest("payments", "Debit")] * 2)
    connection.execute("UPDATE cmdbus.ready SET caller = 5 WHERE id = 1")
    called, plain = [ended(claim) for claim in claimer.claim(2)]
    assert plain_and_others([called, plain]) == ([plain], [called])
