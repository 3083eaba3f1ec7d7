"""What one claim takes of lanes, and what it leaves to the next ones."""

from collections.abc import Iterator

import psycopg
import pytest
from lane_claimer import LaneClaimer, Limit, declare

from cmdbus.worker.claims.claim import ClaimPart, results_of

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
) -> None:
    connection.execute(
        "SELECT cmdbus.send(%s, %s, p_key => %s, p_priority => %s)",
        (*name.split(" "), key, priority),
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
