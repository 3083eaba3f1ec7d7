"""The client of PGMQ: its functions, on any connection, in any transaction."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Self, overload

from cmdbus.checks import check_queue, check_whole
from cmdbus.clock import time
from cmdbus.data import CEILING_BYTES, MAX_BYTES, check_encoder
from cmdbus.integrations.callers_connection import CallersConnection
from cmdbus.payloads.forms import Encoder
from cmdbus.pgmq import operations
from cmdbus.pgmq.arguments import (
    MAX_INTEGER,
    JsonRules,
    Visibility,
    VisibleFrom,
    check_batch,
    check_msg_id,
    check_msg_ids,
    check_poll,
    check_visibility,
    check_vt,
)
from cmdbus.pgmq.operations import Operation
from cmdbus.pgmq.sessions import Sessions
from cmdbus.pgmq.values import (
    Message,
    Queue,
    QueueMetrics,
    message_of,
    metrics_of,
    queue_of,
)
from cmdbus.producer.connections import WAIT_SECONDS, Pool

#: Seconds for which a message that was read is not visible.
_VT = 30


class PgmqClient:
    """Sends messages to queues of PGMQ, and reads them. Safe to share between threads.

    With a DSN it keeps 1 to 4 connections of its own, opened at the first use in each process. With
    `connection`, one of psycopg, SQLAlchemy (a session, too), Django or a DB-API driver, a call is
    part of the caller's transaction; a client for such calls alone needs neither DSN nor pool.

    Each call may raise ValueError for a wrong argument, QueueNotFoundError, and, as those of a
    CommandBus, DatabaseUnavailableError, SchemaError (PGMQ is missing or too old),
    MissingRightError and psycopg.Error. If a connection of its own dies during a call,
    OutcomeUnknownError: PGMQ would not recognise a second try. Only `queues`, `metrics` and
    `set_vt` are repeated.
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        pool: Pool | None = None,
        max_bytes: int = MAX_BYTES,
        encoder: Encoder | None = None,
        prepare: bool = True,
        timeout: float = WAIT_SECONDS,
    ) -> None:
        """Opens nothing yet. Takes a `dsn` or a `pool`, a psycopg_pool.ConnectionPool that the
        caller closes. `max_bytes` bounds a message, and its headers. See CommandBus for `encoder`,
        `prepare` and `timeout`."""
        size = check_whole("max_bytes", max_bytes, 1, CEILING_BYTES)
        self._json = JsonRules(size, check_encoder(encoder))
        self._sessions = Sessions(dsn, pool, prepare, timeout)

    def send(
        self,
        queue: str,
        message: Any,
        *,
        headers: Mapping[str, Any] | None = None,
        delay: VisibleFrom | None = None,
        connection: CallersConnection | None = None,
    ) -> int:
        """Sends one message, any JSON value, and returns its msg_id.

        `delay`: seconds, a timedelta or an aware datetime before which no reader gets it.
        """
        at = check_visibility("delay", delay)
        values = {"message": self._json.message(message), "headers": self._json.headers(headers)}
        found = self._sent(connection, queue, values, at, operations.SEND, operations.SEND_AT)
        return found[0]

    def send_batch(
        self,
        queue: str,
        messages: Iterable[Any],
        *,
        headers: Iterable[Mapping[str, Any] | None] | None = None,
        delay: VisibleFrom | None = None,
        connection: CallersConnection | None = None,
    ) -> list[int]:
        """Sends all `messages`, or none, and returns their msg_ids in order. `headers` has one for
        each message, None for none. See `send` for `delay`."""
        check_queue(queue)
        at = check_visibility("delay", delay)
        texts, heads = check_batch(self._json, messages, headers)
        if not texts:
            return []
        values = {"messages": texts, "headers": heads}
        whole, timed = operations.SEND_BATCH, operations.SEND_BATCH_AT
        return self._sent(connection, queue, values, at, whole, timed)

    def read(
        self,
        queue: str,
        vt: float | timedelta = _VT,
        qty: int = 1,
        *,
        conditional: Any = None,
        connection: CallersConnection | None = None,
    ) -> list[Message]:
        """Up to `qty` visible messages, the oldest first, which no other reader gets for `vt`
        seconds. What is not archived or deleted by then is visible again.

        `conditional`: only messages that contain this JSON value.
        """
        condition = None
        if conditional is not None:
            condition = self._json.message(conditional, "conditional")
        values = {
            "vt": check_vt(vt),
            "qty": check_whole("qty", qty, 1, MAX_INTEGER),
            "conditional": condition,
        }
        return self._messages(connection, operations.READ, queue, values)

    def read_with_poll(
        self,
        queue: str,
        vt: float | timedelta = _VT,
        qty: int = 1,
        max_poll_seconds: float = 5,
        poll_interval_ms: float = 100,
        *,
        conditional: Any = None,
        connection: CallersConnection | None = None,
    ) -> list[Message]:
        """Reads until there is a message, for at most `max_poll_seconds`, every
        `poll_interval_ms`; see `read`.

        It waits in this process: meanwhile it uses no connection, no statement of it can time out,
        and a caller's transaction holds no snapshot (at REPEATABLE READ and above, a transaction
        never sees what is sent later).
        """
        seconds, interval = check_poll(max_poll_seconds, poll_interval_ms)
        ends_at = time.monotonic() + seconds
        while True:
            found = self.read(queue, vt, qty, conditional=conditional, connection=connection)
            left = ends_at - time.monotonic()
            if found or left <= 0:
                return found
            time.sleep(min(interval, left))

    def pop(
        self, queue: str, qty: int = 1, *, connection: CallersConnection | None = None
    ) -> list[Message]:
        """Up to `qty` visible messages, the oldest first, which it deletes: what the caller does
        not handle is lost, unless `connection` rolls back."""
        count = check_whole("qty", qty, 1, MAX_INTEGER)
        operation = operations.POP if count == 1 else operations.POP_MANY
        return self._messages(connection, operation, queue, {"qty": count})

    @overload
    def set_vt(
        self,
        queue: str,
        msg_id: int,
        vt: VisibleFrom,
        *,
        connection: CallersConnection | None = None,
    ) -> Message | None: ...

    @overload
    def set_vt(
        self,
        queue: str,
        msg_id: Iterable[int],
        vt: VisibleFrom,
        *,
        connection: CallersConnection | None = None,
    ) -> list[Message]: ...

    def set_vt(
        self,
        queue: str,
        msg_id: int | Iterable[int],
        vt: VisibleFrom,
        *,
        connection: CallersConnection | None = None,
    ) -> Message | list[Message] | None:
        """Makes a message visible in `vt` seconds (or a timedelta) from now, or at an aware
        datetime: the message, or None if it is gone. With several ids the messages that are
        there."""
        at = check_visibility("vt", vt)
        ids = _ids_of(msg_id)
        check_queue(queue)
        if not ids:
            return []
        one, whole = isinstance(msg_id, int), at.whole
        values: dict[str, Any] = {"msg_ids": ids, "seconds": at.seconds, "time": at.time}
        operation = operations.SET_VT_AT
        if whole is not None:
            operation = operations.SET_VT if one else operations.SET_VT_MANY
            values = {"msg_id": ids[0], "msg_ids": ids, "seconds": whole}
        found = self._messages(connection, operation, queue, values)
        if one:
            return found[0] if found else None
        return found

    @overload
    def archive(
        self, queue: str, msg_id: int, *, connection: CallersConnection | None = None
    ) -> bool: ...

    @overload
    def archive(
        self, queue: str, msg_id: Iterable[int], *, connection: CallersConnection | None = None
    ) -> list[int]: ...

    def archive(
        self,
        queue: str,
        msg_id: int | Iterable[int],
        *,
        connection: CallersConnection | None = None,
    ) -> bool | list[int]:
        """Moves a message into the queue's archive; whether it was there. With several ids those
        that were there."""
        return self._removed(connection, operations.ARCHIVE, queue, msg_id)

    @overload
    def delete(
        self, queue: str, msg_id: int, *, connection: CallersConnection | None = None
    ) -> bool: ...

    @overload
    def delete(
        self, queue: str, msg_id: Iterable[int], *, connection: CallersConnection | None = None
    ) -> list[int]: ...

    def delete(
        self,
        queue: str,
        msg_id: int | Iterable[int],
        *,
        connection: CallersConnection | None = None,
    ) -> bool | list[int]:
        """Deletes a message; whether it was there. With several ids those that were there."""
        return self._removed(connection, operations.DELETE, queue, msg_id)

    def queues(self, *, connection: CallersConnection | None = None) -> list[Queue]:
        """All queues of the database, by name."""
        rows = self._sessions.rows(connection, operations.QUEUES, None, {})
        return [queue_of(row) for row in rows]

    @overload
    def metrics(
        self, queue: str, *, connection: CallersConnection | None = None
    ) -> QueueMetrics: ...

    @overload
    def metrics(
        self, queue: None = None, *, connection: CallersConnection | None = None
    ) -> list[QueueMetrics]: ...

    def metrics(
        self, queue: str | None = None, *, connection: CallersConnection | None = None
    ) -> QueueMetrics | list[QueueMetrics]:
        """Length and ages of `queue`; without a name those of all queues, by name. PGMQ counts the
        messages each time."""
        if queue is None:
            rows = self._sessions.rows(connection, operations.METRICS_ALL, None, {})
            return [metrics_of(row) for row in rows]
        [row] = self._sessions.rows(connection, operations.METRICS, check_queue(queue), {})
        return metrics_of(row)

    def close(self) -> None:
        """Closes its connections, but not a pool of the caller's; calls fail from now on, except
        those with `connection`."""
        self._sessions.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sent(
        self,
        connection: CallersConnection | None,
        queue: str,
        values: dict[str, Any],
        at: Visibility,
        plain: Operation,
        timed: Operation,
    ) -> list[int]:
        """`plain` works with each version of PGMQ, and takes whole seconds and no headers."""
        operation, seconds = plain, at.whole
        if seconds is None or values["headers"] is not None:
            operation = timed
            values |= {"time": at.time}
        values["seconds"] = at.seconds if operation is timed else seconds
        rows = self._sessions.rows(connection, operation, check_queue(queue), values)
        return [msg_id for (msg_id,) in rows]

    def _messages(
        self,
        connection: CallersConnection | None,
        operation: Operation,
        queue: str,
        values: dict[str, Any],
    ) -> list[Message]:
        rows = self._sessions.rows(connection, operation, check_queue(queue), values)
        return [message_of(row) for row in rows]

    def _removed(
        self,
        connection: CallersConnection | None,
        operation: Operation,
        queue: str,
        msg_id: int | Iterable[int],
    ) -> bool | list[int]:
        ids = _ids_of(msg_id)
        check_queue(queue)
        found = []
        if ids:
            rows = self._sessions.rows(connection, operation, queue, {"msg_ids": ids})
            found = [each for (each,) in rows]
        return bool(found) if isinstance(msg_id, int) else found


def _ids_of(given: int | Iterable[int]) -> list[int]:
    return [check_msg_id("msg_id", given)] if isinstance(given, int) else check_msg_ids(given)
