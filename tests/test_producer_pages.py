"""Pages of batches and processes, and the latest of their audit trails."""

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import chain
from uuid import UUID, uuid4

import psycopg
import pytest
from batches import DEBIT
from queries import NOWHERE
from roles import role
from test_breaker_states import STRIPE
from test_breaker_states import declare as declare_breakers
from trips import await_end, booked, traveling

from cmdbus import CommandBus, InvalidOperationError
from cmdbus.errors import MissingRightError


def all_pages(page: Callable[[str | None], tuple[list[UUID], str | None]]) -> list[list[UUID]]:
    found = []
    after = None
    for _ in range(20):
        ids, after = page(after)
        found.append(ids)
        if after is None:
            break
    return found


def test_pages_of_batches_go_on_where_others_come(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    """Also where many were created at the same moment."""
    ids = [bus.create_batch("payments", [DEBIT], name=f"n{n % 2}", data=n) for n in range(7)]
    connection.execute("UPDATE cmdbus.batch_state SET created_at = now() WHERE name = 'n0'")
    expected = [batch.batch_id for batch in bus.list_batches()]

    def page(after: str | None) -> tuple[list[UUID], str | None]:
        found = bus.page_batches(limit=3, after=after)
        bus.create_batch("payments", [DEBIT])
        return [batch.batch_id for batch in found.batches], found.next

    pages = all_pages(page)
    assert [len(each) for each in pages] == [3, 3, 1] and [*chain(*pages)] == expected
    assert {*expected} == {*ids}
    [one] = bus.page_batches(batch_id=ids[3]).batches
    assert (one.batch_id, one.name, one.data, one.remaining) == (ids[3], "n1", None, 1)
    assert len(bus.page_batches("PENDING", "n1", domain="payments").batches) == 3
    assert bus.page_batches(domain="orders").batches == []
    assert bus.page_batches(since=datetime.now(UTC)).batches == []


def test_pages_of_processes_go_on_where_others_come(bus: CommandBus) -> None:
    ids = [booked(bus) for _ in range(7)]

    def page(after: str | None) -> tuple[list[UUID], str | None]:
        found = bus.page_processes(limit=3, after=after)
        booked(bus)
        return [process.process_id for process in found.processes], found.next

    pages = all_pages(page)
    assert [len(each) for each in pages] == [3, 3, 1] and [*chain(*pages)] == ids[::-1]
    [one] = bus.page_processes(process_id=ids[3]).processes
    assert (one.process_id, one.state, one.status) == (ids[3], None, "PENDING")
    assert len(bus.page_processes("Booking", "PENDING", domain="trips", limit=5).processes) == 5
    assert bus.page_processes(batch_id=uuid4()).processes == []


@pytest.mark.parametrize("after", ["", "x", "2026-01-01 x", f"2026-01-01T00:00:00 {uuid4()}"])
def test_a_page_begins_only_behind_one(after: str) -> None:
    with CommandBus(NOWHERE) as bus:
        for page in (bus.page_batches, bus.page_processes):
            with pytest.raises(ValueError, match="after must be the next of a page, not"):
                page(after=after)


def test_monitors_page_without_what_they_cannot_read(dsn: str, bus: CommandBus) -> None:
    bus.create_batch("payments", [DEBIT], name="march")
    booked(bus)
    with role(dsn, "monitor") as monitor:
        [batch] = bus.page_batches(for_monitors=True, connection=monitor).batches
        [process] = bus.page_processes(for_monitors=True, connection=monitor).processes
        assert (batch.name, batch.total, process.error, process.type) == (None, 1, None, "Booking")
        with pytest.raises(MissingRightError, match="--operator"):
            bus.page_batches(connection=monitor)
        with pytest.raises(MissingRightError, match="--operator"):
            bus.page_processes(connection=monitor)
    with pytest.raises(InvalidOperationError, match="cannot read names of batches"):
        bus.page_batches(name="march", for_monitors=True)


def test_the_latest_of_what_happened_is_read(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    for number in (3, 2, 1):
        bus.configure("payments", max_depth=number)
    latest = bus.domain_audit("payments", latest=2)
    assert [event.details["after"]["max_depth"] for event in latest] == [2, 1]
    with traveling(dsn, bus) as process_id:
        await_end(bus, process_id)
    steps, events = bus.process_steps(process_id), bus.process_audit(process_id)
    assert len(steps) == 3 and bus.process_steps(process_id, latest=2) == steps[1:]
    assert len(events) == 8 and bus.process_audit(process_id, latest=3) == events[-3:]
    declare_breakers(connection, "shop", STRIPE, {**STRIPE, "name": "smtp"})
    for _ in range(3):
        bus.breakers.open("stripe", operator="ann")
        bus.breakers.close("stripe", operator="ann")
    audits = bus.breakers.audits(2)
    assert [*audits] == ["stripe"] and audits["stripe"] == bus.breakers.audit("stripe")[-2:]
    for call in (
        lambda: bus.domain_audit("payments", latest=0),
        lambda: bus.process_audit(process_id, latest=0),
        lambda: bus.breakers.audits(1001),
    ):
        with pytest.raises(ValueError, match="latest must be a whole number from 1 to"):
            call()
