"""Which walks a search takes, how it merges them, and where the next page goes on; as values."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from cmdbus.producer.ids import new_id, time_of
from cmdbus.producer.search_cursors import Position, decode, digest, encode
from cmdbus.producer.search_walks import (
    KNOWN,
    MAX_ROWS,
    Conditions,
    QueueFacts,
    Walk,
    choose,
    first_count,
    latest,
    merged_count,
    positions_left,
    reached,
)

pytestmark = pytest.mark.new_database

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(minute: float, number: int = 0) -> Position:
    return Position(NOON + timedelta(minutes=minute), None, "payments", UUID(int=number), number)


def row(number: int, minute: float, is_match: bool = True) -> list[Any]:
    return [number, is_match, *at(minute, number)]


def walk(name: str, *minutes: float, count: int = 10) -> Walk:
    """One that has read these, and ends unless there are `count`."""
    made = Walk(name, None, count)
    made.feed([row(n, minute) for n, minute in enumerate(minutes, 1)], 0.1)
    return made


def order(walks: list[Walk]) -> list[tuple[str, float]]:
    taken = []
    while fed := latest(walks):
        taken.append((fed.table, (fed.take().created_at - NOON) / timedelta(minutes=1)))
    return taken


@pytest.mark.parametrize(
    ("conditions", "given", "chosen"),
    [
        (
            {},
            {},
            "ready.newest scheduled.ids limited.ids troubleshooting.newest finished.newest",
        ),
        (
            {},
            {"many_queues": True},
            "ready.ids scheduled.due limited.ids troubleshooting.newest finished.newest",
        ),
        (
            {"domain": "mail"},
            {"limited": False, "rare_domain": True},
            "ready.newest scheduled.ids troubleshooting.ids finished.ids",
        ),
        ({"status": "IN_PROGRESS"}, {}, "ready.claimed"),
        ({"status": "FAILED"}, {}, "finished.newest"),
        ({"status": "FAILED", "batch_id": UUID(int=1)}, {}, "finished.failed"),
        (
            {"batch_id": UUID(int=1), "key": "k", "domain": "mail"},
            {},
            "ready.batch scheduled.batch limited.batch troubleshooting.batch finished.completed "
            "finished.failed finished.canceled",
        ),
        (
            {"status": "PENDING", "key": "k", "domain": "mail"},
            {},
            "ready.key scheduled.key limited.key",
        ),
        ({"status": "PENDING", "key": "k"}, {}, "ready.newest scheduled.ids limited.ids"),
        ({"status": "COMPLETED"}, {"dated_correlation": True}, "finished.oldest"),
    ],
)
def test_conditions_choose_the_walks(
    conditions: dict[str, Any], given: dict[str, Any], chosen: str
) -> None:
    found = choose(Conditions(**conditions), QueueFacts(**given))
    assert found == chosen.split() and {*found} <= KNOWN


def test_the_latest_come_first_and_an_older_one_keeps_none_back() -> None:
    """A retry stands before commands that were sent after its own."""
    walks = [walk("ready.newest", 1, 9, 7), walk("finished.newest", 8, 5, 2)]
    assert order(walks) == [
        *(("ready", 1), ("ready", 9), ("finished", 8), ("ready", 7)),
        *(("finished", 5), ("finished", 2)),
    ]
    assert all(each.is_over for each in walks)


def test_a_walk_goes_on_after_what_was_taken_or_read_in_vain() -> None:
    made = Walk("finished.newest", None, 3)
    assert made.feed([row(1, 9), row(2, 8), row(3, 7, False)], 0.1) == 3
    made.take()
    assert made.position == at(9, 1) and not made.is_starving
    made.take()
    assert made.position == at(7, 3) and made.is_starving and not made.is_over
    assert made.feed([row(2, 6)], 0.1) == 2
    assert made.has_ended and made.take() == at(6, 2) and made.is_over
    assert Walk("ready.newest", None, 3).feed([], 0.1) == 0


def test_a_statement_reads_as_many_rows_as_it_has_time_for() -> None:
    made = Walk("finished.newest", None, 1000)
    made.feed([row(1000, 1, False)], 0.01)
    assert made.count == 4000
    made.feed([row(4000, 1, False)], 0.01)
    assert made.count == MAX_ROWS
    made.feed([row(MAX_ROWS, 1, False)], 1.0)
    assert made.count == MAX_ROWS // 4
    assert merged_count(100, 30) == 100 and merged_count(5000, 500) == 100
    assert first_count(Conditions(), 100) == 101
    assert first_count(Conditions(domain="mail", status="FAILED"), 7) == 8
    assert first_count(Conditions(type="Debit"), 7) == 500
    assert first_count(Conditions(type="Debit", text="x"), 100) == 50


def test_the_next_page_looks_for_what_has_finished_meanwhile() -> None:
    ended, ready = walk("finished.newest", 9), walk("ready.newest", 8, 7)
    taken = [ended.take(), ready.take()]
    left = positions_left([ended, ready], taken)
    assert left == {"ready.newest": taken[1], "finished.newest": taken[1]}
    ready.take()
    assert positions_left([ended, ready], taken) == {}


def test_a_search_has_reached_what_all_of_its_walks_have() -> None:
    one, two = walk("finished.newest", 9, 8, count=2), walk("ready.newest", 7, 5, count=2)
    assert reached([one, two]) is None, "nothing was taken"
    order([one, two])
    assert reached([one, two]) == at(8).created_at
    assert reached([one, walk("ready.claimed", 1, 2, count=2)]) is None
    assert reached([walk("ready.newest")]) is None


def test_a_cursor_keeps_the_positions() -> None:
    name = digest({"domain": "mail", "text": None})
    assert name == digest({"domain": "mail"}) != digest({"domain": "orders"})
    failed = at(1, 2)._replace(at=NOON)
    positions = {"ready.newest": at(3, 2**62), "finished.newest": failed, "limited.ids": None}
    assert decode(name, encode(name, positions), KNOWN) == positions
    for wrong in (encode(name, {"events": None}), encode("other", positions), encode(name, {})):
        with pytest.raises(ValueError, match="after must be"):
            decode(name, wrong, KNOWN)


def test_the_bus_knows_the_time_of_its_own_ids() -> None:
    made = time_of(new_id())
    assert made and abs(datetime.now(UTC) - made) < timedelta(minutes=1)
    assert time_of(uuid4()) is None
    assert time_of(UUID("ffffffff-ffff-8cb5-8000-000000000000")) is None
