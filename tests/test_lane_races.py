"""Sessions that send, claim, settle and cancel in the same lanes, in random orders."""

import pytest
from lane_claimer import Limit
from lane_world import LaneWorld

ALL = ["payments Debit", "payments Ship", "orders Ship"]
SHARED = Limit("stripe", concurrency=2, covers=("payments Debit", "orders Ship"))
WORLDS = {
    "places": [Limit("payments Debit", concurrency=2)],
    "order": [Limit("payments Debit", ordered=True)],
    "skip": [Limit("payments Debit", ordered=True, on_trouble="skip")],
    "shared": [SHARED],
    "per node": [SHARED._replace(per_node=True)],
    "both": [SHARED, Limit("payments Debit", concurrency=1), Limit("orders Ship", ordered=True)],
    "rate": [Limit("payments Debit", starts_per_second=200, burst=2)],
    "shared rate": [Limit("api", starts_per_second=300, burst=3, covers=("payments",))],
}
WEIGHTS = {
    "send": 4,
    "claim": 6,
    "settle": 4,
    "promote": 1,
    "claim_suspect": 1,
    "cancel": 2,
    "retry_trouble": 1,
    "pause": 1,
    "expire": 1,
}
WORKERS = [ALL, ["payments Debit"], ["orders Ship", "payments Ship"]]


def play(dsn: str, name: str, seed: int, steps: int) -> None:
    world = LaneWorld(dsn, seed, WORLDS[name], WORKERS)
    try:
        world.run(steps, **WEIGHTS, **({} if "rate" in name else {"change": 1, "toggle": 1}))
    finally:
        world.close()


@pytest.mark.parametrize("name", WORLDS)
def test_limits_hold_and_nothing_is_stuck_in_any_order_of_events(dsn: str, name: str) -> None:
    play(dsn, name, seed=1, steps=50)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 130))
@pytest.mark.parametrize("name", WORLDS)
def test_limits_hold_in_many_orders_of_events(dsn: str, name: str, seed: int) -> None:
    play(dsn, name, seed, steps=100)
