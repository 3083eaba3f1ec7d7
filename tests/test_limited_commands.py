"""Commands that wait at a limit: they are found, counted, canceled and moved like all that wait."""

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import psycopg
import pytest
from cli import done, here
from handlers import await_drained, connect, found, handling, kinds, running
from queries import limit_by_hand, rows, scalar
from roles import role

from cmdbus import CommandBus, InvalidOperationError, QueueFullError, SendRequest, Status

pytestmark = pytest.mark.new_database

WHERE = """
    SELECT 'ready', lane_position IS NOT NULL FROM cmdbus.ready WHERE command_id = %(id)s
    UNION ALL SELECT 'scheduled', lane_position IS NOT NULL FROM cmdbus.scheduled
        WHERE command_id = %(id)s
    UNION ALL SELECT 'limited', true FROM cmdbus.limited WHERE command_id = %(id)s"""


def limited(dsn: str, bus: CommandBus, count: int = 1, **request: object) -> list[UUID]:
    """Commands of payments that wait at a limit."""
    requests = [SendRequest("payments", "Debit", **request)] * count  # type: ignore[arg-type]
    ids = bus.send_many(requests)
    limit_by_hand(dsn, *ids)
    return ids


def place(dsn: str, command_id: UUID) -> tuple[str, bool]:
    """Its table, and whether it has a position in a lane."""
    with psycopg.connect(dsn) as connection:
        [row] = connection.execute(WHERE, {"id": command_id}).fetchall()
    return row


def test_it_is_pending_and_found(dsn: str, bus: CommandBus) -> None:
    [id_] = limited(dsn, bus, key="a")
    record = found(bus, id_)
    assert (record.status, record.key, record.started_at) == (Status.PENDING, "a", None)
    assert [each.command_id for each in bus.query("payments", "PENDING", key="a")] == [id_]
    assert kinds(bus, id_) == ["SENT"]


def test_it_counts_by_itself_and_in_the_depth(dsn: str, bus: CommandBus) -> None:
    limited(dsn, bus, 2)
    bus.send("payments", "Debit")
    bus.send("payments", "Debit", delay=60)
    snapshot = bus.snapshot("payments")
    assert (snapshot["ready"], snapshot["scheduled"], snapshot["limited"]) == (1, 1, 2)
    assert snapshot["depth"] == 4
    [domain] = bus.domains("payments")
    assert (domain.types["Debit"].limited, domain.all.depth) == (2, 4)
    status = done(here("status", CMDBUS_DSN=dsn))
    head, row, *_ = [line.split() for line in status.splitlines()]
    assert head[:3] == ["READY", "LATER", "LIMITED"] and row[:4] == ["payments", "1", "1", "2"]
    shown = json.loads(done(here("status", "--json", CMDBUS_DSN=dsn)))["domains"]
    assert shown[0]["all"]["limited"] == 2
    with role(dsn, "monitor") as monitor:
        assert bus.domains(connection=monitor)[0].all.limited == 2


def test_the_depth_that_sends_are_refused_at_includes_it(dsn: str, bus: CommandBus) -> None:
    limited(dsn, bus, 2)
    bus.configure("payments", max_depth=3)
    bus.send("payments", "Debit")
    with pytest.raises(QueueFullError) as full:
        bus.send("payments", "Debit")
    assert full.value.depth == 3
    with pytest.raises(QueueFullError):
        bus.send_many([SendRequest("payments", "Debit")])


def test_one_without_a_handler_is_reported(dsn: str, bus: CommandBus) -> None:
    limited(dsn, bus)
    assert bus.domains("payments")[0].unhandled == []
    long_ago = datetime.now(UTC) - timedelta(minutes=2)
    rows(dsn, "UPDATE cmdbus.limited SET created_at = %s RETURNING 1", long_ago)
    assert bus.domains("payments")[0].unhandled == ["Debit"]
    assert bus.snapshot("payments")["oldest_age"] >= 120
    assert "payments/Debit waits for 2m" in done(here("status", CMDBUS_DSN=dsn))


def test_a_delay_takes_it_out_of_its_lane(dsn: str, bus: CommandBus) -> None:
    [id_] = limited(dsn, bus, key="a")
    bus.reschedule("payments", id_, delay=60)
    assert place(dsn, id_) == ("scheduled", False)
    assert kinds(bus, id_) == ["SENT", "RESCHEDULED"]
    bus.reschedule("payments", id_, delay=0)
    assert place(dsn, id_) == ("ready", False)


def test_one_that_has_begun_keeps_its_position_in_its_lane(dsn: str, bus: CommandBus) -> None:
    [id_] = limited(dsn, bus)
    rows(dsn, "UPDATE cmdbus.limited SET claimed_at = now() RETURNING 1")
    bus.reschedule("payments", id_, delay=60)
    assert place(dsn, id_) == ("scheduled", True)


def test_a_delay_gives_up_a_place_that_was_not_used(dsn: str, bus: CommandBus) -> None:
    """A claim that was released before its handler began."""
    id_ = bus.send("payments", "Debit", key="a")
    rows(dsn, "UPDATE cmdbus.ready SET lane_position = 7 RETURNING 1")
    bus.reschedule("payments", id_, delay=60)
    assert place(dsn, id_) == ("scheduled", False)
    assert rows(dsn, "SELECT domain, type, key FROM cmdbus.turn") == [("payments", "Debit", "a")]


@pytest.mark.parametrize("change", [{"priority": "high"}, {"delay": 0}], ids=["priority", "time"])
def test_another_priority_leaves_it_at_its_position(
    dsn: str, bus: CommandBus, change: dict[str, object]
) -> None:
    [id_] = limited(dsn, bus, key="a")
    position = "SELECT lane_position FROM cmdbus.limited"
    before = rows(dsn, position)
    bus.reschedule("payments", id_, **change)  # type: ignore[arg-type]
    assert rows(dsn, position) == before
    assert (found(bus, id_).priority, found(bus, id_).key) == (
        0 if "priority" in change else 5,
        "a",
    )


def test_a_purge_removes_it(dsn: str) -> None:
    with CommandBus(dsn, purge_allowed=True) as bus:
        limited(dsn, bus, 3)
        bus.send("payments", "Debit")
        assert bus.purge("payments") == 4
        assert bus.query("payments") == []


def test_a_row_that_cannot_be_moved_on_is_set_aside(dsn: str, bus: CommandBus) -> None:
    [id_] = limited(dsn, bus, key="a")
    with connect(dsn) as connection:
        query = """
            SELECT cmdbus.set_aside('limited', domain, priority, lane_position, token, command_id,
                                    claimer, 'NOT_CLAIMABLE', 'it is rejected')
            FROM cmdbus.limited"""
        assert scalar(connection, query)
        assert connection.execute(query.encode()).fetchall() == []
    [trouble] = bus.troubleshooting.list()
    assert (trouble.command_id, trouble.key, trouble.reason) == (id_, "a", "NOT_CLAIMABLE")


def test_a_sequence_behind_its_positions_is_found(dsn: str, bus: CommandBus) -> None:
    limited(dsn, bus, 2)
    from cmdbus.database.statements import statement

    with connect(dsn) as connection:
        behind = statement("read_sequences", "cmdbus")
        assert connection.execute(behind).fetchall() == []
        connection.execute("SELECT setval('cmdbus.ready_id_seq', 1)")
        assert connection.execute(behind).fetchall() == [
            ("limited", "lane_position", "ready_id_seq")
        ]


def test_each_command_ends_once_whatever_is_canceled_and_rescheduled(
    dsn: str, bus: CommandBus
) -> None:
    """While workers take commands out of their lanes and put others into them."""
    pause = partial(time.sleep, 0.002)
    registry = handling(lambda command, context: pause(), concurrency=1)
    requests = [
        SendRequest("payments", "Debit", n, key=f"k{n % 5}", delay=n % 3 * 0.1) for n in range(150)
    ]
    ids = bus.send_many(requests)
    canceled = Counter[str]()

    def cancel() -> None:
        for id_ in ids[::4]:
            with suppress(InvalidOperationError):
                bus.cancel("payments", id_)
                canceled["one"] += 1
            pause()

    def cancel_key() -> None:
        for _ in range(3):
            canceled["key"] += bus.cancel_all("payments", key="k0")

    def reschedule() -> None:
        for n, id_ in enumerate(ids[1::3]):
            change: dict[str, object] = {"delay": 0.05} if n % 2 else {"priority": n % 10}
            with suppress(InvalidOperationError):
                bus.reschedule("payments", id_, **change)  # type: ignore[arg-type]
            pause()

    with running(dsn, registry), running(dsn, registry):
        with ThreadPoolExecutor() as pool:
            for done_ in [pool.submit(call) for call in (cancel, cancel_key, reschedule)]:
                done_.result()
        await_drained(bus)
    ended = Counter(found(bus, id_).status for id_ in ids)
    assert ended == {"CANCELED": canceled.total(), "COMPLETED": len(ids) - canceled.total()}
    assert rows(dsn, "SELECT count(*) FROM cmdbus.command") == [(len(ids),)]
