"""Commands that a test sends to a fleet, and what the database says of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

import psycopg
from eventually import eventually

from cmdbus import CommandBus, SendRequest


class SentCommands:
    """Those of the domain shop, in the database `dsn`."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._connection: psycopg.Connection | None = None
        #: By DSN. Kept, as a test sends about ten times, and a session costs 10 ms.
        self._buses: dict[str, CommandBus] = {}

    def disconnect(self) -> None:
        self.close_buses()
        self._close_connection()

    def send(self, type: str, count: int = 1, data: object = None, **more: Any) -> list[UUID]:
        if self.dsn not in self._buses:
            self._buses[self.dsn] = CommandBus(self.dsn)
        requests = [SendRequest("shop", type, data, **more) for _ in range(count)]
        return self._buses[self.dsn].send_many(requests)

    def close_buses(self) -> None:
        while self._buses:
            self._buses.popitem()[1].close()

    def query(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        cursor = self._connected().execute(statement.encode(), parameters)
        return cursor.fetchall() if cursor.description else []

    def _connected(self) -> psycopg.Connection:
        """A connection that is kept, as a wait asks a hundred times a second; a new one after a
        restart of the server."""
        with suppress(psycopg.OperationalError):
            if self._connection is not None:
                self._connection.execute("SELECT 1")
                return self._connection
        self._close_connection()
        self._connection = psycopg.connect(
            self.dsn, autocommit=True, application_name="test", prepare_threshold=None
        )
        return self._connection

    def _close_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def outcomes(self, ids: Sequence[UUID]) -> Counter[tuple[str, int]]:
        """How many there are of each status and number of attempts."""
        query = "SELECT status, attempts FROM cmdbus.command WHERE command_id = ANY (%s)"
        rows = self._connected().execute(query, [list(ids)], prepare=True)  # planning takes 2 ms
        return Counter((str(status), attempts) for status, attempts in rows)

    def await_outcomes(
        self, ids: Sequence[UUID], expected: Mapping[tuple[str, int], int], within: float = 30.0
    ) -> None:
        seen: Counter[tuple[str, int]] = Counter()

        def there() -> bool:
            nonlocal seen
            seen = self.outcomes(ids)
            return seen == expected

        try:
            eventually(there, within)
        except AssertionError:
            raise AssertionError(f"after {within:g} s: {dict(seen)}") from None

    def await_all_completed(self, ids: Sequence[UUID], within: float = 30.0) -> None:
        """Whatever the number of their attempts."""
        eventually(lambda: {status for status, _ in self.outcomes(ids)} == {"COMPLETED"}, within)

    def await_completed(self, ids: Sequence[UUID], within: float = 30.0) -> None:
        """Each with one attempt."""
        self.await_outcomes(ids, {("COMPLETED", 1): len(ids)}, within)

    def effects(self, ids: Sequence[UUID]) -> Counter[int]:
        """The number of commands by their number of effects."""
        rows = self.query(
            "SELECT count(e.command_id) FROM unnest(%s::uuid[]) c (id)"
            " LEFT JOIN effect e ON e.command_id = c.id GROUP BY c.id",
            list(ids),
        )
        return Counter(count for (count,) in rows)

    def trouble(self, id: UUID) -> tuple[str, str, dict[str, Any]]:
        """Code, message and details of the event that brought it to troubleshooting."""
        with CommandBus(self.dsn) as bus:
            record = bus.get("shop", id)
            event = bus.audit("shop", id)[-1]
        assert record is not None and record.status == "IN_TROUBLESHOOTING_QUEUE", record
        return str(record.error_code), str(record.error_message), dict(event.details or {})

    def await_completions(self, count: int, within: float = 30.0) -> None:
        """Of all that was ever sent."""
        completed = "SELECT count(*) FROM cmdbus.command WHERE status = 'COMPLETED'"
        eventually(lambda: self.query(completed)[0][0] >= count, within)
