"""A producer that knows only PGMQ: it writes messages in transactions, by plain SQL, and takes what
comes back. It says in its journal what it did, draws what it sends from its seed, and ends with its
parent.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from fault_injection.header_drawing import draw_headers
from fault_injection.journal import Journal
from fault_injection.pacing import Pace

_WEIGHTS = {"send": 40, "batch": 10, "roll-back": 10, "take": 25}
_KINDS = {
    "Noop": 40,
    "Tx": 25,
    "Io": 10,
    "Transient": 5,
    "Rule": 5,
    "Undone": 5,
    "Permanent": 2,
    "Refused": 3,
}
#: Messages of one transaction, and those that are taken together.
_TOGETHER, _TAKEN = (1, 1, 1, 2, 2, 10), 20
#: Shares of messages that are visible later, of those with headers, and of large ones.
_LATER, _WITH_HEADERS, _LARGE = 0.1, 0.5, 0.01
#: Seconds until a message is visible, and bytes of a large one.
_DELAYS, _LARGE_BYTES = (0, 1, 2), 300_000
#: Share of what is taken that is not archived, but visible again a second later.
_PUT_BACK = 0.2
_SEND = "SELECT pgmq.send(%s, %s::jsonb, %s::jsonb, %s::integer)"
_SEND_BATCH = "SELECT pgmq.send_batch(%s, %s::jsonb[], %s::jsonb[])"
_READ = "SELECT msg_id FROM pgmq.read(%s, 1, %s)"
_ARCHIVE = "SELECT pgmq.archive(%s, %s::bigint[])"
#: Seconds until a server that did not answer is tried again.
_AGAIN_S = 0.3


class PgmqProducer:
    def __init__(self, options: dict[str, Any], dsn: str, journal: Journal) -> None:
        self._name: str = options["name"]
        self._queue_in: str = options["queue_in"]
        self._queue_out: str = options["queue_out"]
        self._dice = random.Random(options["seed"])
        self._pause = 1.0 / options["calls_per_s"]
        self._pace = Pace(Path(options["directory"]))
        self._dsn, self._journal = dsn, journal
        self._calls = 0
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True

    def run(self) -> None:
        ways: dict[str, Callable[[psycopg.Connection, str], None]] = {
            "send": self._send,
            "batch": self._batch,
            "roll-back": self._roll_back,
            "take": self._take,
        }
        while not self._stopping:
            try:
                with psycopg.connect(self._dsn, autocommit=True) as connection:
                    while not self._stopping:
                        ways[self._draw_way()](connection, f"{self._name}-{self._calls}")
                        pause = self._dice.expovariate(1 / self._pause)
                        self._pace.keep(pause, lambda: self._stopping)
            except psycopg.Error:
                time.sleep(_AGAIN_S)

    def _draw_way(self) -> str:
        """Of the next call. The first one writes, also in a short run."""
        self._calls += 1
        drawn = self._dice.choices([*_WEIGHTS], [*_WEIGHTS.values()])[0]
        return drawn if self._calls > 1 else "send"

    def _send(self, connection: psycopg.Connection, call: str) -> None:
        """Messages one by one, in one transaction."""
        drawn = self._draw(call)

        def send() -> list[int]:
            return [self._send_one(connection, *one) for one in drawn]

        self._commit(connection, call, drawn, send)

    def _batch(self, connection: psycopg.Connection, call: str) -> None:
        """Messages in one statement."""
        drawn = [(message, headers, 0) for message, headers, _ in self._draw(call)]

        def send() -> list[int]:
            messages, headers, _ = zip(*drawn, strict=True)
            values = (self._queue_in, [*map(Jsonb, messages)], [*map(_jsonb, headers)])
            return [number for (number,) in connection.execute(_SEND_BATCH, values)]

        self._commit(connection, call, drawn, send)

    def _commit(
        self,
        connection: psycopg.Connection,
        call: str,
        drawn: Sequence[object],
        send: Callable[[], list[int]],
    ) -> None:
        self._journal.write("invoke", call, way="pgmq", count=len(drawn))
        try:
            with connection.transaction():
                numbers = send()
        except psycopg.Error as error:
            self._journal.write("unknown", call, why=type(error).__name__)
            raise
        self._journal.write("ok", call, messages=numbers)

    def _roll_back(self, connection: psycopg.Connection, call: str) -> None:
        """Nothing of it was ever sent."""
        drawn = self._draw(call)
        self._journal.write("invoke", call, way="rollback", count=len(drawn))
        try:
            with connection.transaction(force_rollback=True):
                for one in drawn:
                    self._send_one(connection, *one)
        finally:
            self._journal.write("fail", call)

    def _take(self, connection: psycopg.Connection, call: str) -> None:
        """What has come back, to the archive. A part of it stays, as after a crash."""
        with connection.transaction():
            found = connection.execute(_READ, (self._queue_out, _TAKEN)).fetchall()
            if self._dice.random() >= _PUT_BACK:
                numbers = [number for (number,) in found]
                connection.execute(_ARCHIVE, (self._queue_out, numbers))

    def _send_one(
        self,
        connection: psycopg.Connection,
        message: dict[str, Any],
        headers: dict[str, Any] | None,
        delay: int,
    ) -> int:
        values = (self._queue_in, Jsonb(message), _jsonb(headers), delay)
        [(number,)] = connection.execute(_SEND, values).fetchall()
        return int(number)

    def _draw(self, call: str) -> list[tuple[dict[str, Any], dict[str, Any] | None, int]]:
        """Messages, the headers of each, and the seconds until each is visible."""
        count = self._dice.choice(_TOGETHER)
        return [self._draw_one(call, index) for index in range(count)]

    def _draw_one(self, call: str, index: int) -> tuple[dict[str, Any], dict[str, Any] | None, int]:
        dice = self._dice
        kind = dice.choices([*_KINDS], [*_KINDS.values()])[0]
        message: dict[str, Any] = {"call": call, "index": index, "does": kind}
        if kind == "Io":
            message["seconds"] = round(dice.uniform(0.001, 0.2), 3)
        elif kind == "Transient":
            message["times"] = dice.choice((1, 2, 3))
        if dice.random() < _LARGE:
            message["payload"] = dice.randbytes(dice.randint(1, _LARGE_BYTES // 2)).hex()
        headers = self._draw_headers(message) if dice.random() < _WITH_HEADERS else None
        delay = dice.choice(_DELAYS) if dice.random() < _LATER else 0
        return message, headers, delay

    def _draw_headers(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message says which of them its command must have."""
        dice = self._dice
        message["headers"] = kept = draw_headers(dice)
        others: dict[str, Any] = {"number": 5, "not a name": "x", "nested": {"a": 1}}
        if dice.random() < 0.3:
            others["correlation_id"] = message["correlation_id"] = str(
                UUID(bytes=dice.randbytes(16))
            )
        return {**others, **kept}


def _jsonb(headers: dict[str, Any] | None) -> Jsonb | None:
    return None if headers is None else Jsonb(headers)


def main() -> None:
    options = json.loads(sys.argv[1])
    journal = Journal(Path(options["directory"]) / "journals" / options["name"])
    producer = PgmqProducer(options, os.environ["CMDBUS_DSN"], journal)
    signal.signal(signal.SIGTERM, lambda *_: producer.stop())
    producer.run()
    journal.close()
