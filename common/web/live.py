"""The live feed: reads the views that clients watch, once for all of them, and hands each client
what has changed.

Its thread runs only while a client is subscribed: nothing is read while no page is open. A client
that reads slowly gets the latest value of each view, and no other; one that reads nothing is ended.
"""

import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

from cmdbus.clock import time
from cmdbus.web.failures import failure
from cmdbus.web.feed_state import (
    HEARTBEAT,
    HEARTBEAT_SECONDS,
    MAX_CLIENT_PATHS,
    MAX_CLIENTS,
    MAX_OWN_CLIENTS,
    MAX_PATHS,
    OVERDUE_SECONDS,
    Event,
    FeedState,
    Outbox,
)
from cmdbus.web.http.runner import place_of

logger = logging.getLogger(__name__)

#: Seconds after which a page that polls asks again.
AGAIN_SECONDS = 2
_MAX_QUERY = 16_000
_HANGS = "PostgreSQL does not answer"
_UNEXPECTED = "this view cannot be read; the log of the page's server says why"

#: Gives the value of a view, by its path and query, as JSON in one line.
Read = Callable[[str], str]


class FeedFullError(Exception):
    """No further client, or path, is taken."""


class Feed:
    """Safe to share between threads. `read` is called by one thread at a time."""

    def __init__(self, read: Read) -> None:
        self._text_of = read
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._state = FeedState()
        self._clients: dict[Subscription, None] = {}
        self._thread: threading.Thread | None = None
        #: Since when the thread reads a view; None between two.
        self._reading_since: float | None = None
        #: One reading at a time, also of clients that poll.
        self._reading = threading.Lock()
        self._polled = FeedState()

    def subscribe(self, paths: Sequence[str], owner: str = "") -> "Subscription":
        """The caller closes it. `owner` is the same for what comes from one browser. Raises
        FeedFullError, and ValueError for too many paths."""
        paths = list(dict.fromkeys(paths))
        _check(paths)
        with self._lock:
            if owner and sum(each.owner == owner for each in self._clients) >= MAX_OWN_CLIENTS:
                raise FeedFullError(f"{MAX_OWN_CLIENTS} pages are open in this browser")
            if len(self._clients) >= MAX_CLIENTS:
                raise FeedFullError(f"{MAX_CLIENTS} pages are open; close one and try again")
            if len({*self._state.readings, *paths}) > MAX_PATHS:
                raise FeedFullError(f"{MAX_PATHS} views are watched; close one and try again")
            self._start()
            client = Subscription(self, self._lock, paths, owner)
            client.put(self._state.watch(paths), time.monotonic())
            self._clients[client] = None
            self._wake.notify()
        return client

    def once(self, paths: Sequence[str]) -> dict[str, Any]:
        """For servers without threads: the events of now, and when to ask again."""
        events = [{"event": e.name, "data": json.loads(e.data)} for e in self._present(paths)]
        return {"events": events, "again": AGAIN_SECONDS}

    def brief(self, paths: Sequence[str]) -> bytes:
        """The same as a stream that ends, for a client that is one too many."""
        again = Event("again", "", json.dumps({"seconds": AGAIN_SECONDS}))
        return b"".join(event.chunk for event in (*self._present(paths), again))

    def _present(self, paths: Sequence[str]) -> list[Event]:
        paths = list(dict.fromkeys(paths))
        _check(paths)
        events: list[Event] = []
        with self._reading:
            for path in paths:
                events.append(self._poll(path))
                if events[-1].name == "away":
                    break
        return events

    def close(self) -> None:
        """Ends all subscriptions."""
        with self._lock:
            clients = [*self._clients]
        for client in clients:
            client.close()

    def end(self, client: "Subscription") -> None:
        """Called with the lock held."""
        if client in self._clients:
            del self._clients[client]
            self._state.unwatch(client.paths)
            self._wake.notify()

    def note_overdue(self, now: float) -> None:
        """Called with the lock held, by clients, as the thread hangs with a server that does."""
        if self._reading_since is not None and now - self._reading_since > OVERDUE_SECONDS:
            self._send(self._state.lose(_HANGS, now=now, at=_now()))

    def _start(self) -> None:
        """Called with the lock held, which keeps the thread waiting until it has a client."""
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._run, name="cmdbus-web-feed", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise FeedFullError(f"the feed cannot start: {error}") from error
            self._thread = thread

    def _run(self) -> None:
        while (path := self._next()) is not None:
            try:
                with self._reading:
                    self._reading_since = time.monotonic()
                    self._read(self._state, path)
            except Exception as error:
                logger.error("the live feed goes on: %s", place_of(error))
                with self._lock:
                    now = time.monotonic()
                    self._send(self._state.fail(path, _UNEXPECTED, took=0.0, now=now))

    def _next(self) -> str | None:
        """Waits until a view is due. None without a subscriber; then the thread ends."""
        with self._lock:
            while self._clients:
                now = time.monotonic()
                at, path = self._state.next()
                if at <= now:
                    return path
                self._wake.wait(min(at - now, HEARTBEAT_SECONDS))
            self._thread = None
            self._state = FeedState()
            return None

    def _read(self, state: FeedState, path: str) -> None:
        began = time.monotonic()
        text, sentence, is_away = "", None, False
        try:
            text = self._text_of(path)
        except Exception as error:
            sentence, is_away = _sentence(path, error)
        with self._lock:
            self._reading_since = None
            now = time.monotonic()
            if sentence is None:
                events = state.read(path, text, took=now - began, now=now, at=_now())
            elif is_away:
                events = state.lose(sentence, now=now, at=_now())
            else:
                events = state.fail(path, sentence, took=now - began, now=now)
            if state is self._state:
                self._send(events)

    def _poll(self, path: str) -> Event:
        """Requests share readings, as subscribers do."""
        state, now = self._polled, time.monotonic()
        state.forget(now)
        state.watch([path])
        reading = state.readings[path]
        if state.next_of(path) <= now:
            self._read(state, path)
        event = state.away or reading.event
        assert event is not None
        return event

    def _send(self, events: Sequence[Event]) -> None:
        """Called with the lock held. Events of a view go to its watchers, others to all."""
        now = time.monotonic()
        for client in [*self._clients]:
            client.put([e for e in events if not e.key or e.key in client.paths], now)
            if client.stalled(now):
                logger.info("a page has read nothing for a while: ended its stream")
                client.end()


class Subscription(Iterator[bytes]):
    """The stream of one client: chunks of server-sent events, for ever or until it is closed."""

    def __init__(
        self, feed: Feed, lock: threading.Lock, paths: Sequence[str], owner: str = ""
    ) -> None:
        self.paths, self.owner = paths, owner
        self._feed = feed
        self._changed = threading.Condition(lock)
        self._outbox = Outbox()
        self._ended = False

    def __next__(self) -> bytes:
        with self._changed:
            if not self._changed.wait_for(self._has_news, HEARTBEAT_SECONDS):
                self._feed.note_overdue(time.monotonic())
            if self._ended:
                raise StopIteration
            return self._outbox.take() or HEARTBEAT

    def close(self) -> None:
        """Safe to call from another thread, and again."""
        with self._changed:
            self.end()

    # Called with the lock held.

    def put(self, events: Sequence[Event], now: float) -> None:
        if events:
            self._outbox.put(events, now)
            self._changed.notify()

    def end(self) -> None:
        self._ended = True
        self._feed.end(self)
        self._changed.notify_all()

    def stalled(self, now: float) -> bool:
        return self._outbox.stalled(now)

    def _has_news(self) -> bool:
        return self._ended or not self._outbox.is_empty


def watched(query: str) -> list[str]:
    """The paths of views that the query of a request names, as `view=fleet&view=overview`."""
    if len(query) > _MAX_QUERY or query.count("&") >= MAX_PATHS:
        raise ValueError("the query is too long")
    pairs = parse_qsl(query, keep_blank_values=True)
    if unknown := [name for name, _ in pairs if name != "view"]:
        raise ValueError(f"there is no parameter {unknown[0]!r}: there is view")
    return [path for _, path in pairs]


def _check(paths: Sequence[str]) -> None:
    if not 0 < len(paths) <= MAX_CLIENT_PATHS:
        raise ValueError(f"name 1 to {MAX_CLIENT_PATHS} views, not {len(paths)}")


def _sentence(path: str, error: Exception) -> tuple[str, bool]:
    """With whether the database is away."""
    found = failure(error)
    if found is None:
        logger.error("the view %s cannot be read: %s", path.partition("?")[0], place_of(error))
        return _UNEXPECTED, False
    return found[1]["error"], found[1].get("away", False)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
