"""How far ahead a worker claims, and from where, as values."""

from cmdbus.worker.floors import Floors
from cmdbus.worker.pace import Pace

KEY = ("payments", 5)


def test_a_type_is_quick_while_its_last_hundred_runs_were() -> None:
    pace = Pace()
    assert not pace.is_quick("payments", "Debit"), "nobody knows yet"
    pace.ran("payments", "Debit", 0.001)
    assert pace.is_quick("payments", "Debit")
    pace.ran("payments", "Debit", 0.05)
    for _ in range(100):
        assert not pace.is_quick("payments", "Debit")
        pace.ran("payments", "Debit", 0.049)
    assert pace.is_quick("payments", "Debit")
    assert not pace.is_quick("payments", "Other")


def test_a_claim_begins_where_the_one_before_found_something() -> None:
    floors = Floors()
    assert floors.for_claim(100.0) == {}
    assert floors.found({}, [(KEY, 7), (KEY, 5), (("orders", 0), 9)], full=True)
    assert floors.for_claim(100.5) == {KEY: 4, ("orders", 0): 8}


def test_once_a_second_a_claim_begins_at_zero_and_may_lower_a_floor() -> None:
    floors = Floors()
    floors.for_claim(100.0)
    floors.found({}, [(KEY, 50)], full=True)
    assert floors.for_claim(100.9) == {KEY: 49}
    assert floors.for_claim(101.0) == {}
    assert floors.found({}, [(KEY, 3)], full=True)
    assert floors.for_claim(101.5) == {KEY: 2}


def test_nothing_above_a_floor_is_nothing_only_after_a_look_from_zero() -> None:
    floors = Floors()
    floors.for_claim(100.0)
    floors.found({}, [(KEY, 50)], full=True)
    used = floors.for_claim(100.5)
    assert not floors.found(used, [], full=True)
    used = floors.for_claim(100.6)
    assert used == {}
    assert floors.found(used, [], full=True)


def test_after_a_claim_that_was_not_full_the_next_begins_at_zero() -> None:
    """It is likely to be the last before a rest: so its nothing is one at once."""
    floors = Floors()
    floors.for_claim(100.0)
    floors.found({}, [(KEY, 50)], full=True)
    assert floors.found(floors.for_claim(100.1), [(KEY, 60)], full=False)
    assert floors.for_claim(100.2) == {}
