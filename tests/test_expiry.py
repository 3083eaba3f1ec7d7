"""What has not begun by its expires_at is canceled with the code EXPIRED, and nothing else is."""

import threading
from collections.abc import Callable
from dataclasses import replace
from random import Random
from uuid import UUID, uuid4

import psycopg
import pytest
from batches import RETRY, TROUBLE, check_counters
from calling import called_id, calling
from claiming import Claimer, ended, want
from eventually import eventually
from handlers import beside, connect, found, handling, kinds, promote, running
from queries import count, scalar

from cmdbus import CommandBus, CommandFailedError, SendRequest
from cmdbus.worker.claims.claim import ClaimScope
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.waiting import timers as timers_module
from cmdbus.worker.waiting.timers import Timers

HOUR = 3600.0
WHY = "it expired before a worker started it"


@pytest.fixture
def timers() -> Timers:
    return Timers(ClaimStatements("cmdbus", 30), ["payments"], ["payments Debit"])


def set_expiry(connection: psycopg.Connection, seconds: float, *ids: UUID) -> None:
    """From now; of all commands, or these."""
    for table in ("ready", "scheduled", "limited"):
        connection.execute(
            f"UPDATE cmdbus.{table} SET expires_at = clock_timestamp() + make_interval(secs => %s)"
            " WHERE %s::uuid[] = '{}' OR command_id = ANY (%s)".encode(),
            (seconds, list(ids), list(ids)),
        )


def limited(connection: psycopg.Connection) -> UUID:
    """A command that waits at a limit."""
    command_id = uuid4()
    connection.execute(
        "INSERT INTO cmdbus.limited (domain, priority, command_id, type, data, correlation_id)"
        " VALUES ('payments', 5, %(id)s, 'Debit', '1', %(id)s)",
        {"id": command_id},
    )
    return command_id


def expire_all(connection: psycopg.Connection, timers: Timers) -> float:
    """Seconds until the next timer."""
    for _ in range(100):
        if seconds := timers.promote_and_read(connection, leases=False):
            return seconds
    raise AssertionError("there is no end of it")


def test_what_has_expired_is_claimed_in_no_way(
    bus: CommandBus, connection: psycopg.Connection, claimer: Claimer
) -> None:
    late, other = (bus.send("payments", "Debit") for _ in range(2))
    [key, _] = claimer.statements.claimable(connection, want(2), 2, [])
    set_expiry(connection, 0, late)
    set_expiry(connection, HOUR, other)
    found = claimer.statements.claimable(connection, want(2), 2, [])
    assert [each.command_id for each in found] == [other]
    assert claimer.statements.claim_row(connection, key) is None
    assert [claim.command_id for claim in claimer.claim(2)] == [other]


@pytest.mark.parametrize("table", ["ready", "scheduled", "limited"])
def test_what_has_expired_is_canceled_wherever_it_waits(
    bus: CommandBus, connection: psycopg.Connection, timers: Timers, table: str
) -> None:
    if table == "limited":
        late = limited(connection)
    else:
        late = bus.send("payments", "Debit", delay=HOUR if table == "scheduled" else None)
    set_expiry(connection, 0)
    assert expire_all(connection, timers) == float("inf")
    record = found(bus, late)
    assert (record.status, record.error_code, record.error_message) == ("CANCELED", "EXPIRED", WHY)
    [_, event] = bus.audit("payments", late)
    assert (event.kind, event.code, event.message) == ("EXPIRED", "EXPIRED", WHY)
    assert count(connection, f"cmdbus.{table}") == 0


def test_an_expired_command_is_answered(
    bus: CommandBus, connection: psycopg.Connection, timers: Timers
) -> None:
    late = bus.send("payments", "Debit", reply_to="orders")
    set_expiry(connection, 0)
    expire_all(connection, timers)
    [reply] = bus.query("orders")
    assert reply.data == {
        "command_id": str(late),
        "type": "Debit",
        "outcome": "CANCELED",
        "result": {"code": "EXPIRED", "message": WHY, "details": None},
    }


def test_a_call_learns_that_its_command_has_expired(
    bus: CommandBus, connection: psycopg.Connection, timers: Timers
) -> None:
    with calling(bus) as call:
        called_id(bus)
        set_expiry(connection, 0)
        expire_all(connection, timers)
        with pytest.raises(CommandFailedError, match="EXPIRED") as raised:
            call.result(10)
    assert (raised.value.code, raised.value.status) == ("EXPIRED", "CANCELED")


def test_a_batch_counts_what_expires(
    bus: CommandBus, connection: psycopg.Connection, timers: Timers
) -> None:
    requests = [SendRequest("payments", "Debit"), SendRequest("payments", "Debit", delay=HOUR)]
    done = SendRequest("payments", "Done")
    batch_id = bus.create_batch("payments", requests, on_complete=done)
    set_expiry(connection, 0)
    expire_all(connection, timers)
    assert check_counters(connection, batch_id) == "COMPLETED_WITH_FAILURES"
    assert [record.type for record in bus.query("payments", "PENDING")] == ["Done"]


def test_what_has_begun_does_not_expire(
    bus: CommandBus, connection: psycopg.Connection, claimer: Claimer, timers: Timers
) -> None:
    """It runs, waits for another attempt, or is with an operator."""
    for _ in range(4):
        bus.send("payments", "Debit")
    running, failed, troubled, interrupted = claimer.claim(4)
    claimer.settle(ended(failed, RETRY), ended(troubled, TROUBLE))
    claimer.settle(ended(interrupted, replace(RETRY, charged=False)))
    set_expiry(connection, 0)
    expire_all(connection, timers)
    assert promote(claimer.statements, connection) == 0, "the timers have moved them"
    bus.troubleshooting.retry("payments", troubled.command_id, operator="ann")
    set_expiry(connection, 0)
    expire_all(connection, timers)
    again = {claim.command_id for claim in claimer.claim(4)}
    assert again == {failed.command_id, troubled.command_id, interrupted.command_id}
    assert found(bus, running.command_id).status == "IN_PROGRESS"


def test_a_lost_claim_may_have_begun(
    bus: CommandBus, connection: psycopg.Connection, claimer: Claimer, timers: Timers
) -> None:
    """Also for the process that runs suspects alone."""
    bus.send("payments", "Debit")
    for losses in (1, 1):
        claim = claimer.claim_one()
        claimer.statements.release(connection, [claim], [losses], "it was killed")
    set_expiry(connection, 0)
    expire_all(connection, timers)
    quarantine = Claimer(connection, scope=ClaimScope.SUSPECT, name="quarantine")
    assert [each.command_id for each in quarantine.claim(1)] == [claim.command_id]


def test_a_claim_that_never_began_is_no_beginning(
    bus: CommandBus, connection: psycopg.Connection, claimer: Claimer, timers: Timers
) -> None:
    """However often a command is claimed and given back."""
    late = bus.send("payments", "Debit")
    for _ in range(3):
        claimer.release(claimer.claim_one())
        assert found(bus, late).started_at is None
        assert kinds(bus, late) == ["SENT"]
    set_expiry(connection, 0)
    expire_all(connection, timers)
    assert kinds(bus, late) == ["SENT", "EXPIRED"]


def test_a_command_that_began_once_has_begun_whatever_is_released_later(
    bus: CommandBus, connection: psycopg.Connection, claimer: Claimer, timers: Timers
) -> None:
    """An uncharged end leaves only its event."""
    begun = [bus.send("payments", "Debit") for _ in range(3)]
    failed, interrupted, stopped = claimer.claim(3)
    claimer.settle(ended(failed, RETRY), ended(interrupted, replace(RETRY, charged=False)))
    claimer.statements.release(connection, [stopped], [0], "it stopped", "STOPPED")
    promote(claimer.statements, connection)
    claimer.release(*claimer.claim(3))
    set_expiry(connection, 0)
    expire_all(connection, timers)
    assert {claim.command_id for claim in claimer.claim(3)} == set(begun)


def test_the_next_expiry_is_a_timer_wherever_the_command_waits(
    bus: CommandBus, connection: psycopg.Connection, timers: Timers
) -> None:
    ready, scheduled = bus.send("payments", "Debit"), bus.send("payments", "Debit", delay=2 * HOUR)
    waits = limited(connection)
    for seconds, command_id in ((900, waits), (600, scheduled), (300, ready)):
        set_expiry(connection, seconds, command_id)
        assert seconds - 30 < timers.promote_and_read(connection, leases=False) <= seconds


def test_commands_that_run_hide_none_that_expires_later(
    bus: CommandBus, connection: psycopg.Connection, claimer: Claimer, timers: Timers
) -> None:
    bus.send_many([SendRequest("payments", "Debit")] * 150)
    claimer.claim(150)
    set_expiry(connection, 300)
    late = bus.send("payments", "Debit")
    set_expiry(connection, 600, late)
    assert 200 < timers.promote_and_read(connection, leases=False) <= 600
    connection.execute("DELETE FROM cmdbus.ready WHERE id > 50 AND claimer IS NOT NULL")
    assert 500 < timers.promote_and_read(connection, leases=False) <= 600


@pytest.mark.parametrize("delay", [None, HOUR])
def test_a_locked_command_hides_none_that_expires_after_it(
    dsn: str,
    bus: CommandBus,
    connection: psycopg.Connection,
    timers: Timers,
    delay: float | None,
) -> None:
    locked, late = (bus.send("payments", "Debit", delay=delay) for _ in range(2))
    set_expiry(connection, 0, locked)
    set_expiry(connection, HOUR, late)
    with psycopg.connect(dsn) as holder:
        bus.cancel("payments", locked, connection=holder)
        waits = [timers.promote_and_read(connection, leases=False) for _ in range(12)]
        assert waits[0] == 0.002 and waits[-1] > 1.0
        set_expiry(connection, 1.0, late)
        assert timers.promote_and_read(connection, leases=False) <= 1.0
        set_expiry(connection, 0, late)
        timers.promote_and_read(connection, leases=False)
        assert found(bus, late).error_code == "EXPIRED"
    assert found(bus, locked).error_code == "CANCELED"


def test_a_backlog_of_due_commands_keeps_none_from_expiring(
    bus: CommandBus,
    connection: psycopg.Connection,
    timers: Timers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timers_module, "MAX_UNREAD_SECONDS", 0.0)
    bus.send_many([SendRequest("payments", "Debit", delay=HOUR)] * 5_000)
    connection.execute("UPDATE cmdbus.scheduled SET due_at = clock_timestamp()")
    assert timers.promote_and_read(connection, leases=False) == 0.0
    late = bus.send("orders", "Ship")
    set_expiry(connection, 0, late)
    assert timers.promote_and_read(connection, leases=False) == 0.0
    assert found(bus, late, "orders").error_code == "EXPIRED"
    assert count(connection, "cmdbus.scheduled") > 0


def test_many_expire_in_parts_that_hold_a_bounded_number_of_bytes(
    connection: psycopg.Connection, timers: Timers
) -> None:
    connection.execute("ALTER TABLE cmdbus.ready ALTER data SET STORAGE EXTERNAL")
    connection.execute(
        "INSERT INTO cmdbus.ready (domain, priority, command_id, correlation_id, type, data,"
        " expires_at) SELECT 'payments', 5, gen_random_uuid(), gen_random_uuid(), 'Debit',"
        " to_json(repeat('x', 1000000)), clock_timestamp() FROM generate_series(1, 20)"
    )
    assert timers.promote_and_read(connection, leases=False) == 0.0
    assert count(connection, "cmdbus.finished") == 8
    expire_all(connection, timers)
    assert count(connection, "cmdbus.finished") == 20


def test_a_command_that_cannot_be_canceled_goes_to_troubleshooting_and_keeps_no_other(
    bus: CommandBus,
    connection: psycopg.Connection,
    timers: Timers,
    caplog: pytest.LogCaptureFixture,
) -> None:
    connection.execute("ALTER TABLE cmdbus.finished ADD CHECK (type <> 'Bad')")
    bad = bus.send("payments", "Bad")
    bus.send_many([SendRequest("payments", "Debit")] * 5)
    set_expiry(connection, 0)
    expire_all(connection, timers)
    assert len(bus.query("payments", "CANCELED")) == 5
    assert found(bus, bad).error_code == "NOT_CLAIMABLE"
    assert "row 1 has expired and cannot be canceled: moved to" in caplog.text
    assert f"command={bad} type=payments/Bad" in caplog.text


def test_claims_and_expiries_at_the_same_time_end_each_command_once(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    rounds, size = 100, 20
    random = Random(1)
    started: set[UUID] = set()
    over = threading.Event()

    def repeat(work: Callable[[psycopg.Connection], None]) -> None:
        with connect(dsn) as own:
            while not over.is_set():
                work(own)

    claimers: dict[psycopg.Connection, Claimer] = {}

    def claim_and_settle(own: psycopg.Connection) -> None:
        claimer = claimers.setdefault(own, Claimer(own))
        claims = claimer.claim(3)
        begun = claims[: random.randint(0, 3)]
        started.update(claim.command_id for claim in begun)
        claimer.settle_as_batch(*(ended(claim) for claim in begun))
        left = claims[len(begun) :]
        while left and not over.is_set():  # What an expiry has locked is not released.
            released = claimer.statements.release(own, left)
            left = [claim for claim in left if claim not in released]

    def expire(own: psycopg.Connection) -> None:
        timers = Timers(ClaimStatements("cmdbus", 30), ["payments"], ["payments Debit"])
        timers.promote_and_read(own, leases=False)

    sent: list[UUID] = []
    with beside(repeat, claim_and_settle), beside(repeat, expire), beside(repeat, expire):
        for _ in range(rounds):
            ids = bus.send_many([SendRequest("payments", "Debit")] * size)
            set_expiry(connection, random.uniform(0, 0.05), *ids)
            sent += ids
        eventually(lambda: count(connection, "cmdbus.finished") == len(sent))
        over.set()
    ends = connection.execute("SELECT command_id, status FROM cmdbus.finished").fetchall()
    assert len(ends) == len(sent)
    assert {id_ for id_, status in ends if status == "COMPLETED"} == started
    assert {id_ for id_, status in ends if status == "CANCELED"} == set(sent) - started


def test_a_worker_cancels_what_expires_within_a_second_of_its_time(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    def lateness() -> float:
        late = bus.send("others", "Debit", delay=HOUR)
        bus.wait("payments", bus.send("payments", "Debit"), 10)
        bus.send("payments", "Debit", delay=0.3)  # The timers are read for it.
        set_expiry(connection, 1.5, late)
        bus.wait("others", late, 10)
        query = "SELECT extract(epoch FROM finished_at - expires_at) FROM cmdbus.finished"
        return float(scalar(connection, f"{query} WHERE command_id = %s", late))

    with running(dsn, handling(), domains=["payments"]):
        # The best of three, as a busy machine may delay one.
        assert any(0 <= lateness() < 1 for _ in range(3))
