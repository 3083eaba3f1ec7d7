"""What the live feed reads when, and what it sends, as values."""

import json
from math import inf

import pytest

from cmdbus.web.feed_state import (
    AWAY_SECONDS,
    FAILED_SECONDS,
    MAX_PATHS,
    POLLED_SECONDS,
    SECONDS,
    SHARE,
    STALLED_SECONDS,
    Event,
    FeedState,
    Outbox,
    failed_event,
    pause,
    view_event,
)


def read(state: FeedState, path: str, text: str, now: float, took: float = 0.001) -> list[str]:
    return [event.name for event in state.read(path, text, took=took, now=now, at="noon")]


def test_an_event_is_one_line_of_json() -> None:
    chunk = view_event('a?b="c"', '{"x":1}', "noon").chunk
    head, data, *rest = chunk.decode().split("\n")
    assert (head, rest) == ("event: view", ["", ""])
    assert json.loads(data.removeprefix("data: ")) == {
        "view": 'a?b="c"',
        "at": "noon",
        "value": {"x": 1},
    }
    assert b"\\n" in failed_event("a", "one\ntwo").chunk


def test_cheap_views_are_read_each_second() -> None:
    assert pause(0.002, [0.002] * 8) == pytest.approx(SECONDS - 0.002)


@pytest.mark.parametrize("costs", [[0.4], [0.002, 0.5], [0.001, 0.2, 10.0], [0.03] * 64])
def test_all_views_together_take_a_small_share_of_a_session(costs: list[float]) -> None:
    assert sum(cost / (cost + pause(cost, costs)) for cost in costs) <= SHARE


def test_an_expensive_view_leaves_a_cheap_one_fresh() -> None:
    costs = [0.002, 0.1]
    assert pause(0.002, costs) < SECONDS
    assert 5 < pause(0.1, costs) < 6


def test_only_changes_are_sent() -> None:
    state = FeedState()
    assert state.watch(["a"]) == []
    assert read(state, "a", "1", 0.0) == ["view"]
    assert read(state, "a", "1", 1.0) == []
    assert read(state, "a", "2", 2.0) == ["view"]


def test_clients_of_one_path_share_its_readings() -> None:
    state = FeedState()
    state.watch(["a"])
    read(state, "a", "1", 0.0)
    [event] = state.watch(["a", "b"])
    assert json.loads(event.data)["value"] == 1
    assert state.next() == (-inf, "b")
    state.unwatch(["a"])
    assert {*state.readings} == {"a", "b"}
    state.unwatch(["a", "b"])
    assert not state.readings


def test_a_view_that_nobody_watches_any_more_is_not_sent() -> None:
    assert read(FeedState(), "a", "1", 0.0) == []


def test_the_view_that_is_due_longest_is_next() -> None:
    state = FeedState()
    state.watch(["a", "b"])
    read(state, "a", "1", 0.0)
    assert state.next() == (-inf, "b")
    read(state, "b", "1", 0.5)
    at, path = state.next()
    assert (round(at, 1), path) == (1.0, "a")


def test_a_failure_is_sent_once_and_ends() -> None:
    state = FeedState()
    state.watch(["a"])
    read(state, "a", "1", 0.0)
    assert [e.name for e in state.fail("a", "why", took=0.0, now=1.0)] == ["failed"]
    assert state.fail("a", "why", took=0.0, now=6.0) == []
    assert state.next() == (6.0 + FAILED_SECONDS, "a")
    assert read(state, "a", "1", 11.0) == ["view"]


def test_an_outage_is_told_once_and_its_end_too() -> None:
    state = FeedState()
    state.watch(["a"])
    read(state, "a", "1", 0.0)
    [away] = state.lose("gone", now=1.0, at="one")
    assert json.loads(away.data) == {"error": "gone", "since": "one"}
    assert state.lose("gone", now=2.0, at="two") == []
    assert state.next() == (2.0 + AWAY_SECONDS, "a")
    assert state.watch(["b"]) == [away]
    assert state.next() == (2.0 + AWAY_SECONDS, "b")
    assert read(state, "b", "1", 4.0) == ["back", "view"]
    assert state.watch(["b"])[0].name == "view"


def test_paths_of_clients_that_poll_are_forgotten() -> None:
    state = FeedState()
    for number in range(MAX_PATHS + 10):
        state.watch([str(number)])
        read(state, str(number), "1", float(number) / 100)
    state.forget(2.0)
    assert len(state.readings) == MAX_PATHS - 1
    state.forget(POLLED_SECONDS + 5)
    assert not state.readings


def test_a_slow_client_gets_the_latest_of_each_view() -> None:
    outbox = Outbox()
    for value in "123":
        outbox.put([view_event("a", value, ""), view_event("b", value, "")], 0.0)
    outbox.put([Event("away", "", "{}")], 1.0)
    outbox.put([Event("back", "", "{}")], 2.0)
    assert not outbox.stalled(STALLED_SECONDS)
    assert outbox.stalled(STALLED_SECONDS + 1)
    assert [line for line in outbox.take().decode().split("\n") if "event" in line] == [
        *["event: view", "event: view", "event: back"]
    ]
    assert outbox.is_empty
    assert not outbox.stalled(inf)
