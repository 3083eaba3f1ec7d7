"""The flag, the trigger and the writers' barrier: an armed node is notified of every send.

Each test is a race that lost a wake-up in an earlier protocol, held open by hand.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial

import psycopg
import pytest
from eventually import eventually
from handlers import claim, connect
from queries import scalar
from senders import race

from cmdbus import CommandBus, SendRequest
from cmdbus.database.schema import install
from cmdbus.worker.claims.claim_statements import ClaimStatements

pytestmark = pytest.mark.new_database

HOUR = timedelta(hours=1)


def arm(
    connection: psycopg.Connection,
    *domains: str,
    node: int = 1,
    reads_at: datetime | None = None,
    lasts: timedelta = HOUR,
) -> bool:
    reads_at = reads_at or datetime.now(UTC) + HOUR
    query = "SELECT cmdbus.arm(%s, %s, %s, %s)"
    return bool(scalar(connection, query, node, list(domains), reads_at, lasts))


@contextmanager
def listening(dsn: str, schema: str = "cmdbus") -> Iterator[psycopg.Connection]:
    with connect(dsn) as connection:
        connection.execute(f"LISTEN {schema}_ready; LISTEN {schema}_due".encode())
        yield connection


def heard(connection: psycopg.Connection) -> list[tuple[str, str]]:
    """What has arrived; a NOTIFY of its own marks the end, for they keep their order."""
    with psycopg.connect(connection.info.dsn, autocommit=True) as other:
        other.execute("NOTIFY cmdbus_ready, 'end'")
    found: list[tuple[str, str]] = []
    for notify in connection.notifies(timeout=10):
        if notify.payload == "end":
            return found
        found.append((notify.channel, notify.payload))
    raise AssertionError("the mark never came")


def test_no_notification_is_sent_while_no_worker_waits(dsn: str) -> None:
    with CommandBus(dsn) as bus, listening(dsn) as listener:
        bus.send("payments", "Debit")
        bus.send("payments", "Debit", delay=60)
        assert heard(listener) == []


def test_a_thousand_commands_in_one_transaction_are_one_notification(dsn: str) -> None:
    """It carries no data."""
    with CommandBus(dsn) as bus, listening(dsn) as listener, connect(dsn) as steward:
        arm(steward, "payments")
        bus.send_many([SendRequest("payments", "Debit", {"secret": 1})] * 1000)
        assert heard(listener) == [("cmdbus_ready", "payments")]
        bus.send("payments", "Debit")
        steward.execute("SELECT cmdbus.send('payments', 'Debit')")
        with psycopg.connect(dsn) as sender:
            for _ in range(3):
                bus.send("payments", "Debit", connection=sender)
        assert heard(listener) == [("cmdbus_ready", "payments")] * 3


def test_only_domains_for_which_a_worker_waits_are_notified(dsn: str) -> None:
    with CommandBus(dsn) as bus, listening(dsn) as listener, connect(dsn) as steward:
        arm(steward, "payments", "orders")
        bus.send_many([SendRequest(d, "T") for d in ("payments", "orders", "payments", "mail")])
        assert sorted(payload for _, payload in heard(listener)) == ["orders", "payments"]
        arm(steward)
        bus.send("payments", "T")
        assert heard(listener) == []


def test_without_a_time_no_node_is_notified_of_a_timer(dsn: str) -> None:
    with listening(dsn) as listener, connect(dsn) as steward:
        # An alarm in the past: any time may be the earliest.
        steward.execute("SELECT setval('cmdbus.alarm', 1)")
        steward.execute("SELECT cmdbus.wake_at(NULL)")
        assert heard(listener) == []
        steward.execute("SELECT cmdbus.wake_at(clock_timestamp() + interval '1 h')")
        assert [channel for channel, _ in heard(listener)] == ["cmdbus_due"]


def test_a_rolled_back_send_notifies_no_worker(dsn: str) -> None:
    with CommandBus(dsn) as bus, listening(dsn) as listener, connect(dsn) as steward:
        arm(steward, "payments")
        with psycopg.connect(dsn) as sender:
            bus.send("payments", "Debit", connection=sender)
            sender.rollback()
        assert heard(listener) == []


@pytest.mark.parametrize("isolation", list(psycopg.IsolationLevel), ids=lambda level: level.name)
def test_a_sender_whose_snapshot_is_older_than_the_arming_notifies(
    dsn: str, isolation: psycopg.IsolationLevel
) -> None:
    with CommandBus(dsn) as bus, listening(dsn) as listener, connect(dsn) as steward:
        with psycopg.connect(dsn) as sender:
            sender.isolation_level = isolation
            sender.execute("SELECT count(*) FROM cmdbus.ready")
            arm(steward, "payments")
            bus.send("payments", "Debit", connection=sender)
        assert heard(listener) == [("cmdbus_ready", "payments")]


def test_a_sender_that_saw_the_flag_down_is_among_the_writers_until_it_ends(dsn: str) -> None:
    with CommandBus(dsn) as bus, listening(dsn) as listener, connect(dsn) as steward:
        assert scalar(steward, "SELECT cmdbus.writers()") == []
        with psycopg.connect(dsn) as sender, psycopg.connect(dsn) as later:
            bus.send("payments", "Debit", connection=sender)
            bus.send("payments", "Debit", delay=60, connection=later)
            assert arm(steward, "payments")
            writers = scalar(steward, "SELECT cmdbus.writers()")
            assert len(writers) == 2
            sender.commit()
            later.commit()
            assert not set(writers) & set(scalar(steward, "SELECT cmdbus.writers()"))
            assert scalar(steward, "SELECT count(*) FROM cmdbus.ready") == 1
        assert heard(listener) == []


def test_a_session_that_only_reads_or_writes_elsewhere_is_no_writer(dsn: str) -> None:
    with connect(dsn) as steward, psycopg.connect(dsn) as other:
        other.execute("SELECT * FROM cmdbus.ready")
        other.execute("CREATE TABLE elsewhere (a int); INSERT INTO elsewhere VALUES (1)")
        assert scalar(steward, "SELECT cmdbus.writers()") == []
        other.rollback()


def test_an_arming_that_ran_out_is_a_fresh_one(dsn: str) -> None:
    with connect(dsn) as steward:
        assert arm(steward, "payments")
        assert not arm(steward, "payments")
        assert arm(steward, "payments", "orders"), "another domain's sender saw no flag"
        assert not arm(steward, "payments")
        arm(steward, "payments", lasts=timedelta(seconds=-1))
        assert arm(steward, "payments")
        arm(steward)
        assert arm(steward, "payments")


def test_the_flag_is_that_of_all_nodes_that_live(dsn: str) -> None:
    with connect(dsn) as steward:
        arm(steward, "payments", node=1)
        arm(steward, "orders", node=2)
        assert flag(steward) == bits(steward, "payments", "orders")
        arm(steward, node=2)
        assert flag(steward) == bits(steward, "payments")
        arm(steward, "payments", node=1, lasts=timedelta(seconds=-1))
        assert arm(steward, "mail", node=3)
        assert flag(steward) == bits(steward, "mail")


def flag(connection: psycopg.Connection) -> int:
    return int(scalar(connection, "SELECT last_value FROM cmdbus.armed"))


def bits(connection: psycopg.Connection, *domains: str) -> int:
    query = "SELECT bit_or(cmdbus.domain_bit(d)) FROM unnest(%s::text[]) d"
    return int(scalar(connection, query, list(domains)))


def test_nodes_that_arm_and_disarm_at_once_leave_the_right_flag(dsn: str) -> None:
    nodes = {node: f"domain{node}" for node in range(1, 9)}

    def run(node: int, domain: str) -> None:
        with connect(dsn) as steward:
            for _ in range(50):
                arm(steward, domain, node=node)
                assert flag(steward) & bits(steward, domain)
                if node % 2:
                    arm(steward, node=node)

    assert race([partial(run, *item) for item in nodes.items()]) == [None] * len(nodes)
    with connect(dsn) as steward:
        even = [domain for node, domain in nodes.items() if node % 2 == 0]
        assert flag(steward) == bits(steward, *even)


def test_two_phase_senders_switch_the_notification_off(dsn: str) -> None:
    with CommandBus(dsn) as bus, listening(dsn) as listener, connect(dsn) as steward:
        soon = datetime.now(UTC) + HOUR
        arm(steward, "payments", reads_at=soon)
        with psycopg.connect(dsn) as sender:
            sender.execute("SET LOCAL cmdbus.notify = off")
            bus.send("payments", "Debit", connection=sender)
            bus.send("payments", "Debit", delay=1, connection=sender)
        assert heard(listener) == []
        bus.send("payments", "Debit")
        assert heard(listener) == [("cmdbus_ready", "payments")]


def test_a_session_in_which_triggers_are_off_notifies_all_the_same(dsn: str) -> None:
    """One that restores or replicates rows."""
    with CommandBus(dsn) as bus, listening(dsn) as listener, connect(dsn) as steward:
        arm(steward, "payments")
        with psycopg.connect(dsn) as sender:
            sender.execute("SET session_replication_role = replica")
            bus.send("payments", "Debit", connection=sender)
            bus.send("payments", "Debit", delay=1, connection=sender)
        assert [channel for channel, _ in heard(listener)] == ["cmdbus_ready", "cmdbus_due"]


def test_a_command_due_before_the_next_look_is_notified_even_while_all_are_busy(dsn: str) -> None:
    with CommandBus(dsn) as bus, listening(dsn) as listener, connect(dsn) as steward:
        arm(steward, reads_at=datetime.now(UTC) + timedelta(minutes=30))
        bus.send("payments", "Debit", delay=HOUR)
        assert heard(listener) == []
        at = datetime.now(UTC) + timedelta(minutes=10)
        bus.send("payments", "Debit", run_at=at)
        bus.send_many([SendRequest("payments", "D", delay=d) for d in (HOUR, 600, 1200)])
        notifications = heard(listener)
        assert [channel for channel, _ in notifications] == ["cmdbus_due"] * 2
        assert int(notifications[0][1]) == int(at.timestamp() * 1000)
        assert abs(int(notifications[1][1]) - at.timestamp() * 1000) < 5000


def test_with_several_nodes_the_earliest_look_counts(dsn: str) -> None:
    now = datetime.now(UTC)
    with CommandBus(dsn) as bus, listening(dsn) as listener, connect(dsn) as steward:
        arm(steward, node=1, reads_at=now + HOUR)
        arm(steward, node=2, reads_at=now + timedelta(minutes=5))
        bus.send("payments", "Debit", delay=600)
        assert heard(listener) == []
        arm(steward, node=2, reads_at=now, lasts=timedelta(seconds=-1))
        arm(steward, node=1, reads_at=now + HOUR)
        bus.send("payments", "Debit", delay=600)
        assert len(heard(listener)) == 1


def test_the_look_of_a_node_that_is_gone_hides_nothing_from_the_others(dsn: str) -> None:
    """Its look is over: what is due before the next look of another node is notified."""
    now = datetime.now(UTC)
    with CommandBus(dsn) as bus, listening(dsn) as listener, connect(dsn) as steward:
        arm(steward, node=1, reads_at=now + HOUR)
        arm(steward, node=2, reads_at=now + timedelta(milliseconds=50))
        steward.execute("SELECT pg_sleep_until(%s)", (now + timedelta(milliseconds=60),))
        bus.send("payments", "Debit", delay=600)
        assert len(heard(listener)) == 1, "its alarm has passed, and no other is set"
        arm(steward, node=3, reads_at=now + HOUR)
        bus.send("payments", "Debit", delay=600)
        assert len(heard(listener)) == 1, "the others' alarm counts"
        arm(steward, node=3, reads_at=now + timedelta(minutes=5))
        steward.execute("SELECT cmdbus.leave(3)")
        bus.send("payments", "Debit", delay=600)
        assert len(heard(listener)) == 1, "a node that leaves takes its alarm along"
        for node in (1, 2, 3):
            steward.execute("SELECT cmdbus.leave(%s)", (node,))
        bus.send("payments", "Debit", delay=600)
        assert heard(listener) == [], "no node has an alarm"


def test_resuming_a_domain_wakes_the_workers_that_wait_for_it(dsn: str) -> None:
    with CommandBus(dsn) as bus, listening(dsn) as listener, connect(dsn) as steward:
        arm(steward, "payments")
        bus.pause("payments")
        assert heard(listener) == []
        bus.resume("payments")
        assert heard(listener) == [("cmdbus_ready", "payments")]


def test_two_schemas_do_not_wake_each_other(dsn: str) -> None:
    schema = "s" * 48
    install(dsn, schema)
    with (
        CommandBus(dsn, schema=schema) as bus,
        listening(dsn) as listener,
        listening(dsn, schema) as other_listener,
        connect(dsn) as steward,
    ):
        steward.execute(f"SELECT {schema}.arm(1, ARRAY['payments'], now(), '1 hour')".encode())
        bus.send("payments", "Debit")
        assert heard(listener) == []
        [notify] = list(other_listener.notifies(timeout=10, stop_after=1))
        assert (notify.channel, notify.payload) == (f"{schema}_ready", "payments")


def test_arming_waits_for_no_sender(dsn: str) -> None:
    with CommandBus(dsn) as bus, psycopg.connect(dsn) as sender, connect(dsn) as steward:
        bus.send("payments", "Debit", connection=sender)
        steward.execute("SET lock_timeout = '100ms'")
        arm(steward, "payments")
        bus.send("payments", "Debit", connection=sender)
        arm(steward)
        eventually(lambda: scalar(steward, "SELECT last_value FROM cmdbus.armed") == 0)


def test_a_released_claim_wakes_the_workers_that_wait_for_it(dsn: str) -> None:
    """No row arrives then."""
    with CommandBus(dsn) as bus, listening(dsn) as listener, connect(dsn) as worker:
        statements = ClaimStatements("cmdbus", 30)
        statements.register(worker, "tester")
        bus.send("payments", "Debit")
        claimed = claim(statements, worker)
        arm(worker, "payments", node=99)
        assert heard(listener) == []
        statements.release(worker, claimed)
        assert heard(listener) == [("cmdbus_ready", "payments")]


def test_a_sender_reads_no_row_of_those_who_wait(dsn: str) -> None:
    """Their dead versions, which a long report keeps, would slow every sender."""
    looks = (
        "SELECT coalesce(sum(seq_scan + coalesce(idx_scan, 0)), 0)"
        " FROM pg_stat_xact_user_tables WHERE relname = 'waiter'"
    )
    with CommandBus(dsn) as bus, connect(dsn) as steward, psycopg.connect(dsn) as sender:
        arm(steward, "payments")
        bus.send("payments", "Debit", connection=sender)
        bus.send("payments", "Debit", delay=1, connection=sender)
        assert scalar(sender, looks) == 0
        scalar(sender, "SELECT count(*) FROM cmdbus.waiter")
        assert scalar(sender, looks) > 0
