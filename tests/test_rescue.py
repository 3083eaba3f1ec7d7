"""The claims of a dead worker process are released: all of them, at once, and only the command
that caused the crash is charged."""

import logging
import os
import signal
import socket
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from crowd import crowded
from dead_workers import REGISTRY, WHY, dead, ids, rescued, rescued_but
from eventually import eventually
from guarded import Guarded
from handlers import beside, connect, found, kinds
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from queries import SESSIONS, rows, scalar
from roles import role
from worker_process import WorkerProcess

from cmdbus import CommandBus, SendRequest, TransientCommandError
from cmdbus.board.board import Board
from cmdbus.board.counters import OutcomeLabel
from cmdbus.board.records import Phase
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.settlement_log import SettlementLog
from cmdbus.worker.pipeline.adoption import Adoption
from cmdbus.worker.steward.attribution import Attribution
from cmdbus.worker.steward.rescue import Rescued, rescue


def test_a_command_that_has_the_id_and_token_of_one_that_ran_counts_no_loss(
    dsn: str, bus: CommandBus
) -> None:
    """Its server was restored to an earlier point, and gave both again."""
    bus.send("payments", "Debit")
    with dead(dsn) as gone:
        (ran,) = gone.claim(1)
        gone.take(ran)
        gone.start(ran)
        gone.run(ran, 0)
        other = uuid4()
        gone.session.execute("UPDATE cmdbus.ready SET command_id = %s", (other,))
        error = TransientCommandError("TIMEOUT", "it held up its whole process")
        result = rescued(dsn, gone.death({ran: error}))
    assert (ids(result.released), result.lost, result.charged) == ({other}, [], [])
    assert rows(dsn, "SELECT losses, attempts FROM cmdbus.ready") == [(0, 0)]


def test_claims_on_the_board_are_released_however_many_rows_there_are(
    dsn: str, bus: CommandBus
) -> None:
    """Other claims are left to the ends of their leases: no index finds them."""
    bus.send_many([SendRequest("payments", "Debit") for _ in range(3)])
    with dead(dsn) as gone, connect(dsn, options="-c lock_timeout=100ms") as connection:
        claimed, started, _ = gone.claim(3)
        gone.take(claimed, started)
        gone.start(started)
        steward = ClaimStatements("cmdbus", 30)
        with crowded(connection, "others", lambda: steward.claimed(connection)):
            result = rescue(connection, steward, REGISTRY, gone.death(), SettlementLog())
            assert Adoption(gone.statements, gone.in_flight, 0).orphans(connection, set()) == []
    assert (ids(result.released), ids(result.lost)) == (ids([claimed]), ids([started]))
    assert result.sessions_ended and not result.left


def test_another_roles_session_with_a_dead_workers_name_keeps_nothing_from_being_handed_back(
    guarded: Guarded,
) -> None:
    """Every role can read the names of sessions, and take one; it may not be ended."""
    with guarded.role("worker") as dsn, guarded.role() as other, CommandBus(dsn) as bus:
        bus.send("payments", "Debit")
        stranger = make_conninfo(other, dbname=str(conninfo_to_dict(dsn)["dbname"]))
        with dead(dsn) as gone:
            name = gone.statements.application_name
            with connect(stranger, application_name=name) as session:
                [claim] = gone.claim(1)
                gone.take(claim)
                assert ids(rescued(dsn, gone.death()).released) == ids([claim])
                session.execute("SELECT 1")


def test_a_locked_row_keeps_no_other_claim_from_being_released(dsn: str, bus: CommandBus) -> None:
    """Nor one that the board does not show."""
    bus.send_many([SendRequest("payments", "Debit") for _ in range(2)])
    with dead(dsn) as gone, psycopg.connect(dsn) as holder:
        shown, unshown = gone.claim(2)
        gone.take(shown)
        holder.execute(
            "SELECT FROM cmdbus.ready WHERE command_id = %s FOR UPDATE", (shown.command_id,)
        )
        result = rescued_but(dsn, gone.death(), shown)
        assert ids(result.released) == ids([unshown])
        holder.rollback()
        assert ids(rescued(dsn, gone.death()).released) == ids([shown])


def test_only_what_had_begun_counts_a_loss_and_nothing_is_charged(
    dsn: str, bus: CommandBus
) -> None:
    """In the queue, running, finished, and claimed by a round trip whose reply was lost."""
    bus.send_many([SendRequest("payments", "Debit") for _ in range(6)])
    with dead(dsn) as gone:
        claimed, started, finished, unshown, unkeyed = gone.claim(5)
        gone.take(claimed, started, finished)
        gone.start(started)
        gone.start(finished)
        gone.finish(finished)
        gone.run(started, 0)
        gone.run(unkeyed, 1)
        result = rescued(dsn, gone.death())
        assert ids(result.released) == ids([claimed, unshown])
        assert ids(result.lost) == ids([started, finished, unkeyed])
        assert (result.charged, result.left, result.sessions_ended) == ([], [], True)
        assert rescued(dsn, gone.death()) == Rescued()
    query = "SELECT attempts, losses, claimer, lease_until, count(*), max(token) FROM cmdbus.ready"
    assert set(rows(dsn, f"{query} WHERE token > 0 GROUP BY 1, 2, 3, 4")) == {
        (0, 0, None, None, 2, 2),
        (0, 1, None, None, 3, 2),
    }
    lost = [event for event in bus.audit("payments", started.command_id) if event.kind == "LOST"]
    assert [(event.message, event.worker, event.attempt) for event in lost] == [
        (f"{WHY} (does not count as an attempt)", "dead", 1)
    ]
    assert kinds(bus, claimed.command_id) == ["SENT"]


def test_the_command_that_crashed_its_process_is_charged_and_logged(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    """Its last attempt leads to troubleshooting. What ran beside it is a line at debug."""
    caplog.set_level(logging.DEBUG, "cmdbus")
    first = bus.send("payments", "Debit", command_id=uuid4())
    last = bus.send("payments", "Debit", command_id=uuid4(), max_attempts=1)
    bystander = bus.send("payments", "Debit", command_id=uuid4())
    crash = TransientCommandError(
        "CRASHED", "its process died of SIGSEGV", {"signal": "SIGSEGV", "pid": 7, "stack": "f()"}
    )
    with dead(dsn) as gone:
        claims = gone.claim(3)
        gone.take(*claims)
        for slot, claim in enumerate(claims):
            gone.start(claim)
            gone.run(claim, slot)
        result = rescued(dsn, gone.death(dict.fromkeys(claims[:2], crash)))
    assert ids(result.charged) == {first, last}
    ends = {claim.command_id: end for claim, end in result.ends}
    assert ends == {
        first: OutcomeLabel.RETRY,
        last: OutcomeLabel.TROUBLE,
        bystander: OutcomeLabel.LOST,
    }
    lines = [vars(record) for record in caplog.records if "outcome" in vars(record)]
    assert {(r["command_id"], r["levelname"], r["outcome"], r["exc_text"]) for r in lines} == {
        (str(first), "WARNING", "retry", "f()"),
        (str(last), "ERROR", "trouble", "f()"),
        (str(bystander), "DEBUG", "lost", None),
    }
    assert len(lines) == 3
    assert ids(result.lost) == {bystander}
    record = found(bus, first)
    assert record.due_at > record.created_at
    assert (record.status, record.attempts, record.error_code) == ("PENDING", 1, "CRASHED")
    record = found(bus, last)
    assert (record.status, record.attempts) == ("IN_TROUBLESHOOTING_QUEUE", 1)
    [event] = [event for event in bus.audit("payments", last) if event.code == "CRASHED"]
    assert event.details["reason"] == "EXHAUSTED"
    assert event.details["details"] == {"signal": "SIGSEGV", "pid": 7, "stack": "f()"}
    assert (found(bus, bystander).status, found(bus, bystander).attempts) == ("PENDING", 0)


def test_what_lies_in_a_dead_clients_socket_claims_nothing_for_the_dead(
    dsn: str, bus: CommandBus
) -> None:
    """Were the claims released first, the backend would go on and claim for the dead process."""
    bus.send_many([SendRequest("payments", "Debit") for _ in range(5)])
    with dead(dsn) as gone:
        [claim] = gone.claim(1)
        gone.take(claim)
        pgconn = gone.session.pgconn
        pgconn.enter_pipeline_mode()
        for query in (
            "SELECT pg_sleep(20)",
            "UPDATE cmdbus.ready SET token = token + 1, claimer = "
            f"{gone.statements.incarnation}, lease_until = clock_timestamp() + '1 hour'",
        ):
            pgconn.send_query_params(query.encode(), None)
            pgconn.pipeline_sync()
        while pgconn.flush():
            pass
        active = "SELECT 1 FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(20)'"
        eventually(lambda: rows(dsn, active + " AND state = 'active'"))
        with socket.socket(fileno=os.dup(pgconn.socket)) as client:
            client.shutdown(socket.SHUT_RDWR)  # as when its client was killed
        result = rescued(dsn, gone.death())
        gone.session.close()
        assert (ids(result.released), result.sessions_ended) == (ids([claim]), True)
        left = (
            "SELECT 1 FROM pg_stat_activity WHERE application_name = %s"
            " AND datname = current_database()"
        )
        assert rows(dsn, left, gone.statements.application_name) == []
        assert rows(dsn, "SELECT 1 FROM cmdbus.ready WHERE claimer IS NOT NULL") == []


def test_a_session_that_waits_for_a_lock_is_ended_and_one_of_a_later_pid_is_not(
    dsn: str, bus: CommandBus
) -> None:
    bus.send("payments", "Debit")
    with dead(dsn) as gone, psycopg.connect(dsn) as stranger, connect(dsn) as unnamed:
        [claim] = gone.claim(1)
        gone.take(claim)
        gone.start(claim)
        stranger.execute("LOCK TABLE effect")
        slot = gone.board.seat(0).slot(0)
        slot.occupy(0, 1)
        slot.session(unnamed.info.backend_pid, 1)  # some other session has its pid now

        def wait() -> None:
            with pytest.raises(psycopg.OperationalError):
                gone.session.execute("INSERT INTO effect (attempt) VALUES (1)")

        with beside(wait):
            eventually(lambda: rows(dsn, "SELECT 1 FROM pg_locks WHERE NOT granted"))
            assert ids(rescued(dsn, gone.death()).lost) == ids([claim])
        start = (
            "SELECT (extract(epoch FROM backend_start) * 1000000)::bigint FROM pg_stat_activity"
            " WHERE pid = pg_backend_pid()"
        )
        slot.session(unnamed.info.backend_pid, scalar(unnamed, start))
        assert rescued(dsn, gone.death()).sessions_ended
        with pytest.raises(psycopg.OperationalError):
            unnamed.execute("SELECT 1")


def test_locked_rows_are_waited_for_no_longer_than_the_rescue_may_take(
    dsn: str, bus: CommandBus
) -> None:
    bus.send_many([SendRequest("payments", "Debit") for _ in range(3)])
    crash = TransientCommandError("CRASHED", "it crashed")
    with dead(dsn) as gone:
        claims = gone.claim(3)
        gone.take(*claims)
        attribution = gone.death({claims[0]: crash})
        held = "SELECT FROM cmdbus.ready WHERE id = ANY (%s) FOR UPDATE"
        with psycopg.connect(dsn) as stranger:
            stranger.execute(held, ([claim.id for claim in claims[:2]],))
            result = rescued_but(dsn, attribution, *claims[:2])
            assert ids(result.released) == ids([claims[2]])
        result = rescued(dsn, attribution)
        assert (ids(result.released), ids(result.charged)) == (ids([claims[1]]), ids([claims[0]]))


def test_a_row_that_the_database_rejects_keeps_no_other_claim_from_being_released(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    bus.send_many([SendRequest("payments", "Debit") for _ in range(6)])
    crash = TransientCommandError("CRASHED", "it crashed")
    with dead(dsn) as gone:
        claims = gone.claim(6)
        gone.take(*claims)
        for slot, claim in enumerate(claims[:4]):
            gone.start(claim)
            gone.run(claim, slot)
        attribution = gone.death(dict.fromkeys(claims[:2], crash))
        with connect(dsn) as admin:
            for table, claim in (("scheduled", claims[0]), ("ready", claims[2])):
                admin.execute(
                    f"ALTER TABLE cmdbus.{table} ADD CHECK (losses + attempts = 0"
                    f" OR command_id <> '{claim.command_id}')".encode()
                )
        result = rescued_but(dsn, attribution, claims[2])
    assert ids(result.charged) == ids(claims[:2])
    assert ids(result.lost) == ids([claims[3]])
    assert ids(result.released) == ids(claims[4:])
    codes = [found(bus, claim.command_id).error_code for claim in claims[:2]]
    assert codes == ["OUTCOME_NOT_STORABLE", "CRASHED"]
    assert caplog.text.count("cannot release a command") == 1


def test_a_workers_rights_suffice_for_what_is_in_the_tables(dsn: str, bus: CommandBus) -> None:
    bus.send("payments", "Debit")
    with role(dsn, "worker") as connection, dead(dsn) as gone:
        [claimed] = gone.claim(1)
        gone.take(claimed)
        gone.start(claimed)
        gone.session.close()
        eventually(lambda: not rows(dsn, f"SELECT 1 {SESSIONS}"))  # which it may not end
        result = rescue(connection, gone.statements, REGISTRY, gone.death(), SettlementLog())
        assert ids(result.lost) == ids([claimed])


def test_another_schemas_worker_of_the_same_number_is_left_alone(dsn: str, bus: CommandBus) -> None:
    """Incarnations are numbered by schema."""
    with dead(dsn) as gone:
        other_schema = ClaimStatements("second", 30)
        other_schema.incarnation = gone.statements.incarnation
        with connect(dsn, application_name=other_schema.application_name) as same_number:
            assert rescued(dsn, gone.death()) == Rescued()
            assert same_number.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.process
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_the_commands_of_a_process_that_went_run_again_before_their_leases_end(
    dsn: str, bus: CommandBus, tmp_path: Path, how: signal.Signals
) -> None:
    """And what they had written is not there; one that was only frozen lands nothing when it is
    revived."""
    worker = WorkerProcess(dsn, lease=1000, board=tmp_path / "board")
    try:
        go = tmp_path / "go"
        sent = bus.send("payments", "Debit", str(go))
        effect = (
            "SELECT 1 FROM pg_stat_activity WHERE state = 'idle in transaction'"
            " AND datname = current_database() AND query LIKE 'INSERT INTO effect%'"
        )
        eventually(lambda: rows(dsn, effect))
        worker.send(how)
        if how is signal.SIGKILL:
            worker.end()
        with closing(Board.open(tmp_path / "board")) as board:
            seat = board.seat_view(0)
            assert [slot.phase for slot in seat.slots if slot.command] == [Phase.RUNNING]
            result = rescued(dsn, Attribution(seat=seat, why=WHY))
        assert (ids(result.lost), result.released) == ({sent}, [])
        assert rows(dsn, "SELECT * FROM effect") == []
        with dead(dsn) as next_one:
            [again] = next_one.claim(1)
            assert (again.command_id, again.losses, again.attempts) == (sent, 1, 0)
            if how is signal.SIGSTOP:
                go.touch()
                worker.send(signal.SIGCONT)
                later = bus.send("payments", "Debit")
                assert bus.wait("payments", later).status == "COMPLETED"
                assert worker.end(signal.SIGTERM) == 0
            assert rows(dsn, "SELECT 1 FROM effect WHERE command_id = %s", sent) == []
    finally:
        worker.end()
