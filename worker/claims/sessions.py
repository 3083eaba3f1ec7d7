"""The server's sessions: which one is a connection's, and how one ends, or a thread is freed from
one that does not answer."""

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

#: Seconds to wait until terminated sessions are gone; and between two checks.
_GONE_WITHIN = 5.0
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.002, 0.1
#: Seconds between two aborts after a deadline.
_ABORT_AGAIN_SECONDS = 0.2
#: A thread whose socket was shut down is out of the driver within this time.
_LEAVES_DRIVER_SECONDS = 1.0

#: What lets a role see and end the sessions of another one, which logs in and changes to it.
ROLE_FIX = "ALTER ROLE ... RESET role, or grant pg_read_all_stats and pg_signal_backend to it"


def session_of(connection: Connection) -> Session:
    """The pid and the start of the server's process, as the server knows them."""
    [(pid, start, user, role)] = Executor("cmdbus").rows(connection, "read_backend")
    if start is None:
        # Counts as a database that is away: new sessions are opened until one is all right.
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
    """Ends sessions, and all others of an incarnation, and waits until they are gone; False
    if they are not in time. Until then they may commit what is in their socket."""
    pairs = list(sessions)
    values = {
        "pids": [pid for pid, _ in pairs],
        "starts": [start for _, start in pairs],
        "name": None if incarnation is None else session_name(executor.schema, incarnation),
    }
    deadline = time.monotonic() + within
    pauses = Backoff(_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
    while executor.value(connection, "end_sessions", **values):
        if time.monotonic() > deadline:
            return False
        time.sleep(pauses.pause())
    return True


@contextmanager
def abort_io_at(deadline: float, abort: Callable[[], None]) -> Iterator[None]:
    """Calls `abort` from the monotonic time on, again and again until the block has ended: it
    frees the block from whatever it waits for in the database. An OSError if the system has no
    thread left for that."""
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
            socket.socket(fileno=os.dup(connection.fileno())) as ours,
        ):
            ours.shutdown(socket.SHUT_RDWR)


def end_session(connection: Connection) -> None:
    """Of a connection that another thread may be using. Canceled first: a server notices the
    end of a session only after its statement, whose locks would block the command's retry."""
    with suppress(psycopg.Error):
        connection.cancel_safe(timeout=_LEAVES_DRIVER_SECONDS)
    abort_io(connection)
    close_unused(connection)


def close_unused(connection: Connection) -> bool:
    """A thread inside the driver holds the lock, and releases it once the session is cut; to
    close the connection before would free memory that the thread still reads."""
    if not connection.lock.acquire(timeout=_LEAVES_DRIVER_SECONDS):
        return False
    try:
        connection.close()
    finally:
        connection.lock.release()
    return True
