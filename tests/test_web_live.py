"""The live feed's thread and its clients."""

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from eventually import eventually
from web import ask, entered

from cmdbus import CommandBus
from cmdbus.errors import DatabaseUnavailableError
from cmdbus.web import feed_state, live
from cmdbus.web.feed_state import (
    HEARTBEAT,
    MAX_CLIENT_PATHS,
    MAX_CLIENTS,
    MAX_OWN_CLIENTS,
    MAX_PATHS,
)
from cmdbus.web.live import AGAIN_SECONDS, Feed, FeedFullError, Subscription
from cmdbus.web.query import Query
from cmdbus.web.wsgi import Application

NOWHERE = "host=/nonexistent"
NAME = "cmdbus-web-feed"


class Hanging:
    """A value that comes only after an event."""

    def __init__(self, answers: threading.Event) -> None:
        self.answers = answers


class Views:
    """Values, or errors, by path; counts how often each was read."""

    def __init__(self, **values: object) -> None:
        self.values = values
        self.reads: list[str] = []

    def __call__(self, path: str) -> str:
        self.reads.append(path)
        value = self.values[path]
        if isinstance(value, Hanging):
            assert value.answers.wait(10)
            return "0"
        if isinstance(value, Exception):
            raise value
        return json.dumps(value)


@pytest.fixture
def feed_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Views], Feed]]:
    """Feeds that read a hundred times a second."""
    for name in ("SECONDS", "FAILED_SECONDS", "AWAY_SECONDS"):
        monkeypatch.setattr(feed_state, name, 0.01)
    feeds: list[Feed] = []

    def made(views: Views) -> Feed:
        feeds.append(Feed(views))
        return feeds[-1]

    yield made
    for feed in feeds:
        feed.close()
    eventually(lambda: not running())


def running() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == NAME]


def events(chunk: bytes) -> list[tuple[str, Any]]:
    found = []
    for block in chunk.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def next_events(client: Subscription) -> list[tuple[str, Any]]:
    """Those of the next chunk that is no heartbeat."""
    while not (found := events(next(client).replace(HEARTBEAT, b""))):
        pass
    return found


def next_event(client: Subscription) -> tuple[str, Any]:
    [event] = next_events(client)
    return event


def test_clients_get_changes_and_share_one_thread(feed_of: Callable[[Views], Feed]) -> None:
    views = Views(a=1)
    feed = feed_of(views)
    assert running() == []
    first, second = feed.subscribe(["a"]), feed.subscribe(["a", "a"])
    for client in (first, second):
        assert next_event(client)[1]["value"] == 1
    views.values["a"] = 2
    for client in (first, second):
        assert next_event(client)[1]["value"] == 2
    assert running() == [NAME]


def test_nothing_is_read_once_the_last_client_has_gone(feed_of: Callable[[Views], Feed]) -> None:
    views = Views(a=1)
    feed = feed_of(views)
    client = feed.subscribe(["a"])
    next(client)
    client.close()
    client.close()
    with pytest.raises(StopIteration):
        next(client)
    eventually(lambda: not running())
    read = len(views.reads)
    again = feed.subscribe(["a"])
    assert next_event(again)[0] == "view"
    assert len(views.reads) > read


def test_the_feed_survives_failing_views_and_outages(feed_of: Callable[[Views], Feed]) -> None:
    views = Views(a=ValueError("no such thing"))
    client = feed_of(views).subscribe(["a"])
    assert next_event(client) == ("failed", {"view": "a", "error": "no such thing"})
    views.values["a"] = DatabaseUnavailableError("gone")
    name, data = next_event(client)
    assert (name, data["error"]) == ("away", "gone")
    views.values["a"] = 7
    assert [name for name, _ in next_events(client)] == ["back", "view"]


def test_a_server_that_hangs_counts_as_away(
    feed_of: Callable[[Views], Feed], monkeypatch: pytest.MonkeyPatch
) -> None:
    views, answers = Views(a=1), threading.Event()
    feed = feed_of(views)
    client = feed.subscribe(["a"])
    assert next_event(client)[0] == "view"
    views.values["a"] = Hanging(answers)
    monkeypatch.setattr(live, "HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(live, "OVERDUE_SECONDS", 0.05)
    assert next_event(client)[0] == "away"
    views.values["a"] = 1
    answers.set()
    assert next_events(client)[0][0] == "back"


def test_an_unexpected_error_is_logged_and_not_shown(
    feed_of: Callable[[Views], Feed], caplog: pytest.LogCaptureFixture
) -> None:
    client = feed_of(Views(a=RuntimeError("a secret"))).subscribe(["a"])
    name, data = next_event(client)
    assert name == "failed"
    assert "secret" not in data["error"]
    assert "RuntimeError in test_web_live.py" in caplog.text
    assert "a secret" not in caplog.text


def test_closing_the_feed_ends_waiting_clients(feed_of: Callable[[Views], Feed]) -> None:
    feed = feed_of(Views(a=1))
    client = feed.subscribe(["a"])
    chunks: list[bytes] = []
    thread = threading.Thread(target=lambda: chunks.extend(client))
    thread.start()
    eventually(lambda: chunks)
    feed.close()
    thread.join(5)
    assert not thread.is_alive()


def test_a_client_that_reads_nothing_is_ended(
    feed_of: Callable[[Views], Feed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_state, "STALLED_SECONDS", 0.05)
    client = feed_of(Views(a=1)).subscribe(["a"])
    eventually(lambda: not running())
    with pytest.raises(StopIteration):
        next(client)


def test_a_feed_takes_only_so_many_clients_and_paths(feed_of: Callable[[Views], Feed]) -> None:
    views = Views(**{f"v{number}": 1 for number in range(MAX_PATHS + 1)})
    feed = feed_of(views)
    with pytest.raises(ValueError, match="1 to 8 views"):
        feed.subscribe([f"v{number}" for number in range(MAX_CLIENT_PATHS + 1)])
    with pytest.raises(ValueError, match="1 to 8 views"):
        feed.subscribe([])
    for number in range(0, MAX_PATHS, MAX_CLIENT_PATHS):
        feed.subscribe([f"v{number + each}" for each in range(MAX_CLIENT_PATHS)])
    with pytest.raises(FeedFullError, match="views"):
        feed.subscribe([f"v{MAX_PATHS}"])
    for _ in range(MAX_CLIENTS - MAX_PATHS // MAX_CLIENT_PATHS):
        feed.subscribe(["v0"])
    with pytest.raises(FeedFullError, match="pages"):
        feed.subscribe(["v0"])


def test_polling_gives_all_values_without_a_thread(feed_of: Callable[[Views], Feed]) -> None:
    views = Views(a=1, b=ValueError("why"))
    feed = feed_of(views)
    answer = feed.once(["a", "b"])
    assert answer["again"] == 2
    assert [each["event"] for each in answer["events"]] == ["view", "failed"]
    assert answer["events"][0]["data"]["value"] == 1
    assert running() == []


def test_pages_that_poll_share_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_state, "SECONDS", 60.0)
    views = Views(a=1)
    feed = Feed(views)
    feed.once(["a"])
    views.values["a"] = 2
    assert feed.once(["a"])["events"][0]["data"]["value"] == 1
    assert views.reads == ["a"]


def test_polling_says_that_the_database_is_away_and_back(
    feed_of: Callable[[Views], Feed],
) -> None:
    views = Views(a=DatabaseUnavailableError("gone"), b=1)
    feed = feed_of(views)
    assert [each["event"] for each in feed.once(["a", "b"])["events"]] == ["away"]
    views.values["a"] = 3
    values = eventually(lambda: [e["data"].get("value") for e in feed.once(["a"])["events"]] == [3])
    assert values


def application(views: Views) -> Application:
    def view(name: str) -> Callable[[CommandBus, Query], object]:
        return lambda bus, query: json.loads(views(name))

    return Application(CommandBus(NOWHERE), {"a": view("a"), "b": view("b")}, {}, role="viewer")


def environ_of(path: str, query: str) -> dict[str, Any]:
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "QUERY_STRING": query}
    environ |= {"SERVER_NAME": "localhost", "SERVER_PORT": "80", "REMOTE_ADDR": "127.0.0.1"}
    environ |= {"HTTP_HOST": "localhost", "wsgi.url_scheme": "http"}
    return {**environ, "wsgi.multithread": True}


def test_a_page_gets_a_stream_of_the_views_that_it_names(feed_of: object) -> None:
    page = application(Views(a=1, b=2))
    started: list[tuple[str, list[tuple[str, str]]]] = []
    environ = environ_of("/api/live", "view=a&view=b%3Fn%3D1")
    stream = page(environ, lambda status, headers: started.append((status, headers)))
    assert isinstance(stream, Subscription)
    found: dict[str, Any] = {}
    while len(found) < 2:
        found |= events(next(stream))
    assert ("Content-Type", "text/event-stream") in started[0][1]
    assert (found["view"]["view"], found["view"]["value"]) == ("a", 1)
    assert found["failed"] == {"view": "b?n=1", "error": "there is no parameter 'n'"}
    page.close()
    with pytest.raises(StopIteration):
        next(stream)


def test_a_browser_keeps_connections_for_more_than_its_streams() -> None:
    page = application(Views(a=1))
    cookie = entered(page)
    stream: dict[str, Any] = {"HTTP_COOKIE": cookie["Cookie"], "wsgi.multithread": True}
    environ = {**environ_of("/api/live", "view=a"), **stream}
    streams = [page(environ, lambda *_: None) for _ in range(MAX_OWN_CLIENTS)]
    assert all(isinstance(each, Subscription) for each in streams)
    reply = ask(page, "/api/live?view=a", **stream)
    assert (reply.status, reply.headers["Content-Type"]) == (200, "text/event-stream")
    [(view, value), again] = events(reply.body)
    assert (view, value["value"], again) == ("view", 1, ("again", {"seconds": AGAIN_SECONDS}))
    other = page(environ_of("/api/live", "view=a"), lambda *_: None)
    assert isinstance(other, Subscription), "another browser has its own"
    page.close()
    freed = page(environ, lambda *_: None)
    assert isinstance(freed, Subscription)
    freed.close()


def test_a_server_without_threads_answers_at_once() -> None:
    page = application(Views(a=1))
    environ: dict[str, Any] = {"wsgi.multithread": False}
    reply = ask(page, "/api/live?view=a", **environ)
    assert reply.status == 200
    assert [event["data"]["value"] for event in reply.json["events"]] == [1]


@pytest.mark.parametrize("query", ["", "view=a&span=hour", "&".join(["view=a"] * 2000)])
def test_a_subscription_without_views_or_with_other_parameters_is_refused(query: str) -> None:
    assert ask(application(Views(a=1)), f"/api/live?{query}").status == 400
