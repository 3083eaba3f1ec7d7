"""Workers that claim only some priorities: the others are left to others, wait visibly where none
claims them, and keep no node from being idle."""

import random
from collections import Counter
from contextlib import ExitStack, closing
from uuid import UUID

import psycopg
import pytest
from claiming import Claimer, want
from eventually import eventually
from handlers import await_drained, await_rest, connect, do_nothing, found, handling, running
from lane_claimer import LaneClaimer, Limit, declare
from preflights import WARNING, checks
from queries import claim_by_hand, rows, scalar
from test_declaring import as_app
from test_floors import ROWS_READ

from cmdbus import Command, CommandBus, Context, HandlerRegistry, SendRequest
from cmdbus.retry import SUSPECT_LOSSES
from cmdbus.worker import Worker
from cmdbus.worker.claims.claim import ClaimScope
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.steward.unhandled import Unhandled, sentence
from cmdbus.worker.waiting.timers import Timers

AGE = "UPDATE cmdbus.ready SET created_at = created_at - interval '1 hour'"
LIMITS = {
    "none": [],
    "places": [Limit("payments Debit", concurrency=2)],
    "order": [Limit("payments Debit", concurrency=1, ordered=True)],
    "rate": [Limit("payments Debit", starts_per_second=100.0, burst=1)],
    "shared": [Limit("both", concurrency=2, covers=("payments",))],
}


def debits(*priorities: int, key: str | None = None) -> list[SendRequest]:
    return [SendRequest("payments", "Debit", priority=each, key=key) for each in priorities]


def recording(ran: list[int], bus: CommandBus) -> HandlerRegistry:
    """Notes the priority of each Debit."""

    def debit(command: Command, context: Context) -> None:
        ran.append(found(bus, command.command_id).priority)

    return handling(debit)


def test_each_worker_claims_its_own_priorities(dsn: str, bus: CommandBus) -> None:
    urgent, middle, rest = list[int](), list[int](), list[int]()
    with (
        running(dsn, recording(urgent, bus), priorities=(0, 4)),
        running(dsn, recording(middle, bus), priorities=(5, 5)),
        running(dsn, recording(rest, bus), priorities=[6, 10]),
    ):
        bus.send_many(debits(*range(11), *range(11)))
        await_drained(bus)
    assert Counter(urgent) == dict.fromkeys(range(5), 2)
    assert middle == [5, 5] and Counter(rest) == dict.fromkeys(range(6, 11), 2)


@pytest.mark.parametrize(
    ("limits", "seed"),
    [
        ("places", 0),
        ("order", 0),
        *(
            pytest.param(limits, seed, marks=pytest.mark.long)
            for limits in LIMITS
            for seed in range(1, 9)
        ),
    ],
)
def test_nodes_run_all_of_their_priorities_and_rest_whatever_waits_at_limits(
    dsn: str, bus: CommandBus, limits: str, seed: int
) -> None:
    """Each wake-up is by a notification: the first poll would come after ten minutes."""
    rand, rest = random.Random(f"{limits} {seed}"), 1.5 if seed else 0.1
    with connect(dsn) as connection, ExitStack() as first, ExitStack() as second:
        declare(connection, *LIMITS[limits])

        def start(stack: ExitStack, *priorities: int) -> Worker:
            options = {"concurrency": 2, "priorities": priorities, "poll_interval": 600}
            return stack.enter_context(running(dsn, handling(), **options))

        low = start(second, 5, 10)
        for _ in range(4):
            keys = rand.choices([None, "a", "b"], k=3)
            bus.send_many([r for k in keys for r in debits(*rand.choices(range(11), k=5), key=k)])
        if limits != "order":  # There others may have to run first.
            eventually(lambda: {priority // 5 for _, priority in waiting(dsn)} == {0}, 30)
        await_rest(low, rest)
        high = start(first, 0, 4)
        await_drained(bus, 30)
        await_rest(high, rest)
        await_rest(low, rest)


def test_a_claim_leaves_a_lane_to_the_priorities_of_others(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """Without a time at which to look again, whatever waits in it."""
    declare(connection, *LIMITS["places"])
    bus.send_many(debits(7, 2, 6))  # One turn, of priority 2.
    worker = LaneClaimer(dsn, ["payments Debit"])
    with closing(worker.connection):
        worker.priorities = (5, 10)
        assert [claim.priority for claim in worker.claim(5)] == [6, 7]
        [seven, six] = sorted(worker.held, key=lambda claim: -claim.priority)
        for claim in (six, seven):  # Each leaves a turn of its own priority.
            worker.settle(claim)
            assert worker.claim(5) == [] and worker.opens_in == float("inf")
        turns = "SELECT array_agg(DISTINCT priority) FROM cmdbus.turn"
        assert scalar(connection, turns) == [2]
        assert scalar(connection, "SELECT count(opens_at) FROM cmdbus.lane") == 0
        worker.priorities = (0, 4)
        assert [claim.priority for claim in worker.claim(5)] == [2]


def test_an_ordered_lane_whose_first_is_for_others_is_left_to_them(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    declare(connection, *LIMITS["order"])
    bus.send_many(debits(7, 2))
    worker = LaneClaimer(dsn, ["payments Debit"])
    with closing(worker.connection):
        worker.priorities = (0, 4)
        for _ in range(2):
            assert worker.claim(5) == [] and worker.opens_in == float("inf")
            assert scalar(connection, "SELECT array_agg(priority) FROM cmdbus.turn") == [7]
        worker.priorities = (5, 10)
        assert [claim.priority for claim in worker.claim(5)] == [7]


def test_the_end_of_a_lease_wakes_only_nodes_that_claim_its_priority(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.send_many(debits(7))
    Claimer(connection, lease=0.01).claim_one()
    statements = ClaimStatements("cmdbus", 30)
    timers = Timers(statements, ["payments"], ["payments Debit"])
    eventually(lambda: timers.promote_and_read(connection, leases=True) < 1)
    statements.priorities = (0, 4)
    # Between readings of leases the end of the pause is what it waits for.
    eventually(lambda: timers.promote_and_read(connection, leases=True) == float("inf"))


def waiting(dsn: str) -> list[tuple[UUID, int]]:
    columns = "SELECT command_id, priority::integer FROM cmdbus."
    return rows(dsn, f"{columns}ready UNION ALL {columns}limited")


def test_what_no_node_claims_is_visible_and_wakes_none(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    [own, low, lowest] = bus.send_many(debits(3, 7, 9))
    rows(dsn, AGE + " RETURNING 1")
    claim_by_hand(dsn, lowest, "1 ms")
    with running(dsn, handling(), priorities=(0, 4)) as worker, connect(dsn) as connection:
        bus.wait("payments", own)
        await_rest(worker, 0.6)
        assert bus.explain("payments", low) == (
            "It waits: no living node claims priority 7 of payments/Debit."
        )
        [domain] = bus.domains("payments")
        assert (domain.unhandled, domain.unclaimed_priorities) == ([], {"Debit": [7, 9]})
        reason = ("payments", "Debit", "priority", 1)
        assert rows(dsn, "SELECT * FROM cmdbus.count_unreachable()") == [reason]
        assert worker._statements.band == [0, 4]
        Unhandled(worker._statements, ["payments"]).report(connection)
        assert caplog.messages == [sentence("payments", "Debit", 2, None, [7, 9])]
        with running(dsn, handling(), priorities=(7, 8)):
            bus.wait("payments", low)
            assert bus.domains("payments")[0].unclaimed_priorities == {"Debit": [9]}


def test_what_no_node_claims_is_found_by_one_walk_for_all_types(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    types, priorities = range(20), range(11)
    bus.send_many(
        SendRequest("payments", f"Type{n}", priority=priority)
        for n in types
        for priority in priorities
    )
    connection.execute(AGE)
    connection.execute(
        "INSERT INTO cmdbus.node (id, lease, renewed_at, types, priorities)"
        " SELECT 1, '1 hour', now(), array_agg('payments Type' || n), '{0,4}'"
        " FROM generate_series(0, 19) n"
    )
    with connection.transaction():
        before = scalar(connection, ROWS_READ.format("xact_"))
        [domain] = bus.domains("payments", connection=connection)
        walked = scalar(connection, ROWS_READ.format("xact_")) - before
    assert domain.unclaimed_priorities == {f"Type{n}": [5, 6, 7, 8, 9, 10] for n in types}
    assert walked <= 2 * len(types) * len(priorities)


def test_the_warning_names_the_priorities() -> None:
    assert sentence("shop", "Debit", 2, None, [7, 9]) == (
        "2 commands of shop/Debit wait, and no living node claims priorities 7 and 9 of that "
        "type: start a fleet that does, or cancel them (cmdbus cancel shop --all --type Debit)"
    )


def test_a_suspect_runs_in_quarantine_only_if_its_priority_is_claimed(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.send_many(debits(7))
    connection.execute("UPDATE cmdbus.ready SET losses = %s", (SUSPECT_LOSSES,))
    quarantine = Claimer(connection, scope=ClaimScope.SUSPECT)

    def waits(priorities: tuple[int, int]) -> bool:
        quarantine.statements.priorities = priorities
        values = {"types": ["payments Debit"], "losses": SUSPECT_LOSSES}
        band = quarantine.statements.band
        return bool(
            quarantine.statements.value(connection, "suspect_waits", **values, priorities=band)
        )

    assert not waits((0, 4)) and quarantine.settle_and_claim([], want(1)) == []
    assert waits((7, 7)) and len(quarantine.settle_and_claim([], want(1))) == 1


def test_rows_that_are_claimed_one_by_one_are_of_the_priorities(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.send_many(debits(1, 7))
    statements = ClaimStatements("cmdbus", 30)
    keys = statements.claimable(connection, want(5, priorities=(5, 10)), 5, [])
    assert [key.priority for key in keys] == [7]


def test_the_check_says_which_priorities_no_living_node_claims(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = HandlerRegistry()
    registry.register("payments", "Debit", do_nothing)
    app = as_app(monkeypatch, registry)
    check = checks(dsn, app=app, priorities=(0, 8))["priority"]
    assert (check.finding, check.sentence) == (
        WARNING,
        "this fleet claims 0-8, and no living node claims priorities 9 and 10 of payments/Debit",
    )
    with running(dsn, registry):
        eventually(lambda: rows(dsn, "SELECT FROM cmdbus.node"))
        assert "priority" not in checks(dsn, app=app, priorities=(0, 8))


@pytest.mark.parametrize(
    ("priorities", "sentence"),
    [
        ((4, 0), "priorities must begin with the lower number, not be 4 to 0"),
        ((0, 11), "each of priorities must be a whole number from 0 to 10, not 11"),
        (3, "priorities must be the first and the last one, like (0, 4), not 3"),
    ],
)
def test_what_are_no_priorities_is_refused(priorities: tuple[int, int], sentence: str) -> None:
    with pytest.raises(ValueError) as refused:
        Worker("", handling(), priorities=priorities)
    assert str(refused.value) == sentence
