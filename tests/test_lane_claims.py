"""What one claim takes of lanes, and what it leaves to the next ones."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from eventually import eventually
from lane_claimer import LaneClaimer, Limit, declare
from queries import holds_advisory_lock, scalar

from cmdbus import CommandBus, SendRequest
from cmdbus.worker.claims.claim import Claim, ClaimPart, LaneRequest, results_of

pytestmark = pytest.mark.new_database

SHARED = ("payments Debit", "orders Ship")


@pytest.fixture
def worker(dsn: str) -> Iterator[LaneClaimer]:
    claimer = LaneClaimer(dsn, ["payments Debit", "payments Ship", "orders Ship"])
    yield claimer
    claimer.connection.close()


def send(
    connection: psycopg.Connection,
    name: str = "payments Debit",
    key: str | None = None,
    priority: int = 5,
    data: str | None = None,
) -> None:
    """Without data it has its key."""
    connection.execute(
        "SELECT cmdbus.send(%s, %s, p_key => %s, p_priority => %s, p_data => to_jsonb(%s::text))",
        (*name.split(" "), key, priority, data or key),
    )


def test_commands_that_are_more_urgent_than_any_lane_may_take_all_of_a_claim(
    connection: psycopg.Connection, worker: LaneClaimer
) -> None:
    declare(connection, Limit("payments Debit", concurrency=1))
    send(connection)
    send(connection)
    [first] = worker.claim(1)
    worker.settle(first)
    send(connection, "payments Ship", priority=0)
    assert [claim.type for claim in worker.claim(1)] == ["Ship"]
    assert worker.has_more


def test_each_claim_in_lanes_says_when_a_rate_opens_them_again() -> None:
    """Of the types that are quick, too, which are claimed ahead of the threads."""

    def row(id_: int, attempts: int, waited: float | None = None) -> tuple[object, ...]:
        values: dict[int, object] = {3: id_, 8: attempts, 14: waited}
        return tuple(values.get(column) for column in range(18))

    rows = [row(-2, ClaimPart.LANES), row(-1, 0, 0.5), row(-1, 1), row(-2, ClaimPart.FREE)]
    first, second = results_of([*rows], ClaimPart.FREE)
    assert (first.part, first.has_more, first.opens_in) == (ClaimPart.LANES, False, 0.5)
    assert (second.part, second.has_more, second.opens_in) == (ClaimPart.LANES, True, None)


def test_no_command_overtakes_the_locked_first_one_of_an_ordered_lane(
    dsn: str, connection: psycopg.Connection, worker: LaneClaimer
) -> None:
    declare(connection, Limit("payments Debit", ordered=True))
    send(connection)
    send(connection, priority=0)
    with psycopg.connect(dsn) as other:
        other.execute("SELECT FROM cmdbus.limited ORDER BY lane_position LIMIT 1 FOR UPDATE")
        worker.claim_nothing(2)
        assert 0 < worker.opens_in <= 1
    connection.execute("UPDATE cmdbus.lane SET opens_at = clock_timestamp()")
    assert [claim.priority for claim in worker.claim(2)] == [5]


def test_a_claim_tells_when_a_shared_rate_opens_even_if_that_is_while_it_runs(
    connection: psycopg.Connection, worker: LaneClaimer
) -> None:
    """Nothing else would let the lane start."""
    declare(connection, Limit("stripe", starts_per_second=10, burst=1, covers=SHARED))
    send(connection)
    assert len(worker.claim(1)) == 1
    connection.execute(
        """UPDATE cmdbus.shared_state SET next_start = clock_timestamp() + interval '1 h';
        CREATE FUNCTION public.open_rate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            UPDATE cmdbus.shared_state SET next_start = clock_timestamp();
            RETURN NULL;
        END $$;
        CREATE TRIGGER open_rate AFTER UPDATE ON cmdbus.lane
        FOR EACH ROW WHEN (NEW.waits_for IS NOT NULL) EXECUTE FUNCTION public.open_rate()"""
    )
    send(connection, "orders Ship")
    assert worker.claim(1) == []
    assert worker.opens_in <= 0 or worker.has_more
    assert [claim.type for claim in worker.claim(1)] == ["Ship"]


def test_a_claim_at_a_full_shared_limit_tells_no_time_of_its_rate_that_is_open(
    connection: psycopg.Connection, worker: LaneClaimer
) -> None:
    """The end of a command lets the lane start: there is nothing to ask for before."""
    declare(connection, Limit("stripe", 1, starts_per_second=10, burst=1, covers=SHARED))
    send(connection)
    assert len(worker.claim(1)) == 1
    send(connection, "orders Ship")
    connection.execute("UPDATE cmdbus.shared_state SET next_start = 'epoch'")
    assert worker.claim(1) == []
    assert worker.opens_in == float("inf")


def test_a_node_with_room_claims_what_a_full_node_has_just_put_off(
    dsn: str, connection: psycopg.Connection, worker: LaneClaimer
) -> None:
    """The claim of the full node has had the lane locked, and ends before the other claim does."""
    declare(connection, Limit("stripe", 1, covers=SHARED, per_node=True))
    full = LaneClaimer(dsn, worker.types)
    send(connection, key="a")
    assert len(full.claim(1)) == 1
    full.begin()
    send(connection, key="b")
    assert full.claim(1) == []
    connection.execute(
        """ALTER FUNCTION cmdbus.next_opening RENAME TO next_opening_after_wait;
        CREATE FUNCTION cmdbus.next_opening(
            text[], text[], text[], bigint, timestamptz, timestamptz) RETURNS double precision
        LANGUAGE plpgsql AS $$ BEGIN
            PERFORM pg_advisory_xact_lock(1);
            WHILE NOT pg_try_advisory_xact_lock(2) LOOP PERFORM pg_sleep(0.01); END LOOP;
            RETURN cmdbus.next_opening_after_wait($1, $2, $3, $4, $5, $6);
        END $$;
        SELECT pg_advisory_lock(2)"""
    )
    with ThreadPoolExecutor() as threads:
        claimed = threads.submit(worker.claim, 1)
        eventually(lambda: holds_advisory_lock(connection, 1))
        full.end("COMMIT")
        connection.execute("SELECT pg_advisory_unlock(2)")
        assert claimed.result() == []
    assert worker.opens_in <= 0
    full.connection.close()
    assert [claim.data for claim in worker.claim(1)] == ['"b"']


@pytest.mark.parametrize("free", [1, 9])
def test_lanes_of_a_shared_limit_take_turns(
    connection: psycopg.Connection, worker: LaneClaimer, free: int
) -> None:
    declare(connection, Limit("stripe", concurrency=1, covers=SHARED))
    for _ in range(4):
        send(connection, key="a")
    send(connection, key="b")
    send(connection, "orders Ship")
    claimed = list[Claim]()
    for _ in range(6):
        claimed += worker.claim(free, done=tuple(claimed[-1:]))
    assert [f"{claim.type} {claim.data}" for claim in claimed] == [
        'Debit "a"',
        'Debit "b"',
        "Ship null",
        'Debit "a"',
        'Debit "a"',
        'Debit "a"',
    ]


def test_workers_of_different_types_alternate_at_a_shared_limit(
    dsn: str, connection: psycopg.Connection
) -> None:
    """Each settles and claims in one statement, so that the other one finds no place free."""
    declare(connection, Limit("stripe", concurrency=1, covers=SHARED))
    for name in SHARED * 4:
        send(connection, name)
    one, other = (LaneClaimer(dsn, [name]) for name in SHARED)
    claimed = [*one.claim(1), *other.claim(1)]
    assert [claim.type for claim in claimed] == ["Debit"]
    for worker in (one, other, one, other):
        assert worker.claim(1, done=tuple(worker.held)) == []
        is_kept = worker.opens_in <= 0 or worker.has_more
        assert is_kept, "the place, for the other worker, for a moment"
        worker = other if worker is one else one
        claimed += worker.claim(1)
    assert [claim.type for claim in claimed] == ["Debit", "Ship", "Debit", "Ship", "Debit"]
    for worker in (one, other):
        worker.connection.close()


def test_a_type_without_a_worker_keeps_no_place_of_a_shared_limit(
    connection: psycopg.Connection, dsn: str
) -> None:
    declare(connection, Limit("stripe", concurrency=1, covers=SHARED))
    for name in reversed(SHARED):
        for key in "abc":
            send(connection, name, key=key)
    worker, gone = (LaneClaimer(dsn, [name]) for name in SHARED)
    assert len(worker.claim(9)) == 1
    assert gone.claim(9) == []
    gone.connection.close()
    counts = [len(worker.claim(9, done=tuple(worker.held))) for _ in range(4)]
    assert counts == [0, 1, 1, 0], "once its turn was given to the other"
    worker.connection.close()


def test_a_frozen_claim_keeps_no_other_lanes_from_claims(
    dsn: str, connection: psycopg.Connection, worker: LaneClaimer
) -> None:
    declare(
        connection,
        Limit("stripe", concurrency=5, covers=("orders Ship",)),
        Limit("payments Debit", concurrency=5),
    )
    for key in "ab":
        send(connection, key=key)
        send(connection, "orders Ship", key=key)
    frozen = LaneClaimer(dsn, ["payments Debit", "orders Ship"])
    frozen.begin()
    assert len(frozen.claim(9)) == 4
    for key in "abcd":
        send(connection, key=key)
        send(connection, "orders Ship", key=key)
    send(connection, "payments Ship")
    done = sorted(f"{claim.type} {claim.data}" for claim in worker.claim(9))
    assert worker.opens_in <= 0 or worker.has_more
    assert done == ['Debit "c"', 'Debit "d"', "Ship null"]
    frozen.end("kill")
    assert sorted(f"{claim.type} {claim.data}" for claim in worker.claim(9)) == [
        *('Debit "a"', 'Debit "a"', 'Debit "b"', 'Debit "b"'),
        *('Ship "a"', 'Ship "a"', 'Ship "b"', 'Ship "c"', 'Ship "d"'),
    ]
    frozen.connection.close()


def test_a_claim_sees_a_shared_limit_that_its_worker_has_not_heard_of(
    connection: psycopg.Connection, worker: LaneClaimer
) -> None:
    declare(connection, Limit("payments Debit", concurrency=5))
    known = worker.statements.limited_types(worker.connection)
    declare(
        connection,
        Limit("payments Debit", concurrency=5),
        Limit("stripe", concurrency=1, covers=SHARED),
    )
    send(connection)
    send(connection)
    assert worker.claim(5, known=known) == []
    assert len(worker.claim(5)) == 1


def test_a_claim_looks_for_what_is_not_in_its_lane_only_where_a_type_has_a_limit(
    connection: psycopg.Connection, worker: LaneClaimer
) -> None:
    """Whatever number of domains have none."""
    lanes = LaneRequest(["payments Debit", "payments Ship"], [], [], 1, 0, floors={}, below=True)
    assert lanes.queues == [("payments", priority) for priority in range(11)]
    declare(connection, Limit("payments Debit", concurrency=1))
    send(connection)
    connection.execute(
        """WITH gone AS (DELETE FROM cmdbus.limited RETURNING command_id)
        INSERT INTO cmdbus.ready (
            domain, priority, type, data, command_id, correlation_id, losses)
        SELECT 'payments', 5, 'Debit', 'null', command_id, command_id, 1 FROM gone"""
    )
    assert [claim.type for claim in worker.claim(1)] == ["Debit"]


def test_a_claim_takes_no_more_bytes_than_it_asks_for_however_well_they_are_packed(
    connection: psycopg.Connection, worker: LaneClaimer
) -> None:
    declare(connection, Limit("payments Debit", concurrency=9))
    for _ in range(3):
        send(connection, key="a", data="x" * 100_000)
    assert len(worker.claim(9, bytes_=250_000)) == 2
    assert worker.has_more


def test_lanes_that_wait_stand_in_no_claims_way(
    dsn: str, connection: psycopg.Connection, worker: LaneClaimer
) -> None:
    """They wait for a place of their own, for a shared one, and for their rate."""
    declare(
        connection,
        Limit("payments Debit", concurrency=1),
        Limit("orders Ship", starts_per_second=0.001, burst=1),
        Limit("stripe", concurrency=1, covers=("orders Pack",)),
    )
    worker.types.append("orders Pack")
    before = pages_of_claims(connection, worker)
    with CommandBus(dsn) as bus:
        for name in ("payments Debit", "orders Ship", "orders Pack"):
            domain, type = name.split(" ")
            bus.send_many([SendRequest(domain, type, key=f"k{n % 500}") for n in range(1000)])
    taken = len(worker.claim(2000))
    while worker.has_more:
        taken += len(worker.claim(2000))
    assert taken == 500 + 500 + 1
    # Turns that are gone stay in the index until it is vacuumed.
    assert pages_of_claims(connection, worker) < before + 60


def pages_of_claims(connection: psycopg.Connection, worker: LaneClaimer) -> int:
    """Pages of lanes and turns that a claim of one command without a limit reads."""
    query = (
        "SELECT sum(pg_stat_get_xact_blocks_fetched(oid))::integer FROM pg_class"
        " WHERE relnamespace = 'cmdbus'::regnamespace AND relkind IN ('r', 'i')"
        " AND relname ~ '^(lane|limited|shared_state|turn)'"
    )
    counts = []
    for _ in range(8):  # enough for any plan to be kept
        send(connection, "payments Ship")
        worker.begin()
        before = int(scalar(worker.connection, query))
        assert len(worker.claim(1)) == 1
        counts.append(int(scalar(worker.connection, query)) - before)
        worker.end("COMMIT")
    return min(counts)
