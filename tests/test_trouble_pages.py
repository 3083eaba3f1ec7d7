"""Pages and groups of the commands that wait for an operator."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg
import pytest
from handlers import connect
from queries import move_to_troubleshooting
from roles import role

from cmdbus import CommandBus, SendRequest
from cmdbus.errors import MissingRightError
from cmdbus.producer import trouble_reading

pytestmark = pytest.mark.new_database

FILL = """
INSERT INTO cmdbus.troubleshooting (token, created_at, command_id, correlation_id, priority,
    attempts, losses, domain, type, data, error_code, error_message, failed_at)
SELECT 7, now(), gen_random_uuid(), gen_random_uuid(), 5, 3, 0, 'payments',
    'Type' || n %% 7, to_json(repeat('x', 100)), 'CODE' || n %% 5, 'message ' || n,
    now() - n * interval '1 ms'
FROM generate_series(1, %s) n"""


def send(bus: CommandBus, dsn: str, count: int, type_: str = "Debit", code: str = "GONE") -> None:
    bus.send_many([SendRequest("payments", type_, {"n": n}) for n in range(count)])
    assert move_to_troubleshooting(dsn, code, f"it is {code}") == count


def test_pages_show_each_command_once_although_others_come_and_go(
    dsn: str, bus: CommandBus
) -> None:
    """Also where many came at the same moment."""
    send(bus, dsn, 25)
    with connect(dsn) as connection:
        connection.execute(
            "UPDATE cmdbus.troubleshooting"
            " SET failed_at = date_trunc('minute', now()) - interval '2 minutes'"
            " WHERE (data ->> 'n')::int < 15"
        )
    queue = bus.troubleshooting
    expected = [record.command_id for record in queue.list("payments")]
    seen: list[UUID] = []
    after = None
    for _ in range(9):
        page = queue.page("payments", limit=3, after=after)
        seen += [record.command_id for record in page.commands]
        queue.cancel("payments", page.commands[-1].command_id, operator="ann")
        send(bus, dsn, 1, "Later")
        after = page.next
        if after is None:
            break
    assert seen == expected


def test_a_page_is_of_those_that_meet_every_condition(dsn: str, bus: CommandBus) -> None:
    send(bus, dsn, 2)
    boundary = datetime.now(UTC)
    send(bus, dsn, 3, "Credit", "BUSY")
    page = bus.troubleshooting.page
    assert [len(page(type=each).commands) for each in ("Debit", "Credit", "Other")] == [2, 3, 0]
    assert len(page("payments", error_code="BUSY", since=boundary).commands) == 3
    assert len(page(until=boundary).commands) == 2
    assert page(limit=5).next is None and page(limit=4).next is not None
    assert [record.data for record in page("payments", "Debit").commands] == [{"n": 1}, {"n": 0}]
    assert {record.data for record in page(with_data=False).commands} == {None}


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "2026-01-01T00:00:00 payments 01a1ef5a-0994-8c8f-a75a-06db62dbaa94",
        "2026-01-01T00:00:00Z pay'ments 01a1ef5a-0994-8c8f-a75a-06db62dbaa94",
        "2026-01-01T00:00:00Z payments 7",
        "infinity payments 01a1ef5a-0994-8c8f-a75a-06db62dbaa94",
        "\0",
        7,
    ],
)
def test_a_cursor_that_no_page_gave_is_refused_with_a_sentence(cursor: str) -> None:
    bus = CommandBus("host=nowhere.invalid")
    with pytest.raises(ValueError, match="after must be the next of a page"):
        bus.troubleshooting.page(after=cursor)


def test_groups_are_by_error_and_type_the_latest_first_with_a_message(
    dsn: str, bus: CommandBus
) -> None:
    send(bus, dsn, 3)
    send(bus, dsn, 1, code="BUSY")
    send(bus, dsn, 2, "Credit")
    found = bus.troubleshooting.groups()
    assert [(g.type, g.error_code, g.count, g.error_message) for g in found.groups] == [
        ("Credit", "GONE", 2, "it is GONE"),
        ("Debit", "BUSY", 1, "it is BUSY"),
        ("Debit", "GONE", 3, "it is GONE"),
    ]
    assert found.complete
    first = found.groups[0]
    [newest, oldest] = bus.troubleshooting.list(type="Credit")
    assert (first.command_id, first.last_failed_at) == (newest.command_id, newest.failed_at)
    assert first.first_failed_at == oldest.failed_at
    assert [g.count for g in bus.troubleshooting.groups(error_code="BUSY").groups] == [1]
    assert bus.troubleshooting.groups("orders").groups == []
    some = bus.troubleshooting.groups(limit=2)
    assert (some.groups, some.complete) == (found.groups[:2], False)


def test_groups_count_the_latest_commands_of_a_long_queue(
    bus: CommandBus, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.execute(FILL, (1000,))
    monkeypatch.setattr(trouble_reading, "MAX_GROUPED", 350)
    found = bus.troubleshooting.groups()
    assert ([g.count for g in found.groups], found.complete) == ([10] * 35, False)


def test_a_page_deep_in_a_long_queue_is_found_by_the_index(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    """Whatever the statistics are, and with a plan that is kept."""
    connection.execute(FILL, (20_000,))
    after = f"{(datetime.now(UTC) - timedelta(seconds=15)).isoformat()} payments {UUID(int=0)}"
    read = (
        "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables"
        " WHERE relname = 'troubleshooting'"
    )
    with connection.transaction():
        for _ in range(8):
            before = (connection.execute(read).fetchone() or (0,))[0]
            page = bus.troubleshooting.page(limit=10, after=after, connection=connection)
            after = page.next or ""
            assert (connection.execute(read).fetchone() or (0,))[0] - before < 100


def test_a_monitor_is_refused_what_holds_messages(dsn: str, bus: CommandBus) -> None:
    with role(dsn, "monitor") as monitor:
        queue = bus.troubleshooting
        assert queue.summary(connection=monitor) == []
        for call in (queue.groups, queue.page):
            with pytest.raises(MissingRightError, match="--operator"):
                call(connection=monitor)
    with role(dsn, "operator") as operator:
        assert queue.groups(connection=operator).groups == []
        assert queue.page(connection=operator).commands == []
