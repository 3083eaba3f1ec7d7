"""The fence: whoever lost a claim writes nothing. And the claim's plan, whatever the
statistics say."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psycopg
import pytest
from eventually import eventually
from handlers import connect, promote
from proxy import Proxy

from cmdbus import CommandBus, SendRequest, Status
from cmdbus.board.counters import OutcomeLabel
from cmdbus.worker.claims.claim import Claim, ClaimRequest, ClaimScope, Finished
from cmdbus.worker.claims.claims import Claims
from cmdbus.worker.claims.outcomes import Outcome, OutcomeKind, completed, interrupted
from cmdbus.worker.claims.transactions import begin, roll_back
from cmdbus.worker.pipeline.narrowing import Narrowing

TYPES = ["payments Debit", "orders Ship"]


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection]:
    with connect(dsn) as connection:
        yield connection


def claims(connection: psycopg.Connection, lease: float = 30) -> Claims:
    made = Claims("cmdbus", lease)
    made.register(connection, "tester")
    return made


def want(free: int, *domains: str, ahead: int = 0, quick: tuple[str, ...] = ()) -> ClaimRequest:
    return ClaimRequest(free, ahead, domains or ("payments",), TYPES, quick, {})


def done(claim: Claim, outcome: Outcome | None = None) -> Finished:
    return Finished(claim, outcome or completed({"ok": True}), 3, 0.0)


RETRY = Outcome(kind=OutcomeKind.RETRY, delay=60, code="BUSY", message="later", details="{}")
FAILED = Outcome(kind=OutcomeKind.FAILED, code="NO", message="rule", details='{"details": [1]}')
TROUBLE = Outcome(kind=OutcomeKind.TROUBLE, code="GONE", message="never", details="{}")


def test_a_claim_takes_what_it_wants_in_order_and_no_more(
    dsn: str, connection: psycopg.Connection
) -> None:
    worker = claims(connection)
    with CommandBus(dsn) as bus:
        normal = bus.send_many([SendRequest("payments", "Debit") for _ in range(3)])
        low = bus.send("payments", "Debit", priority="low")
        high = bus.send("payments", "Debit", priority="high")
        bus.send("payments", "Unknown", priority="high")
        bus.send("payments", "Debit", delay=60, priority="high")
        _, first = worker.settle_and_claim(connection, [], want(2))
        assert [claim.command_id for claim in first] == [high, normal[0]]
        _, second = worker.settle_and_claim(connection, [], want(9))
        assert [claim.command_id for claim in second] == [*normal[1:], low]
        assert worker.settle_and_claim(connection, [], want(9)) == ([], [])
        assert bus.snapshot("payments")["in_progress"] == 5


def test_domains_are_served_in_the_order_that_is_asked_for(
    dsn: str, connection: psycopg.Connection
) -> None:
    worker = claims(connection)
    with CommandBus(dsn) as bus:
        bus.send_many([SendRequest("payments", "Debit")] * 3 + [SendRequest("orders", "Ship")] * 3)
        _, found = worker.settle_and_claim(connection, [], want(4, "orders", "payments"))
        assert [claim.domain for claim in found] == ["orders"] * 3 + ["payments"]


def test_ahead_of_the_free_slots_only_quick_types_are_claimed(
    dsn: str, connection: psycopg.Connection
) -> None:
    worker = claims(connection)
    with CommandBus(dsn) as bus:
        bus.send_many([SendRequest("payments", "Debit")] * 5 + [SendRequest("orders", "Ship")] * 5)
        wanted = want(1, "payments", "orders", ahead=3, quick=("orders Ship",))
        _, found = worker.settle_and_claim(connection, [], wanted)
        assert [claim.type for claim in found] == ["Debit", "Ship", "Ship", "Ship"]


def test_a_claim_begins_above_its_floors(dsn: str, connection: psycopg.Connection) -> None:
    worker = claims(connection)
    with CommandBus(dsn) as bus:
        bus.send_many([SendRequest("payments", "Debit") for _ in range(4)])
        _, [first] = worker.settle_and_claim(connection, [], want(1))
        above = want(9)._replace(floors={("payments", 5): first.id + 1})
        assert [claim.id for claim in worker.settle_and_claim(connection, [], above)[1]] == [
            first.id + 2,
            first.id + 3,
        ]
        assert [claim.id for claim in worker.settle_and_claim(connection, [], above)[1]] == [
            first.id + 1
        ], "below the floors, when nothing is above them"


def test_sessions_that_planned_with_an_empty_queue_find_rows_by_their_key(
    dsn: str, connection: psycopg.Connection
) -> None:
    """An index that looked as good then made each row a walk over its whole domain."""
    worker = claims(connection)
    with CommandBus(dsn) as bus:
        for _ in range(7):  # enough for any plan to be kept
            assert worker.settle_and_claim(connection, [], want(9)) == ([], [])
        bus.send_many([SendRequest("payments", "Debit") for _ in range(1000)])
        with connection.transaction():
            _, claimed = worker.settle_and_claim(connection, [], want(100))
            worker.settle_and_claim(connection, [done(claim) for claim in claimed], want(100))
            read = connection.execute(
                "SELECT idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'ready'"
            ).fetchone()
    assert read is not None
    assert read[0] < 2_000, "rows read for 200 claims and 100 settlements"


def test_a_paused_domain_is_not_claimed(dsn: str, connection: psycopg.Connection) -> None:
    worker = claims(connection)
    with CommandBus(dsn) as bus:
        bus.send("payments", "Debit")
        bus.pause("payments")
        assert worker.settle_and_claim(connection, [], want(1)) == ([], [])
        bus.resume("payments")
        assert len(worker.settle_and_claim(connection, [], want(1))[1]) == 1


@pytest.mark.parametrize(
    ("outcome", "status", "attempts"),
    [
        (completed({"a": '"\\{,}NULL'}), Status.COMPLETED, 1),
        (FAILED, Status.FAILED, 1),
        (RETRY, Status.PENDING, 1),
        (replace(RETRY, charged=False), Status.PENDING, 0),
        (TROUBLE, Status.IN_TROUBLESHOOTING_QUEUE, 1),
    ],
    ids=["completed", "failed", "retry", "uncharged", "trouble"],
)
def test_each_outcome_goes_where_it_belongs(
    dsn: str, connection: psycopg.Connection, outcome: Outcome, status: Status, attempts: int
) -> None:
    """A command is in one place, so what has ended waits nowhere."""
    worker = claims(connection)
    with CommandBus(dsn) as bus:
        id_ = bus.send("payments", "Debit", reply_to="replies")
        _, [claim] = worker.settle_and_claim(connection, [], want(1))
        assert worker.settle(connection, [done(claim, outcome)]) == []
        record = bus.get("payments", id_)
        assert record is not None
        assert (record.status, record.attempts) == (status, attempts)
        assert (record.error_code, record.error_message) == (outcome.code, outcome.message)
        assert record.worker == "tester"
        assert len(bus.query("payments")) == 1
        assert bus.snapshot("payments")["depth"] == (status is Status.PENDING)
        replies = [record.data for record in bus.query("replies")]
        if status is Status.COMPLETED:
            assert record.result == {"a": '"\\{,}NULL'}
            assert [(reply["outcome"], reply["result"]) for reply in replies] == [
                ("SUCCESS", {"a": '"\\{,}NULL'})
            ]
        elif status is Status.FAILED:
            assert replies[0]["outcome"] == "FAILED"
            assert replies[0]["result"] == {"code": "NO", "message": "rule", "details": [1]}
        else:
            assert replies == []


@pytest.mark.parametrize("outcome", [None, RETRY, FAILED, TROUBLE], ids=str)
def test_whoever_lost_a_claim_settles_nothing(
    dsn: str, connection: psycopg.Connection, outcome: Outcome | None
) -> None:
    """At its lease's end it is there for others, and fenced."""
    slow, other = claims(connection, lease=0.001), claims(connection)
    with CommandBus(dsn) as bus:
        id_ = bus.send("payments", "Debit")
        _, [lost] = slow.settle_and_claim(connection, [], want(1))
        connection.execute("SELECT pg_sleep(0.005)")
        _, [mine] = other.settle_and_claim(connection, [], want(1))
        assert (mine.token, mine.losses) == (lost.token + 1, 1)
        assert slow.settle(connection, [done(lost, outcome)]) == [lost]
        assert slow.renew(connection, {slow.incarnation: [lost]}) == [lost]
        slow.release(connection, [lost])
        record = bus.get("payments", id_)
        assert record is not None and record.status is Status.IN_PROGRESS
        assert other.settle_and_claim(connection, [done(mine)], want(1)) == ([], [])
        record = bus.get("payments", id_)
        assert record is not None and record.status is Status.COMPLETED


def test_a_process_for_suspects_claims_only_one(dsn: str, connection: psycopg.Connection) -> None:
    """What crashes it after that one has ended must not be taken for another one's doing."""
    with CommandBus(dsn) as bus:
        bus.send_many([SendRequest("payments", "Debit")] * 2)
    connection.execute("UPDATE cmdbus.ready SET losses = 2")
    alone = Claims("cmdbus", 30, ClaimScope.SUSPECT)
    alone.register(connection, "alone")
    [first] = alone.settle_and_claim(connection, [], want(5))[1]
    assert alone.settle_and_claim(connection, [done(first)], want(5)) == ([], [])
    other = Claims("cmdbus", 30, ClaimScope.SUSPECT)
    other.register(connection, "another")
    assert len(other.settle_and_claim(connection, [], want(5))[1]) == 1


def test_a_process_for_suspects_claims_no_other_when_the_reply_is_lost(
    dsn: str, connection: psycopg.Connection
) -> None:
    with CommandBus(dsn) as bus:
        bus.send_many([SendRequest("payments", "Debit")] * 2)
    connection.execute("UPDATE cmdbus.ready SET losses = 2")
    alone = Claims("cmdbus", 30, ClaimScope.SUSPECT)
    alone.register(connection, "alone")
    with Proxy(dsn) as proxy, connect(proxy.dsn) as cut, ThreadPoolExecutor() as threads:
        proxy.mute()
        step = threads.submit(alone.settle_and_claim, cut, [], want(5))
        eventually(lambda: alone.claimed(connection))
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            step.result(10)
    assert alone.settle_and_claim(connection, [], want(5)) == ([], [])
    assert len(alone.claimed(connection)) == 1


def test_a_suspect_that_cannot_be_claimed_is_set_aside_and_the_next_one_is_claimed(
    dsn: str, connection: psycopg.Connection
) -> None:
    """Else a process for suspects would find none, and another one be started, for ever."""
    with CommandBus(dsn) as bus:
        first, *_ = bus.send_many([SendRequest("payments", "Debit")] * 3)
    connection.execute("UPDATE cmdbus.ready SET losses = 2")
    connection.execute(
        "ALTER TABLE cmdbus.ready ADD CONSTRAINT refused"
        f" CHECK (command_id <> '{first}' OR claimer IS NULL)".encode()
    )
    alone = Claims("cmdbus", 30, ClaimScope.SUSPECT)
    alone.register(connection, "alone")
    for _ in range(2):
        with pytest.raises(psycopg.errors.CheckViolation):
            alone.settle_and_claim(connection, [], want(1))
    narrowing, taken = Narrowing(alone), list[Claim]()
    assert narrowing.claim(connection, want(1), taken.extend) == 1 and not taken
    assert connection.execute("SELECT command_id FROM cmdbus.troubleshooting").fetchall() == [
        (first,)
    ]
    assert narrowing.claim(connection, want(1), taken.extend) == 1 and len(taken) == 1
    assert alone.settle_and_claim(connection, [], want(1)) == ([], []), (
        "one in the life of a process"
    )


def test_rows_that_have_moved_since_their_claim_are_settled(
    dsn: str, connection: psycopg.Connection
) -> None:
    """As a renewal and VACUUM FULL move them; also while a renewal holds one."""
    worker = claims(connection)
    with CommandBus(dsn) as bus:
        bus.send_many([SendRequest("payments", "Debit")] * 5)
    _, claimed = worker.settle_and_claim(connection, [], want(5))
    assert worker.settle_and_claim(connection, [done(claimed[0])], want(0)) == ([], [])
    connection.execute("VACUUM FULL cmdbus.ready")
    with psycopg.connect(dsn) as renewing:
        worker.renew(renewing, {worker.incarnation: claimed[1:3]})
        with ThreadPoolExecutor(1) as executor:
            ended = [done(claim) for claim in claimed]
            settling = executor.submit(worker.settle_and_claim, connection, ended, want(0))
            with connect(dsn) as other:
                eventually(lambda: waits_for_a_lock(other))
            renewing.commit()
            assert settling.result(10) == ([claimed[0]], [])
    rest = connection.execute(
        "SELECT (SELECT count(*) FROM cmdbus.ready), count(*) FROM cmdbus.finished"
    )
    assert rest.fetchall() == [(0, 5)]


def waits_for_a_lock(connection: psycopg.Connection) -> bool:
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    waiting += " AND datname = current_database()"
    return connection.execute(waiting).fetchone() is not None


@pytest.mark.parametrize("same", ["command", "claimer"])
@pytest.mark.parametrize("outcome", [None, RETRY, FAILED, TROUBLE], ids=str)
def test_a_key_that_a_restored_server_gave_again_belongs_to_its_new_claim(
    dsn: str, connection: psycopg.Connection, outcome: Outcome | None, same: str
) -> None:
    """Same domain, priority, id and token: of another command, or claimed by another worker."""
    stale, other = claims(connection), claims(connection)
    with CommandBus(dsn) as bus:
        bus.send("payments", "Debit")
        _, [lost] = stale.settle_and_claim(connection, [], want(1))
        if same == "command":
            again, claimer = lost.command_id, other.incarnation
        else:
            again, claimer = uuid4(), stale.incarnation
        connection.execute(
            "UPDATE cmdbus.ready SET command_id = %s, claimer = %s, data = '1'", (again, claimer)
        )
        before = connection.execute("SELECT * FROM cmdbus.ready").fetchall()
        if outcome is None:
            [(ctid,)] = connection.execute("SELECT ctid FROM cmdbus.ready").fetchall()
            for each in (lost, lost._replace(ctid=ctid)):
                assert stale.settle_and_claim(connection, [done(each)], want(0)) == ([each], [])
        assert stale.settle(connection, [done(lost, outcome)]) == [lost]
        with connect(dsn) as within:
            begin(stale, within, statement=5, idle=5, marker="x")
            assert stale.settle_within(within, done(lost, outcome), "x")[0] is False
            roll_back(stale, within)
        assert stale.renew(connection, {stale.incarnation: [lost]}) == [lost]
        assert stale.release_dead(connection, [lost], [1], "why") == []
        assert connection.execute("SELECT * FROM cmdbus.ready").fetchall() == before


@pytest.mark.parametrize("outcome", [None, FAILED], ids=str)
def test_of_two_claims_with_one_id_only_the_lost_one_is_reported(
    dsn: str, connection: psycopg.Connection, outcome: Outcome | None
) -> None:
    """A server that was restored to an earlier point gives an id and a token again, and one
    batch has both claims."""
    worker = claims(connection)
    with CommandBus(dsn) as bus:
        bus.send("payments", "Debit")
        _, [lost] = worker.settle_and_claim(connection, [], want(1))
        connection.execute("UPDATE cmdbus.ready SET command_id = %s", (uuid4(),))
        connection.execute("UPDATE cmdbus.ready SET token = 0, claimer = NULL, lease_until = NULL")
        _, [again] = worker.settle_and_claim(connection, [], want(1))
    assert again[:4] == lost[:4]
    both = [again, lost]
    assert worker.renew(connection, {worker.incarnation: both}) == [lost]
    assert worker.still_held(connection, both) == [again]
    with connect(dsn) as other, other.transaction(force_rollback=True):
        assert worker.release_dead(other, both, [1, 1], "why") == [again]
    ended = [done(again, outcome), done(lost, outcome)]
    if outcome is None:
        assert worker.settle_and_claim(connection, ended, want(0)) == ([lost], [])
    else:
        assert worker.settle(connection, ended) == [lost]


@pytest.mark.parametrize("restarted", [False, True])
def test_an_ended_session_counts_a_loss_unless_the_server_was_restarted(
    dsn: str, connection: psycopg.Connection, restarted: bool
) -> None:
    """Else a command that ends its own session each time would run again for ever."""
    worker = claims(connection)
    with CommandBus(dsn) as bus:
        bus.send("payments", "Debit")
    _, [claim] = worker.settle_and_claim(connection, [], want(1))
    if restarted:
        connection.execute(
            "UPDATE cmdbus.ready SET claimed_at = pg_postmaster_start_time() - interval '1 s'"
        )
    outcome = interrupted("DATABASE_AWAY", "ended", 1.0, lost=None)
    assert worker.settle(connection, [done(claim, outcome)]) == []
    row = connection.execute("SELECT losses, attempts FROM cmdbus.scheduled").fetchone()
    assert row == (0 if restarted else 1, 0)


@pytest.mark.parametrize(
    ("losses", "reason", "code"),
    [
        (None, None, None),
        (1, None, "LOST"),
        (2, "STOPPED", "LOST"),
        (0, "STOPPED", "STOPPED"),
        (0, "DATABASE_AWAY", "DATABASE_AWAY"),
        (0, None, "refused"),
        (0, "STUCK", "refused"),
        (-1, "STOPPED", "refused"),
    ],
)
def test_a_command_that_has_begun_is_released_with_a_loss_or_a_reason(
    dsn: str,
    connection: psycopg.Connection,
    losses: int | None,
    reason: str | None,
    code: str | None,
) -> None:
    """And each leaves an event; what had not begun leaves none."""
    worker = claims(connection)
    with CommandBus(dsn) as bus:
        bus.send("payments", "Debit")
    _, [claim] = worker.settle_and_claim(connection, [], want(1))
    if code == "refused":
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="without a loss"):
            worker.release_dead(connection, [claim, claim], [None, losses], "why", reason)
        assert connection.execute("SELECT claimer FROM cmdbus.ready").fetchall() == [
            (worker.incarnation,)
        ]
        return
    assert worker.release_dead(connection, [claim], [losses], "why", reason) == [claim]
    events = connection.execute("SELECT kind, code, message FROM cmdbus.event").fetchall()
    assert events == ([] if code is None else [("LOST", code, "why")])
    rows = connection.execute("SELECT losses, attempts FROM cmdbus.ready").fetchall()
    assert rows == [(losses or 0, 0)]


@pytest.mark.parametrize("losses", [0, 1], ids=["claim", "suspect"])
def test_a_claim_after_a_lease_ended_writes_who_had_lost_it(
    dsn: str, connection: psycopg.Connection, losses: int
) -> None:
    """Only such a claim: neither a first one nor one after a release writes an event."""
    slow, other = claims(connection, lease=0.001), claims(connection)
    with CommandBus(dsn) as bus:
        id_ = bus.send("payments", "Debit")
        connection.execute("UPDATE cmdbus.ready SET losses = %s", (losses,))
        _, [released] = other.settle_and_claim(connection, [], want(1))
        other.release(connection, [released])
        _, [lost] = slow.settle_and_claim(connection, [], want(1))
        assert connection.execute("SELECT FROM cmdbus.event").fetchall() == []
        connection.execute("SELECT pg_sleep(0.005)")
        if losses:
            [again] = Claims("cmdbus", 30, ClaimScope.SUSPECT).settle_and_claim(
                connection, [], want(1)
            )[1]
        else:
            [again] = other.settle_and_claim(connection, [], want(1))[1]
        assert again.losses == losses + 1
        assert slow.ends(connection, [lost]) == [OutcomeLabel.LOST]
        assert other.ends(connection, [lost]) == [None]
        audit = [(event.kind, event.code) for event in bus.audit("payments", id_)]
        assert audit == [
            ("SENT", None),
            ("RECEIVED", None),
            ("LOST", "LEASE_ENDED"),
            ("RECEIVED", None),
        ]


def test_a_late_settlement_is_not_claimed_again_by_its_own_step(
    dsn: str, connection: psycopg.Connection
) -> None:
    """The lease is over, and nobody else has it yet."""
    worker = claims(connection, lease=0.001)
    with CommandBus(dsn) as bus:
        id_ = bus.send("payments", "Debit")
        _, [claim] = worker.settle_and_claim(connection, [], want(1))
        connection.execute("SELECT pg_sleep(0.005)")
        assert worker.settle_and_claim(connection, [done(claim)], want(5)) == ([], [])
        assert bus.wait("payments", id_, 1).status is Status.COMPLETED
        assert len(bus.query()) == 1


def test_what_is_given_back_is_uncharged_and_no_loss(
    dsn: str, connection: psycopg.Connection
) -> None:
    worker = claims(connection)
    with CommandBus(dsn) as bus:
        bus.send("payments", "Debit")
        _, [first] = worker.settle_and_claim(connection, [], want(1))
        worker.release(connection, [first])
        _, [again] = worker.settle_and_claim(connection, [], want(1))
        assert (again.attempts, again.losses) == (0, 0)
        assert again.token > first.token


def test_a_renewal_passes_by_what_is_being_settled_and_waits_for_nobody(
    dsn: str, connection: psycopg.Connection
) -> None:
    """A plain one deadlocks with a settlement of the same rows in 11 of 25 tries."""
    worker = claims(connection)
    with CommandBus(dsn) as bus:
        bus.send_many([SendRequest("payments", "Debit")] * 2)
        _, [one, two] = worker.settle_and_claim(connection, [], want(2))
        with psycopg.connect(dsn) as settling, connect(dsn) as keeper:
            worker.settle(settling, [done(one)])
            keeper.execute("SET lock_timeout = '100ms'")
            assert worker.renew(keeper, {worker.incarnation: [one, two]}) == []


def test_settlements_and_renewals_of_the_same_rows_never_deadlock(
    dsn: str, connection: psycopg.Connection
) -> None:
    worker = claims(connection)
    failures: list[BaseException] = []
    with CommandBus(dsn) as bus, connect(dsn) as keeper:
        for _ in range(30):
            bus.send_many([SendRequest("payments", "Debit")] * 40)
            _, found = worker.settle_and_claim(connection, [], want(40))

            def renew(found: list[Claim] = found) -> None:
                try:
                    for _ in range(3):
                        worker.renew(keeper, {worker.incarnation: found[::-1]})
                except BaseException as error:
                    failures.append(error)

            thread = threading.Thread(target=renew)
            thread.start()
            worker.settle_and_claim(connection, [done(claim) for claim in found], want(0))
            thread.join(10)
        assert failures == []
        assert bus.snapshot("payments")["in_progress"] == 0


def test_promotion_brings_what_is_due_oldest_first_and_nothing_early(
    dsn: str, connection: psycopg.Connection
) -> None:
    worker = claims(connection)
    with CommandBus(dsn) as bus:
        due = datetime.now(UTC) + timedelta(seconds=0.5)
        ids = [
            bus.send("payments", "Debit", run_at=due + timedelta(seconds=later))
            for later in (0.02, 0.01, 60)
        ]
        assert promote(worker, connection, 100) == 0
        connection.execute("SELECT pg_sleep_until(%s)", (due + timedelta(seconds=0.05),))
        assert promote(worker, connection, 1) == 1
        assert promote(worker, connection, 100) == 1
        _, found = worker.settle_and_claim(connection, [], want(9))
        assert [claim.command_id for claim in found] == [ids[1], ids[0]]


@pytest.mark.parametrize("analysed", ["never", "when it was empty"])
def test_a_claim_reads_what_it_claims_and_not_the_backlog(
    dsn: str, connection: psycopg.Connection, analysed: str
) -> None:
    """Right after a burst the statistics still say that the table is empty."""
    worker = claims(connection)
    if analysed != "never":
        connection.execute("ANALYZE")
    with CommandBus(dsn) as bus:
        bus.send_many([SendRequest("payments", "Debit")] * 100_000)
    connection.execute("SET track_functions = 'all'")
    before = pages_read(connection)
    finished: list[Finished] = []
    for _ in range(20):
        _, found = worker.settle_and_claim(connection, finished, want(100))
        assert len(found) == 100
        finished = [done(claim) for claim in found]
    assert pages_read(connection) - before < 20 * 100 * 30


def test_urgent_commands_of_the_future_slow_and_starve_nobody(
    dsn: str, connection: psycopg.Connection
) -> None:
    worker = claims(connection)
    with CommandBus(dsn) as bus:
        future = SendRequest("payments", "Debit", priority="high", delay=3600)
        bus.send_many([future] * 10_000)
        normal = bus.send("payments", "Debit")
    before = pages_read(connection)
    _, [found] = worker.settle_and_claim(connection, [], want(1))
    assert found.command_id == normal
    assert pages_read(connection) - before < 100
    plan = connection.execute(
        "EXPLAIN SELECT due_at FROM cmdbus.scheduled ORDER BY due_at, id LIMIT 1"
    ).fetchall()
    assert "scheduled_pkey" in str(plan)


def pages_read(connection: psycopg.Connection) -> int:
    """Heap and index pages of ready that all sessions have read so far.

    A session reports its last pages when it ends, a moment after its client has closed it.
    """
    others = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )
    eventually(lambda: not connection.execute(others).fetchall())
    connection.execute("SELECT pg_stat_clear_snapshot()")
    if connection.info.server_version >= 150000:
        connection.execute("SELECT pg_stat_force_next_flush()")
    else:  # statistics are sent at most twice a second
        connection.execute("SELECT pg_sleep(0.6)")
        connection.execute("SELECT 1")
    row = connection.execute(
        "SELECT heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit"
        " FROM pg_statio_user_tables WHERE relid = 'cmdbus.ready'::regclass"
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_claimers_never_share_and_never_fail(dsn: str) -> None:
    with CommandBus(dsn) as bus:
        bus.send_many([SendRequest("payments", "Debit") for _ in range(2000)])
    found: list[list[Claim]] = [[] for _ in range(8)]
    barrier = threading.Barrier(8)

    def claim(index: int) -> None:
        with connect(dsn) as connection:
            worker = claims(connection)
            barrier.wait(10)
            while got := worker.settle_and_claim(connection, [], want(7))[1]:
                found[index] += got

    threads = [threading.Thread(target=claim, args=(place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    ids = [claim.id for part in found for claim in part]
    assert (len(ids), len(set(ids))) == (2000, 2000)


def test_a_settlement_waits_for_a_strangers_lock_no_longer_than_its_limit(
    dsn: str, connection: psycopg.Connection
) -> None:
    worker = claims(connection)
    with CommandBus(dsn) as bus, psycopg.connect(dsn) as stranger:
        bus.send("payments", "Debit", command_id=uuid4())
        _, [claim] = worker.settle_and_claim(connection, [], want(1))
        stranger.execute("SELECT * FROM cmdbus.ready FOR UPDATE")
        connection.execute("SET lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            worker.settle(connection, [done(claim)])
        stranger.rollback()
        assert worker.settle(connection, [done(claim)]) == []


def test_leases_begin_and_end_by_the_clock_and_not_by_their_transaction(
    dsn: str, connection: psycopg.Connection
) -> None:
    """Now() is as old as the transaction in which somebody claims or renews."""
    worker, other = claims(connection), claims(connection)
    lease = "SELECT lease_until - interval '30 s' FROM cmdbus.ready"

    def value(query: str) -> datetime:
        found = connection.execute(query.encode()).fetchall()[0][0]
        assert isinstance(found, datetime)
        return found

    with CommandBus(dsn) as bus:
        bus.send("payments", "Debit")
    with connection.transaction():
        before = value("SELECT clock_timestamp()")
        _, [claim] = worker.settle_and_claim(connection, [], want(1))
        assert value(lease) >= before
        before = value("SELECT clock_timestamp()")
        assert worker.renew(connection, {worker.incarnation: [claim]}) == []
        assert value(lease) >= before
        # It ends within the transaction, after its now().
        connection.execute("UPDATE cmdbus.ready SET lease_until = clock_timestamp()")
        _, [again] = other.settle_and_claim(connection, [], want(1))
        assert (again.id, again.token) == (claim.id, claim.token + 1)
