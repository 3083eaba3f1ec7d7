"""Leases, when the server's clock is set or its queue is locked: what a living node holds is not
taken over, and what a dead one held is not kept for as long as the clock was set back.

Stored times move against a clock that is set, and against one that goes on: so these are moved
here, and no test waits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import pytest
from handlers import claim, connect
from queries import scalar

from cmdbus import CommandBus, InvalidOperationError
from cmdbus.worker.claims.claim import Claim, ClaimRef
from cmdbus.worker.claims.claim_statements import ClaimStatements

LEASE = 60.0


@dataclass
class Node:
    statements: ClaimStatements
    session: psycopg.Connection

    def claim(self) -> list[Claim]:
        return claim(self.statements, self.session, 9)

    def renew(self, *held: Claim) -> list[ClaimRef]:
        return self.statements.renew(self.session, {self.statements.incarnation: held})


@pytest.fixture
def nodes(dsn: str) -> Iterator[tuple[Node, Node, Claim]]:
    """The first has a claim, and has renewed it."""
    with CommandBus(dsn) as bus, connect(dsn) as one, connect(dsn) as two:
        owner, other = (
            Node(ClaimStatements("cmdbus", LEASE), one),
            Node(ClaimStatements("cmdbus", LEASE), two),
        )
        for node in (owner, other):
            node.statements.register(node.session, "tester")
        bus.send("payments", "Debit")
        [held] = owner.claim()
        assert owner.renew(held) == []
        yield owner, other, held


def set_clock(session: psycopg.Connection, to: str) -> None:
    """Stored times are then as if the clock had been set by this interval."""
    for table, column in (("ready", "lease_until"), ("node", "renewed_at")):
        move = f"UPDATE cmdbus.{table} SET {column} = {column} - %s::interval"
        session.execute(move.encode(), (to,))


def pass_time(session: psycopg.Connection, seconds: float) -> None:
    set_clock(session, f"{seconds} s")
    for name in ("patience", "longer_patience"):
        move = f"SELECT setval('cmdbus.{name}', greatest(0, last_value - %s)) FROM cmdbus.{name}"
        session.execute(move.encode(), (int(seconds * 1000) << 21,))


@pytest.mark.parametrize("to", ["1 hour", "-1 hour"])
def test_a_clock_that_is_set_takes_no_lease_from_a_living_node(
    nodes: tuple[Node, Node, Claim], to: str
) -> None:
    owner, other, claim = nodes
    set_clock(other.session, to)
    assert other.claim() == []
    assert owner.renew(claim) == []
    pass_time(other.session, LEASE / 2)
    assert other.claim() == []
    assert owner.renew(claim) == []


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_nor_does_one_that_is_set_soon_after_the_nodes_had_nothing_to_renew(
    nodes: tuple[Node, Node, Claim], seconds: float
) -> None:
    """Their first renewal begins a wait, and the clock is set beyond its end."""
    owner, other, claim = nodes
    pass_time(other.session, 2 * LEASE)
    assert owner.renew(claim) == []
    pass_time(other.session, LEASE / 10)
    pass_time(other.session, seconds)
    assert other.claim() == []
    assert owner.renew(claim) == []
    pass_time(other.session, LEASE / 2)
    assert other.claim() == []


@pytest.mark.parametrize("to", ["1 hour", "-1 hour"])
def test_what_a_dead_node_held_is_taken_over_soon_after_the_clock_was_set(
    nodes: tuple[Node, Node, Claim], to: str
) -> None:
    _, other, claim = nodes
    set_clock(other.session, to)
    assert other.claim() == []
    pass_time(other.session, LEASE / 4)
    assert other.claim() == []
    pass_time(other.session, LEASE / 3)
    [again] = other.claim()
    assert (again.command_id, again.losses) == (claim.command_id, 1)


def test_a_queue_that_was_locked_for_longer_than_a_lease_takes_none(
    nodes: tuple[Node, Node, Claim],
) -> None:
    """No node could renew meanwhile."""
    owner, other, claim = nodes
    pass_time(other.session, LEASE * 1.2)
    assert other.claim() == []
    assert owner.renew(claim) == []
    pass_time(other.session, LEASE / 2)
    assert other.claim() == []


@pytest.mark.parametrize("to", ["1 hour", "-1 hour"])
def test_an_operator_takes_no_command_from_a_living_node_either(
    nodes: tuple[Node, Node, Claim], dsn: str, to: str
) -> None:
    owner, other, claim = nodes
    set_clock(other.session, to)
    with CommandBus(dsn, purge_allowed=True) as bus:
        with pytest.raises(InvalidOperationError, match="running=True"):
            bus.cancel("payments", claim.command_id)
        with pytest.raises(InvalidOperationError, match="in progress"):
            bus.reschedule("payments", claim.command_id, priority="high")
        assert (bus.count_waiting("payments"), bus.cancel_all("payments")) == (0, 0)
        assert bus.purge("payments") == 0
        assert owner.renew(claim) == []
        set_clock(other.session, to)
        assert bus.cancel_all("payments") == 0
        pass_time(other.session, LEASE * 0.6)
        assert bus.count_waiting("payments") == 1
        bus.reschedule("payments", claim.command_id, delay=60.0)
        events = [event.kind for event in bus.audit("payments", claim.command_id)]
        assert events == ["SENT", "RECEIVED", "LOST", "RESCHEDULED"]
        bus.cancel("payments", claim.command_id)


def test_the_first_statement_that_finds_no_renewal_keeps_no_node_from_renewing(
    nodes: tuple[Node, Node, Claim], dsn: str
) -> None:
    """It may be in a transaction that goes on for long."""
    owner, other, claim = nodes
    set_clock(other.session, "-1 hour")
    owner.session.execute("SET lock_timeout = '5 s'")
    with CommandBus(dsn) as bus, psycopg.connect(dsn) as busy:
        assert bus.cancel_all("payments", connection=busy) == 0
        assert owner.renew(claim) == []
        assert other.claim() == []


def test_a_lease_ends_on_time_while_another_node_can_renew(
    nodes: tuple[Node, Node, Claim],
) -> None:
    _, other, claim = nodes
    other.renew()
    other.session.execute("UPDATE cmdbus.ready SET lease_until = clock_timestamp()")
    [again] = other.claim()
    assert (again.command_id, again.losses) == (claim.command_id, 1)


@contextmanager
def holder(dsn: str, lease: float) -> Iterator[tuple[Node, Claim]]:
    """A node of such leases, with a claim that it has renewed."""
    with CommandBus(dsn) as bus, connect(dsn) as session:
        node = Node(ClaimStatements("cmdbus", lease), session)
        node.statements.register(session, "tester")
        bus.send("payments", "Debit")
        [held] = node.claim()
        assert node.renew(held) == []
        yield node, held


@pytest.fixture
def patient(nodes: tuple[Node, Node, Claim], dsn: str) -> Iterator[tuple[Node, Claim]]:
    with holder(dsn, 60 * LEASE) as made:
        yield made


def test_a_wait_for_renewals_is_no_longer_for_a_claimer_than_its_lease_asks_for(
    nodes: tuple[Node, Node, Claim], patient: tuple[Node, Claim]
) -> None:
    """The node of long leases may have been idle for hours, or be gone."""
    _, other, short = nodes
    pass_time(other.session, 61 * LEASE)
    assert other.claim() == []
    pass_time(other.session, LEASE / 2 + 1)
    assert [claim.command_id for claim in other.claim()] == [short.command_id]
    pass_time(other.session, 30 * LEASE)
    assert patient[1].command_id in [claim.command_id for claim in other.claim()]


def test_a_node_of_long_leases_hides_no_stall_from_those_of_short_ones(
    nodes: tuple[Node, Node, Claim], patient: tuple[Node, Claim]
) -> None:
    """Its latest renewal is recent only for its own leases."""
    owner, other, short = nodes
    pass_time(other.session, LEASE + 1)
    assert other.claim() == []
    assert owner.renew(short) == []
    pass_time(other.session, LEASE / 2)
    assert other.claim() == []


def test_the_first_renewal_after_a_stall_begins_the_wait_of_longer_leases_too(
    nodes: tuple[Node, Node, Claim], patient: tuple[Node, Claim]
) -> None:
    owner, other, short = nodes
    pass_time(other.session, 61 * LEASE)
    assert owner.renew(short) == []
    assert other.claim() == []
    pass_time(other.session, LEASE / 6)
    assert owner.renew(short) == []
    assert other.claim() == []


def test_a_shorter_wait_neither_ends_nor_prolongs_the_longer_one_that_it_interrupts(
    nodes: tuple[Node, Node, Claim], patient: tuple[Node, Claim]
) -> None:
    """Nodes of short leases have nothing to renew now and then."""
    owner, other, short = nodes
    pass_time(other.session, 61 * LEASE)
    for _ in range(14):
        assert owner.renew(short) == []
        assert other.claim() == []
        pass_time(other.session, 2 * LEASE)
    pass_time(other.session, 1.9 * LEASE)
    assert owner.renew(short) == []
    assert other.claim() == []
    pass_time(other.session, 0.2 * LEASE)
    assert [claim.command_id for claim in other.claim()] == [patient[1].command_id]


def test_a_wait_that_interrupts_two_longer_ones_ends_neither(
    nodes: tuple[Node, Node, Claim], patient: tuple[Node, Claim], dsn: str
) -> None:
    owner, other, short = nodes
    with holder(dsn, 15 * LEASE) as (_, middle):
        pass_time(other.session, 61 * LEASE)
        assert owner.renew(short) == []
        for seconds in (0, 23 * LEASE):
            pass_time(other.session, seconds)
            assert other.claim() == []
        pass_time(other.session, 1.6 * LEASE)
        assert owner.renew(short) == []
        assert other.claim() == []
        pass_time(other.session, 7.6 * LEASE)
        again = {claim.command_id for claim in other.claim()}
        assert {middle.command_id, patient[1].command_id} <= again


@pytest.mark.parametrize("pause", [0.1, 0.4, 0.9])
def test_waits_for_renewals_end_however_often_those_of_shorter_leases_interrupt_them(
    nodes: tuple[Node, Node, Claim], pause: float
) -> None:
    """Times in short leases. All nodes are dead, or have nothing to renew."""
    session = nodes[1].session
    lengths, ends, now = [1, 4, 15, 60], dict[int, float](), 0.0
    pass_time(session, 61 * LEASE)
    while now < 150:
        for length in lengths:
            begin = "SELECT cmdbus.begin_wait_for_renewals(make_interval(secs => %s))"
            # Of the longer ones, a worker claims what a dead node held, and no wait begins again.
            if ends.keys() >= {*lengths[lengths.index(length) :]}:
                continue
            if not scalar(session, begin, length * LEASE):
                ends.setdefault(length, now)
        now += pause
        pass_time(session, pause * LEASE)
    assert ends.keys() == {*lengths}
    assert max(ends.values()) <= sum(lengths) * 1.5, ends


def test_what_a_dead_node_of_short_leases_held_waits_for_no_renewal_of_long_ones(
    nodes: tuple[Node, Node, Claim], patient: tuple[Node, Claim]
) -> None:
    _, other, short = nodes
    pass_time(other.session, LEASE * 0.5)
    other.renew()
    pass_time(other.session, LEASE * 0.6)
    assert [claim.command_id for claim in other.claim()] == [short.command_id]


def test_a_clock_that_is_set_back_turns_no_old_renewal_into_a_recent_one(
    nodes: tuple[Node, Node, Claim],
) -> None:
    """Set back by less than a lease, next to a node that has had nothing to renew."""
    owner, other, claim = nodes
    other.renew()
    pass_time(other.session, LEASE / 2)
    assert owner.renew(claim) == []
    set_clock(other.session, f"-{LEASE / 2 - 1} s")
    assert other.claim() == []
    assert owner.renew(claim) == []


@pytest.mark.parametrize("lease", [0.3, 90 * 86_400.0])
def test_a_wait_for_renewals_of_any_length_ends(dsn: str, lease: float) -> None:
    with CommandBus(dsn) as bus, connect(dsn) as session:
        node = Node(ClaimStatements("cmdbus", lease), session)
        node.statements.register(session, "tester")
        sent = bus.send("payments", "Debit")
        node.renew(*node.claim())
        pass_time(session, 1.1 * lease)
        assert node.claim() == []
        pass_time(session, 0.6 * lease)
        assert [claim.command_id for claim in node.claim()] == [sent]


def test_a_lease_that_is_longer_than_the_claimers_own_is_kept(dsn: str) -> None:
    with CommandBus(dsn) as bus, connect(dsn) as one, connect(dsn) as two:
        patient, hasty = (
            Node(ClaimStatements("cmdbus", 300.0), one),
            Node(ClaimStatements("cmdbus", LEASE), two),
        )
        for node in (patient, hasty):
            node.statements.register(node.session, "tester")
        bus.send("payments", "Debit")
        assert len(patient.claim()) == 1
        assert hasty.claim() == []


def test_a_renewal_waits_for_no_row_of_a_node_that_is_gone(
    dsn: str, nodes: tuple[Node, Node, Claim]
) -> None:
    """Of two nodes that stood still for long, each would wait for the other one's row."""
    owner, other, claim = nodes
    other.renew()
    with psycopg.connect(dsn) as holder:
        of_other = (other.statements.incarnation,)
        old = "UPDATE cmdbus.node SET renewed_at = renewed_at - interval '1 day' WHERE id = %s"
        owner.session.execute(old, of_other)
        holder.execute("SELECT FROM cmdbus.node WHERE id = %s FOR UPDATE", of_other)
        owner.session.execute("SET lock_timeout = '100ms'")
        assert owner.renew(claim) == []
        holder.rollback()
    owner.renew(claim)
    left = owner.session.execute("SELECT id FROM cmdbus.node").fetchall()
    assert left == [(owner.statements.incarnation,)]
