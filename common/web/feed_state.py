"""What the live feed reads when, and what it sends to which client. Pure: times are passed in.

A *view* is read for all clients that watch its path together. It is read once a second, or less
often where reading costs much: all views together take at most a fiftieth of the feed's session.
Reading by the square root of the costs keeps the cheap views fresh beside an expensive one.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf, sqrt

#: Seconds between two readings of a view that is cheap to read.
SECONDS = 1.0
#: The share of its session's time that the feed may take: of two CPUs that a fleet and its server
#: keep busy, 1 %.
SHARE = 0.02
#: Seconds until a failed view is read again.
FAILED_SECONDS = 5.0
#: Seconds between two tries while the database is away.
AWAY_SECONDS = 2.0
#: Seconds of one reading after which the database counts as away: it does not even refuse.
OVERDUE_SECONDS = 12.0
#: Seconds of silence after which a client gets a heartbeat.
HEARTBEAT_SECONDS = 15.0
#: Seconds after which a client that does not read is ended.
STALLED_SECONDS = 30.0
#: Seconds for which a view that a client polled is known.
POLLED_SECONDS = 30.0
MAX_PATHS, MAX_CLIENT_PATHS, MAX_CLIENTS = 64, 8, 64
#: Of one browser: it opens six connections to a server, and needs some for everything else.
MAX_OWN_CLIENTS = 4

HEARTBEAT = b":\n\n"


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the stream. `data` is JSON; a later event of the same key replaces it."""

    name: str
    key: str
    data: str

    @property
    def chunk(self) -> bytes:
        return f"event: {self.name}\ndata: {self.data}\n\n".encode()


def view_event(path: str, text: str, at: str) -> Event:
    """`text` is the value as JSON in one line."""
    data = f'{{"view": {json.dumps(path)}, "at": {json.dumps(at)}, "value": {text}}}'
    return Event("view", path, data)


def failed_event(path: str, sentence: str) -> Event:
    return Event("failed", path, json.dumps({"view": path, "error": sentence}))


def away_event(sentence: str, since: str) -> Event:
    return Event("away", "", json.dumps({"error": sentence, "since": since}))


BACK = Event("back", "", "{}")


@dataclass(slots=True)
class Reading:
    """The latest reading of a path, for its watchers."""

    watchers: int = 0
    due: float = -inf
    #: Seconds that the latest reading took.
    cost: float = 0.0
    #: When the latest reading ended.
    read_at: float = -inf
    #: The value, or why there is none.
    text: str | None = None
    error: str | None = None
    #: What was sent last.
    event: Event | None = None


@dataclass(slots=True)
class FeedState:
    readings: dict[str, Reading] = field(default_factory=dict)
    #: Set while the database is away.
    away: Event | None = None
    #: While it is away: the time of the next try.
    try_at: float = -inf

    def watch(self, paths: Iterable[str]) -> list[Event]:
        """Returns what is known already."""
        events = [self.away] if self.away else []
        for path in paths:
            reading = self.readings.setdefault(path, Reading())
            reading.watchers += 1
            if reading.event is not None:
                events.append(reading.event)
        return events

    def unwatch(self, paths: Iterable[str]) -> None:
        for path in paths:
            reading = self.readings[path]
            reading.watchers -= 1
            if not reading.watchers:
                del self.readings[path]

    def next(self) -> tuple[float, str]:
        """When to read which path: the one that has been due for the longest time."""
        path = min(self.readings, key=lambda each: self.readings[each].due)
        return self.next_of(path), path

    def next_of(self, path: str) -> float:
        due = self.readings[path].due
        return max(due, self.try_at) if self.away else due

    def forget(self, now: float) -> None:
        """Drops what was not read for a while, where clients poll and do not say that they end."""
        for path, reading in [*self.readings.items()]:
            if now > max(reading.read_at, reading.due) + POLLED_SECONDS:
                del self.readings[path]
        for path in [*self.readings][: -MAX_PATHS + 1]:
            del self.readings[path]

    def read(self, path: str, text: str, *, took: float, now: float, at: str) -> list[Event]:
        """Returns what all clients of the path get. `now` is when the reading ended."""
        events = self._back()
        reading = self.readings.get(path)
        if reading is None:
            return events
        self._note(reading, took, now)
        if reading.text != text:
            reading.text, reading.error = text, None
            reading.event = view_event(path, text, at)
            events.append(reading.event)
        return events

    def fail(self, path: str, sentence: str, *, took: float, now: float) -> list[Event]:
        events = self._back()
        reading = self.readings.get(path)
        if reading is None:
            return events
        self._note(reading, took, now)
        reading.due = max(reading.due, now + FAILED_SECONDS)
        if reading.error != sentence:
            reading.text, reading.error = None, sentence
            reading.event = failed_event(path, sentence)
            events.append(reading.event)
        return events

    def lose(self, sentence: str, *, now: float, at: str) -> list[Event]:
        """The database is away: nothing is read until the next try."""
        self.try_at = now + AWAY_SECONDS
        if self.away is not None:
            return []
        self.away = away_event(sentence, at)
        return [self.away]

    def _back(self) -> list[Event]:
        if self.away is None:
            return []
        self.away = None
        return [BACK]

    def _note(self, reading: Reading, took: float, now: float) -> None:
        reading.cost, reading.read_at = took, now
        reading.due = now + pause(took, [each.cost for each in self.readings.values()])


def pause(cost: float, costs: Iterable[float]) -> float:
    """Seconds until a view of this cost is read again, one of those with `costs`."""
    # The shares cost / pause add up to SHARE, whatever the costs.
    return max(SECONDS - cost, sqrt(cost) * sum(map(sqrt, costs)) / SHARE)


class Outbox:
    """What a client has not taken yet: the latest event of each key only."""

    def __init__(self) -> None:
        self._events: dict[str, Event] = {}
        #: Since when the oldest of them waits.
        self._since = inf

    def put(self, events: Iterable[Event], now: float) -> None:
        for event in events:
            if not self._events:
                self._since = now
            # At the end: what comes later is taken later.
            self._events.pop(event.key, None)
            self._events[event.key] = event

    @property
    def is_empty(self) -> bool:
        return not self._events

    def take(self) -> bytes:
        """Empty if there is nothing."""
        chunks = b"".join(event.chunk for event in self._events.values())
        self._events.clear()
        self._since = inf
        return chunks

    def stalled(self, now: float) -> bool:
        return now - self._since > STALLED_SECONDS
