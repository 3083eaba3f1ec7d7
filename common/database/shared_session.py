"""A second object for the session of a connection: for a thread while the task of an asynchronous
one waits, and for the runner of a test, in the test's own transaction."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import psycopg

SharedConnection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]


class _SharedSession(psycopg.Connection[Any]):
    """Shares the session, its prepared statements and its settings with another connection."""

    def __del__(self, _: Any = None) -> None:
        """No leak: the session is the other one's."""


@contextmanager
def shared_session(connection: SharedConnection) -> Iterator[psycopg.Connection[Any]]:
    """Nothing else may use `connection` meanwhile: the lock of an asynchronous one must be held.
    Notifications that come are handled at the end, in the caller's thread."""
    if connection._pipeline is not None:
        raise ValueError("the connection is in pipeline mode: send before or after the pipeline")
    made = _SharedSession.__new__(_SharedSession)
    vars(made).update(vars(connection), lock=Lock())
    pgconn, notifies = connection.pgconn, deque[Any]()
    handler, pgconn.notify_handler = pgconn.notify_handler, notifies.append
    try:
        yield made
    finally:
        pgconn.notify_handler = handler
        while notifies and handler:
            handler(notifies.popleft())
