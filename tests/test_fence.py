"""The fence: a lost claim is settled, renewed and released by the next claimer alone; and where
each outcome goes."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import uuid4

import psycopg
import pytest
from claiming import Claimer, ended, want
from handlers import connect
from queries import await_lock_waits, count
from senders import race

from cmdbus import CommandBus, SendRequest, Status
from cmdbus.board.counters import OutcomeLabel
from cmdbus.worker.claims.claim import Claim, ClaimScope
from cmdbus.worker.claims.outcomes import (
    Outcome,
    OutcomeKind,
    completed,
    deferred,
    interrupted,
)
from cmdbus.worker.claims.transactions import begin, roll_back

pytestmark = pytest.mark.new_database

DEBIT = SendRequest("payments", "Debit")
RETRY = Outcome(kind=OutcomeKind.RETRY, delay=60, code="BUSY", message="later", details="{}")
FAILED = Outcome(kind=OutcomeKind.FAILED, code="NO", message="rule", details='{"details": [1]}')
TROUBLE = Outcome(kind=OutcomeKind.TROUBLE, code="GONE", message="never", details="{}")
RESULT = {"a": '"\\{,}NULL'}


@pytest.fixture
def slow(connection: psycopg.Connection) -> Claimer:
    """Its leases are over at once."""
    return Claimer(connection, lease=0.001)


def let_lease_end(connection: psycopg.Connection) -> None:
    connection.execute("SELECT pg_sleep(0.005)")


@pytest.mark.parametrize(
    ("outcome", "status", "attempts", "reply"),
    [
        (completed(RESULT), Status.COMPLETED, 1, ("SUCCESS", RESULT)),
        (
            FAILED,
            Status.FAILED,
            1,
            ("FAILED", {"code": "NO", "message": "rule", "details": [1]}),
        ),
        (RETRY, Status.PENDING, 1, None),
        (replace(RETRY, charged=False), Status.PENDING, 0, None),
        (TROUBLE, Status.IN_TROUBLESHOOTING_QUEUE, 1, None),
    ],
    ids=["completed", "failed", "retry", "uncharged", "trouble"],
)
def test_each_outcome_goes_where_it_belongs(
    bus: CommandBus,
    claimer: Claimer,
    outcome: Outcome,
    status: Status,
    attempts: int,
    reply: tuple[str, object] | None,
) -> None:
    """A command is in one place, so what has ended waits nowhere."""
    id_ = bus.send("payments", "Debit", reply_to="replies")
    assert claimer.settle(ended(claimer.claim_one(), outcome)) == []
    record = bus.get("payments", id_)
    assert record is not None
    assert (record.status, record.attempts, record.worker) == (status, attempts, "tester")
    assert (record.error_code, record.error_message) == (outcome.code, outcome.message)
    assert record.result == (RESULT if status is Status.COMPLETED else None)
    assert len(bus.query("payments")) == 1
    assert bus.snapshot("payments")["depth"] == (status is Status.PENDING)
    replies = [(row.data["outcome"], row.data["result"]) for row in bus.query("replies")]
    assert replies == ([] if reply is None else [reply])


@pytest.mark.parametrize("outcome", [None, RETRY, FAILED, TROUBLE], ids=str)
def test_a_worker_that_lost_a_claim_settles_nothing(
    bus: CommandBus,
    connection: psycopg.Connection,
    slow: Claimer,
    claimer: Claimer,
    outcome: Outcome | None,
) -> None:
    id_ = bus.send("payments", "Debit")
    lost = slow.claim_one()
    let_lease_end(connection)
    successor = claimer.claim_one()
    assert (successor.token, successor.losses) == (lost.token + 1, 1)
    assert slow.settle(ended(lost, outcome)) == [lost]
    assert slow.renew(lost) == [lost]
    slow.release(lost)
    assert bus.query("payments")[0].status is Status.IN_PROGRESS
    assert claimer.settle_and_claim([ended(successor)], want(1)) == []
    assert bus.wait("payments", id_, 1).status is Status.COMPLETED


def test_rows_that_have_moved_since_their_claim_are_settled(
    dsn: str, bus: CommandBus, connection: psycopg.Connection, claimer: Claimer
) -> None:
    """As a renewal and VACUUM FULL move them; also while a renewal holds one."""
    bus.send_many([DEBIT] * 5)
    claimed = claimer.claim(5)
    assert claimer.settle_as_batch(ended(claimed[0])) == []
    connection.execute("VACUUM FULL cmdbus.ready")
    with psycopg.connect(dsn) as renewing:
        claimer.statements.renew(renewing, {claimer.incarnation: claimed[1:3]})
        with ThreadPoolExecutor(1) as executor:
            settling = executor.submit(claimer.settle_as_batch, *map(ended, claimed))
            await_lock_waits(dsn)
            renewing.commit()
            assert settling.result(10) == [claimed[0]]
    assert (count(connection, "cmdbus.ready"), count(connection, "cmdbus.finished")) == (0, 5)


@pytest.mark.parametrize("same", ["command", "claimer"])
@pytest.mark.parametrize("outcome", [None, RETRY, FAILED, TROUBLE], ids=str)
def test_a_key_that_a_restored_server_gave_again_belongs_to_its_new_claim(
    dsn: str,
    bus: CommandBus,
    connection: psycopg.Connection,
    claimer: Claimer,
    outcome: Outcome | None,
    same: str,
) -> None:
    """Same domain, priority, id and token: of another command, or claimed by another worker."""
    bus.send("payments", "Debit")
    lost, statements = claimer.claim_one(), claimer.statements
    if same == "command":
        again, incarnation = lost.command_id, Claimer(connection).incarnation
    else:
        again, incarnation = uuid4(), claimer.incarnation
    connection.execute(
        "UPDATE cmdbus.ready SET command_id = %s, claimer = %s, data = '1'", (again, incarnation)
    )
    before = connection.execute("SELECT * FROM cmdbus.ready").fetchall()
    if outcome is None:
        [(ctid,)] = connection.execute("SELECT tidsend(ctid) FROM cmdbus.ready").fetchall()
        for each in (lost, lost._replace(ctid=ctid)):
            assert claimer.settle_as_batch(ended(each)) == [each]
    assert claimer.settle(ended(lost, outcome)) == [lost]
    with connect(dsn) as within:
        begin(statements, within, statement=5, idle=5, marker="x")
        assert statements.settle_within(within, [ended(lost, outcome)], "x")[0] == [lost]
        roll_back(statements, within)
    assert claimer.renew(lost) == [lost]
    assert statements.release(connection, [lost], [1], "why") == []
    assert connection.execute("SELECT * FROM cmdbus.ready").fetchall() == before


@pytest.mark.parametrize("outcome", [None, FAILED], ids=str)
def test_of_two_claims_with_one_id_only_the_lost_one_is_reported(
    bus: CommandBus, connection: psycopg.Connection, claimer: Claimer, outcome: Outcome | None
) -> None:
    """A server that was restored to an earlier point gives an id and a token again, and one
    batch has both claims."""
    bus.send("payments", "Debit")
    lost, statements = claimer.claim_one(), claimer.statements
    connection.execute(
        "UPDATE cmdbus.ready SET command_id = %s, token = 0, claimer = NULL, lease_until = NULL",
        (uuid4(),),
    )
    again = claimer.claim_one()
    assert again[:4] == lost[:4]
    assert claimer.renew(again, lost) == [lost]
    assert statements.still_held(connection, [again, lost]) == [again]
    with connection.transaction(force_rollback=True):
        assert statements.release(connection, [again, lost], [1, 1], "why") == [again]
    settle = claimer.settle_as_batch if outcome is None else claimer.settle
    assert settle(ended(again, outcome), ended(lost, outcome)) == [lost]


@pytest.mark.parametrize("restarted", [False, True])
def test_an_ended_session_counts_a_loss_unless_the_server_was_restarted(
    bus: CommandBus, connection: psycopg.Connection, claimer: Claimer, restarted: bool
) -> None:
    """Else a command that ends its own session each time would run again for ever."""
    bus.send("payments", "Debit")
    claim = claimer.claim_one()
    if restarted:
        connection.execute(
            "UPDATE cmdbus.ready SET claimed_at = pg_postmaster_start_time() - interval '1 s'"
        )
    outcome = interrupted("DATABASE_AWAY", "ended", 1.0, lost=None)
    assert claimer.settle(ended(claim, outcome)) == []
    row = connection.execute("SELECT losses, attempts FROM cmdbus.scheduled").fetchone()
    assert row == (0 if restarted else 1, 0)


def test_a_deferral_is_no_event_and_its_end_is_known_by_the_row_that_waits(
    bus: CommandBus, connection: psycopg.Connection, claimer: Claimer
) -> None:
    bus.send("payments", "Debit")
    claim = claimer.claim_one()
    assert claimer.settle(ended(claim, deferred("BREAKER_OPEN", "it is open", 5.0))) == []
    assert connection.execute("SELECT FROM cmdbus.event").fetchall() == []
    assert claimer.statements.ends(connection, [claim]) == [OutcomeLabel.INTERRUPTED]


@pytest.mark.parametrize(
    ("losses", "reason", "code"),
    [
        (None, None, None),
        (1, None, "LOST"),
        (2, "STOPPED", "LOST"),
        (0, "STOPPED", "STOPPED"),
        (0, "DATABASE_AWAY", "DATABASE_AWAY"),
    ],
)
def test_a_command_that_has_begun_is_released_with_a_loss_or_a_reason(
    bus: CommandBus,
    connection: psycopg.Connection,
    claimer: Claimer,
    losses: int | None,
    reason: str | None,
    code: str | None,
) -> None:
    """And each leaves an event; what had not begun leaves none."""
    bus.send("payments", "Debit")
    claim = claimer.claim_one()
    released = claimer.statements.release(connection, [claim], [losses], "why", reason)
    assert released == [claim]
    events = connection.execute("SELECT kind, code, message FROM cmdbus.event").fetchall()
    assert events == ([] if code is None else [("LOST", code, "why")])
    rows = connection.execute("SELECT losses, attempts FROM cmdbus.ready").fetchall()
    assert rows == [(losses or 0, 0)]


@pytest.mark.parametrize(("losses", "reason"), [(0, None), (0, "STUCK"), (-1, "STOPPED")])
def test_a_release_with_neither_a_loss_nor_a_reason_is_refused(
    bus: CommandBus,
    connection: psycopg.Connection,
    claimer: Claimer,
    losses: int,
    reason: str | None,
) -> None:
    bus.send("payments", "Debit")
    claim = claimer.claim_one()
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="without a loss"):
        claimer.statements.release(connection, [claim] * 2, [None, losses], "why", reason)
    assert claimer.statements.still_held(connection, [claim]) == [claim]


@pytest.mark.parametrize("losses", [0, 1], ids=["claim", "suspect"])
def test_a_claim_after_a_lease_ended_records_the_worker_that_lost_it(
    bus: CommandBus, connection: psycopg.Connection, slow: Claimer, claimer: Claimer, losses: int
) -> None:
    """Only such a claim: neither a first one nor one after a release writes an event."""
    id_ = bus.send("payments", "Debit")
    connection.execute("UPDATE cmdbus.ready SET losses = %s", (losses,))
    claimer.release(claimer.claim_one())
    lost = slow.claim_one()
    assert connection.execute("SELECT FROM cmdbus.event").fetchall() == []
    let_lease_end(connection)
    next_one = Claimer(connection, scope=ClaimScope.SUSPECT) if losses else claimer
    assert next_one.claim_one().losses == losses + 1
    assert slow.statements.ends(connection, [lost]) == [OutcomeLabel.LOST]
    assert claimer.statements.ends(connection, [lost]) == [None]
    received = ("RECEIVED", None)
    audit = [(event.kind, event.code) for event in bus.audit("payments", id_)]
    assert audit == [("SENT", None), received, ("LOST", "LEASE_ENDED"), received]


def test_a_late_settlement_is_not_claimed_again_by_its_own_round_trip(
    bus: CommandBus, connection: psycopg.Connection, slow: Claimer
) -> None:
    """Its lease has ended, and no other worker has claimed it yet."""
    id_ = bus.send("payments", "Debit")
    claim = slow.claim_one()
    let_lease_end(connection)
    assert slow.settle_and_claim([ended(claim)], want(5)) == []
    assert bus.wait("payments", id_, 1).status is Status.COMPLETED
    assert len(bus.query()) == 1


def test_what_is_given_back_is_uncharged_and_no_loss(bus: CommandBus, claimer: Claimer) -> None:
    bus.send("payments", "Debit")
    first = claimer.claim_one()
    claimer.release(first)
    again = claimer.claim_one()
    assert (again.attempts, again.losses) == (0, 0)
    assert again.token > first.token


def test_a_renewal_passes_by_what_is_being_settled_and_waits_for_nobody(
    dsn: str, bus: CommandBus, connection: psycopg.Connection, claimer: Claimer
) -> None:
    """A plain one deadlocks with a settlement of the same rows in 11 of 25 tries."""
    bus.send_many([DEBIT] * 2)
    one, two = claimer.claim(2)
    with psycopg.connect(dsn) as settling:
        claimer.statements.settle(settling, [ended(one)])
        connection.execute("SET lock_timeout = '100ms'")
        assert claimer.renew(one, two) == []


def test_settlements_and_renewals_of_the_same_rows_never_deadlock(
    dsn: str, bus: CommandBus, claimer: Claimer
) -> None:
    with connect(dsn) as keeper:
        for _ in range(30):
            bus.send_many([DEBIT] * 40)
            found = claimer.claim(40)

            def renew(found: list[Claim] = found) -> None:
                for _ in range(3):
                    claimer.statements.renew(keeper, {claimer.incarnation: found[::-1]})

            def settle(found: list[Claim] = found) -> list[Claim]:
                return claimer.settle_as_batch(*map(ended, found))

            assert race([renew, settle]) == [None, []]
    assert bus.snapshot("payments")["in_progress"] == 0


def test_a_settlement_waits_for_another_sessions_lock_no_longer_than_its_limit(
    dsn: str, bus: CommandBus, connection: psycopg.Connection, claimer: Claimer
) -> None:
    bus.send("payments", "Debit")
    claim = claimer.claim_one()
    with psycopg.connect(dsn) as stranger:
        stranger.execute("SELECT * FROM cmdbus.ready FOR UPDATE")
        connection.execute("SET lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            claimer.settle(ended(claim))
    assert claimer.settle(ended(claim)) == []
