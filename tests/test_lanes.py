"""Commands that wait at a limit: places, order, rates, shared limits, and who claims them."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from claiming import Claimer, ended, want
from eventually import eventually
from handlers import SOON, handling, running
from queries import count, rows, scalar

from cmdbus import Command, CommandBus, Context, HandlerRegistry, SendRequest
from cmdbus.worker.claims.claim import ClaimScope, LaneRequest
from cmdbus.worker.pipeline.limited_types import LimitedTypes

pytestmark = pytest.mark.new_database

WITHIN_S = 20


def limit(connection: psycopg.Connection, name: str = "payments Debit", **values: Any) -> None:
    places = "".join(f", p_{column} => %({column})s" for column in values)
    query = f"SELECT cmdbus.set_limit(%(name)s, %(given)s, 'ann', 'test'{places})"
    given = {"name": name, "given": list(values), **values}
    assert connection.execute(query.encode(), given).fetchall() == [(None,)]


class Watched:
    """A handler that counts those of each key that run at once."""

    def __init__(self, holds: bool = False) -> None:
        self._lock = threading.Lock()
        self.running = Counter[object]()
        self.peaks = Counter[object]()
        self.begun: list[Any] = []
        self.may_end = threading.Event()
        if not holds:
            self.may_end.set()

    def __call__(self, command: Command, context: Context) -> None:
        key = command.data[0] if isinstance(command.data, list) else None
        with self._lock:
            self.begun.append(command.data)
            self.running[key] += 1
            self.peaks[key] = max(self.peaks[key], self.running[key])
        assert self.may_end.wait(WITHIN_S)
        with self._lock:
            self.running[key] -= 1


def debit(key: str | None = None, data: Any = None, **options: Any) -> SendRequest:
    return SendRequest("payments", "Debit", data if data is not None else [key], key=key, **options)


@contextmanager
def fleet_of_two(dsn: str, registry: HandlerRegistry) -> Iterator[None]:
    with running(dsn, registry, concurrency=4), running(dsn, registry, concurrency=4):
        yield


def nothing_waits(connection: psycopg.Connection) -> bool:
    return not any(count(connection, table) for table in ("ready", "limited", "scheduled"))


@pytest.mark.parametrize("sent", ["before the limit", "after it"])
def test_no_more_of_a_key_run_at_once_than_its_limit_lets(
    dsn: str, connection: psycopg.Connection, sent: str
) -> None:
    handler = Watched(holds=True)
    requests = [debit(key) for _ in range(20) for key in ("a", "b", None)]
    with CommandBus(dsn) as bus:
        if sent == "before the limit":
            bus.send_many(requests)
        limit(connection, concurrency=2)
        if sent == "after it":
            bus.send_many(requests)
        with fleet_of_two(dsn, handling(handler)):
            eventually(lambda: handler.running == {"a": 2, "b": 2, None: 2}, WITHIN_S)
            handler.may_end.set()
            eventually(lambda: nothing_waits(connection), WITHIN_S)
            # The latest may wait for a claim that follows, as another claim had locked the lane.
            eventually(lambda: count(connection, "turn") == 0, WITHIN_S)
    assert handler.peaks == {"a": 2, "b": 2, None: 2}


def test_a_full_key_keeps_no_other_one_from_running(
    dsn: str, connection: psycopg.Connection
) -> None:
    limit(connection, concurrency=1)
    held = Watched(holds=True)
    with CommandBus(dsn) as bus:
        bus.send_many([debit("a")] * 200)
        with running(dsn, handling(held), concurrency=4):
            eventually(lambda: held.running["a"] == 1, WITHIN_S)
            bus.send_many([debit("b"), debit("c")])
            eventually(lambda: held.running == {"a": 1, "b": 1, "c": 1}, WITHIN_S)
            held.may_end.set()


def test_an_ordered_key_runs_in_the_order_of_sending_also_after_retries(
    dsn: str, connection: psycopg.Connection
) -> None:
    limit(connection, ordered=True)
    failed, done = set[int](), list[int]()

    def fail_once(command: Command, context: Context) -> None:
        number = command.data
        if number % 3 == 0 and number not in failed:
            failed.add(number)
            raise RuntimeError("once")
        done.append(number)

    with CommandBus(dsn) as bus:
        for number in range(12):
            bus.send("payments", "Debit", number, key="a", priority=10 - number % 3)
        with fleet_of_two(dsn, handling(fail_once, retry=SOON)):
            eventually(lambda: len(done) == 12, WITHIN_S)
    assert done == [*range(12)]


@pytest.mark.parametrize(("on_trouble", "then"), [("block", [0]), ("skip", [0, 1, 2])])
def test_a_command_in_troubleshooting_holds_its_ordered_key_or_lets_it_go_on(
    dsn: str, connection: psycopg.Connection, on_trouble: str, then: list[int]
) -> None:
    limit(connection, ordered=True, on_trouble=on_trouble)
    begun = list[int]()

    def fail_first(command: Command, context: Context) -> None:
        begun.append(command.data)
        if command.data == 0 and begun.count(0) == 1:
            raise RuntimeError("broken")

    with CommandBus(dsn) as bus:
        ids = [
            bus.send("payments", "Debit", number, key="a", max_attempts=1) for number in range(3)
        ]
        with fleet_of_two(dsn, handling(fail_first)):
            eventually(lambda: count(connection, "troubleshooting") == 1, WITHIN_S)
            other = bus.send("payments", "Debit", 9, key="b")
            bus.wait("payments", other, timeout=WITHIN_S)
            eventually(lambda: [n for n in begun if n < 9] == then, WITHIN_S)
            bus.troubleshooting.retry("payments", ids[0], operator="ann", reason="mended")
            eventually(lambda: nothing_waits(connection), WITHIN_S)
    assert [n for n in begun if n < 9] == ([0, 0, 1, 2] if on_trouble == "block" else [0, 1, 2, 0])


def test_a_rate_lets_no_more_start_in_any_window(dsn: str, connection: psycopg.Connection) -> None:
    per_second, burst = 50.0, 5
    limit(connection, starts_per_second=per_second, burst=burst)
    handler = Watched()
    with CommandBus(dsn) as bus:
        bus.send_many([debit("a")] * 60)
        with fleet_of_two(dsn, handling(handler)):
            eventually(lambda: nothing_waits(connection), WITHIN_S)
    starts = [
        row[0].timestamp()
        for row in rows(dsn, "SELECT claimed_at FROM cmdbus.finished ORDER BY claimed_at")
    ]
    assert len(starts) == 60
    for first in range(60):
        for last in range(first, 60):
            allowed = burst + (starts[last] - starts[first]) * per_second
            assert last - first + 1 <= allowed * 1.01 + 0.001


def test_a_shared_limit_holds_for_its_types_together_and_none_of_them_starves(
    dsn: str, connection: psycopg.Connection
) -> None:
    connection.execute(
        """SELECT cmdbus.declare_limits('test', '[{
            "name": "stripe", "concurrency": 2, "covers": ["payments Debit", "payments Refund"]}]')
        """
    )
    handler = Watched(holds=True)
    registry = handling(handler)
    registry.register("payments", "Refund", handler)
    with CommandBus(dsn) as bus:
        bus.send_many(
            [
                SendRequest("payments", type, [None])
                for _ in range(15)
                for type in ("Debit", "Refund")
            ]
        )
        with fleet_of_two(dsn, registry):
            eventually(lambda: handler.running == {None: 2}, WITHIN_S)
            handler.may_end.set()
            eventually(lambda: nothing_waits(connection), WITHIN_S)
    assert handler.peaks == {None: 2}


def claimed_by(connection: psycopg.Connection, scope: ClaimScope) -> int:
    """The number of commands that a worker of this scope claims."""
    claimer = Claimer(connection, scope=scope)
    claimer.statements.types = ["payments Debit"]
    types = LimitedTypes(claimer.statements)
    assert types.must_be_read == (scope is ClaimScope.ORDINARY), "else it would never rest"
    if types.must_be_read:
        types.read(connection)
    limited, others = types.split(["payments Debit"])
    request = want(5, types=others)
    if limited:
        request = types.request(limited, [], request, 0.0)
    return len(claimer.settle_and_claim([], request))


@pytest.mark.parametrize(
    ("losses", "by_others", "in_quarantine"), [(0, 1, 0), (1, 1, 0), (2, 0, 1)]
)
def test_a_suspect_of_an_ordered_key_keeps_its_place_until_quarantine_claims_it(
    connection: psycopg.Connection, losses: int, by_others: int, in_quarantine: int
) -> None:
    """As it is due again after an attempt that has failed."""
    limit(connection, ordered=True)
    with CommandBus(connection.info.dsn) as bus:
        bus.send_many([debit("a"), debit("a")])
    connection.execute(
        """WITH first AS (
            DELETE FROM cmdbus.limited
            WHERE lane_position = (SELECT min(lane_position) FROM cmdbus.limited) RETURNING *
        ) INSERT INTO cmdbus.scheduled (due_at, domain, priority, type, data, key, command_id,
                                        correlation_id, losses, lane_position)
        SELECT clock_timestamp(), domain, priority, type, data, key, command_id,
            correlation_id, %s, lane_position
        FROM first""",
        (losses,),
    )
    connection.execute("SELECT cmdbus.promote(1, 1, '{}')")
    assert claimed_by(connection, ClaimScope.ORDINARY) == by_others
    assert claimed_by(connection, ClaimScope.SUSPECT) == in_quarantine
    assert claimed_by(connection, ClaimScope.ORDINARY) == 0


def test_empty_lanes_are_removed_and_others_stay(dsn: str, connection: psycopg.Connection) -> None:
    limit(connection, concurrency=1)
    held = Watched(holds=True)
    with CommandBus(dsn) as bus:
        bus.send_many([debit("a"), debit("b"), debit("b")])
        with running(dsn, handling(held), concurrency=4):
            eventually(lambda: held.running == {"a": 1, "b": 1}, WITHIN_S)
            assert scalar(connection, "SELECT cmdbus.retain_lanes(100)") == 1
            assert rows(dsn, "SELECT key FROM cmdbus.lane") == [("b",)]
            held.may_end.set()
            eventually(lambda: nothing_waits(connection), WITHIN_S)


def test_only_turns_of_types_without_a_limit_are_removed(
    dsn: str, connection: psycopg.Connection
) -> None:
    """As commands leave them that began before their limit was cleared."""
    limit(connection, "payments Refund", concurrency=1)
    connection.execute(
        """INSERT INTO cmdbus.turn (domain, type, key, priority)
        VALUES ('payments', 'Debit', '', 5), ('payments', 'Refund', '', 5)"""
    )
    connection.execute("SELECT cmdbus.retain_lanes(100)")
    assert rows(dsn, "SELECT type FROM cmdbus.turn") == [("Refund",)]


def test_a_suspect_runs_alone_once_it_has_its_place(
    dsn: str, connection: psycopg.Connection
) -> None:
    limit(connection, concurrency=1)
    with CommandBus(dsn) as bus:
        bus.send_many([debit("a"), debit("a")])
        ordinary, quarantine = (
            Claimer(connection, scope=scope) for scope in (ClaimScope.ORDINARY, ClaimScope.SUSPECT)
        )
        lanes = LaneRequest(["payments Debit"], [], [], 1, 0, {}, below=True)
        request = want(1, types=[], lanes=lanes)
        [running_] = ordinary.settle_and_claim([], request)
        # The second one, as if it waited for its third execution.
        connection.execute(
            """WITH gone AS (DELETE FROM cmdbus.limited RETURNING *)
            INSERT INTO cmdbus.ready (
                domain, type, priority, command_id, correlation_id, data, key, losses,
                lane_position)
            SELECT domain, type, priority, command_id, correlation_id, data, key, 2, lane_position
            FROM gone"""
        )
        assert ordinary.settle_and_claim([], request) == []
        assert quarantine.claim(1) == []
        assert ordinary.settle(ended(running_)) == []
        [suspect] = quarantine.claim(1)
        assert suspect.losses == 2


def test_one_thread_takes_of_lanes_and_of_other_types_by_turns(
    dsn: str, connection: psycopg.Connection
) -> None:
    limit(connection, concurrency=5)
    order = list[str]()

    def note(command: Command, context: Context) -> None:
        order.append(command.type)

    registry = HandlerRegistry()
    for type in ("Debit", "Noop"):
        registry.register("payments", type, note)
    with CommandBus(dsn) as bus, running(dsn, registry, concurrency=1):
        for type in ("Debit", "Noop", "Debit", "Debit", "Noop", "Noop"):
            id_ = bus.send("payments", type)
            bus.wait("payments", id_, timeout=WITHIN_S)
        bus.send_many([SendRequest("payments", type) for type in ("Debit", "Noop") * 10])
        eventually(lambda: nothing_waits(connection), WITHIN_S)
    assert Counter(order) == {"Debit": 13, "Noop": 13}


def test_what_was_claimed_before_its_worker_knew_of_the_limit_holds_places(
    connection: psycopg.Connection,
) -> None:
    with CommandBus(connection.info.dsn) as bus:
        bus.send_many([debit("a")] * 3)
    claimer = Claimer(connection)
    claimer.statements.types = ["payments Debit"]
    types = LimitedTypes(claimer.statements)
    types.read(connection)
    limit(connection, concurrency=2)
    assert len(claimer.claim(2)) == 2
    types.read(connection)
    assert claimed_by(connection, ClaimScope.ORDINARY) == 0
    assert count(connection, "limited") == 1


@pytest.mark.parametrize("name", ["payments Debit", "stripe"])
def test_a_rate_that_is_raised_lets_start_what_waited_for_the_slow_one(
    dsn: str, connection: psycopg.Connection, name: str
) -> None:
    connection.execute(
        """SELECT cmdbus.declare_limits('test', '[{
            "name": "stripe", "starts_per_second": 1000, "covers": ["payments Debit"]}]')
        """
    )
    limit(connection, name, starts_per_second=1e-5, burst=1)
    with CommandBus(dsn) as bus, running(dsn, handling(Watched()), concurrency=4):
        bus.send_many([debit("a")] * 5)
        eventually(lambda: count(connection, "finished") == 1, WITHIN_S)
        limit(connection, name, starts_per_second=50.0, burst=1)
        eventually(lambda: nothing_waits(connection), WITHIN_S)
