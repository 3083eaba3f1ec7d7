"""The server's sessions: how one is identified and ended, and how a thread is freed from one that
does not answer."""

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

import psycopg

from cmdbus.backoff import Backoff
from cmdbus.clock import time
from cmdbus.database.executor import Executor
from cmdbus.database.session_names import session_name
from cmdbus.worker.claims.claim import Connection, Session

#: Seconds to wait for the end of terminated sessions, and between two checks.
_GONE_WITHIN = 5.0
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.002, 0.1
#: Seconds between two aborts after a deadline.
_ABORT_AGAIN_SECONDS = 0.2
#: Seconds within which a thread leaves the driver after its socket was shut down.
_LEAVES_DRIVER_SECONDS = 1.0

#: Advice for a role that may not see and end its own sessions, as it logs in as another one.
ROLE_FIX = "ALTER ROLE ... RESET role, or grant pg_read_all_stats and pg_signal_backend to it"


def session_of(connection: Connection) -> Session:
    """The pid and the start of the server's process, as the server knows them."""
    [(pid, start, user, role)] = Executor("cmdbus").rows(connection, "read_backend")
    if start is None:
        # Handled as an outage: new sessions are opened until one can be seen.
        raise psycopg.OperationalError(
            f"a session of {user!r} runs as role {role!r}, which may not see it: {ROLE_FIX}"
        )
    return int(pid), int(start)


def end_sessions(
    executor: Executor,
    connection: Connection,
    sessions: Iterable[Session],
    *,
    incarnation: int | None = None,
    within: float = _GONE_WITHIN,
) -> bool:
    """Ends sessions, and all others of an incarnation, and waits until they are gone, as they may
    still commit what is in their sockets. False if they are not gone in time."""
    pairs = list(sessions)
    values = {
        "pids": [pid for pid, _ in pairs],
        "starts": [start for _, start in pairs],
        "name": None if incarnation is None else session_name(executor.schema, incarnation),
    }
    deadline = time.monotonic() + within
    backoff = Backoff(_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
    while executor.value(connection, "end_sessions", **values):
        if time.monotonic() > deadline:
            return False
        time.sleep(backoff.pause())
    return True


@contextmanager
def abort_io_at(deadline: float, abort: Callable[[], None]) -> Iterator[None]:
    """Calls `abort`, which frees the block from waiting for the database, from the monotonic time
    on until the block has ended. Raises an OSError if the system has no thread left."""
    over = threading.Event()

    def watch() -> None:
        pause = max(0.0, deadline - time.monotonic())
        while not over.wait(pause):
            abort()
            pause = _ABORT_AGAIN_SECONDS

    watcher = threading.Thread(target=watch, name="cmdbus-deadline", daemon=True)
    try:
        watcher.start()
    except RuntimeError as error:
        raise BlockingIOError(errno.EAGAIN, str(error)) from error
    try:
        yield
    finally:
        over.set()
        watcher.join()


def abort_io(connection: Connection | None) -> None:
    """Frees a thread from whatever it waits for there."""
    if connection is not None and not connection.closed:
        with (
            suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(connection.fileno())) as socket_,
        ):
            socket_.shutdown(socket.SHUT_RDWR)


def end_session(connection: Connection) -> None:
    """Ends a session that another thread may be using. Cancels its statement first: else the server
    would notice the end only after it, and its locks would block the command's retry."""
    with suppress(psycopg.Error):
        connection.cancel_safe(timeout=_LEAVES_DRIVER_SECONDS)
    abort_io(connection)
    close_unused(connection)


def close_unused(connection: Connection) -> bool:
    """Waits for the lock of a thread inside the driver, which still reads memory that this frees;
    False if the thread stays there."""
    if not connection.lock.acquire(timeout=_LEAVES_DRIVER_SECONDS):
        return False
    try:
        connection.close()
    finally:
        connection.lock.release()
    return True
