"""The claims of a program that reads replies.

Claimed as by a worker, by an incarnation of the reader's own: the reply of a reader that crashes
comes again when its lease ends.
"""

import logging
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from threading import Event, RLock, Thread
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from cmdbus.clock import time
from cmdbus.data import MAX_BYTES, decode
from cmdbus.database.adapters import Row
from cmdbus.database.executor import Executor
from cmdbus.database.pool import Connection
from cmdbus.database.session_names import node_number, session_name
from cmdbus.errors import DatabaseUnavailableError, InvalidOperationError
from cmdbus.headers import decode_headers
from cmdbus.printable import joined
from cmdbus.producer.connections import Connections
from cmdbus.producer.records import ReceivedReply
from cmdbus.reply import reply_fields
from cmdbus.retry import MAX_LOSSES

logger = logging.getLogger(__name__)

#: Seconds until a renewal that failed is tried again.
_RETRY_SECONDS = 1.0


class _Claim(NamedTuple):
    domain: str
    priority: int
    id: int
    token: int
    command_id: UUID
    #: JSON text.
    data: str
    attempts: int
    losses: int
    max_attempts: int | None
    correlation_id: UUID
    created_at: datetime
    batch_id: UUID | None
    #: The headers alone: a reply gets no reply.
    reply_to_and_headers: str | None

    @property
    def key(self) -> dict[str, Any]:
        """Values of a statement."""
        return {name: getattr(self, name) for name in self._fields[:5]}


class ReplyLeases:
    """The claims of one reader, at most one at a time, and the thread that renews its lease. Knows
    nothing of its reader, which ends with its last reference."""

    def __init__(self, connections: Connections, executor: Executor, lease: float) -> None:
        self._executor = executor
        #: Random, as a worker's.
        self.incarnation = secrets.randbelow(2**63 - 1) + 1
        self._lease, self._renewal_seconds = f"{lease:f} seconds", lease / 3
        name = session_name(executor.schema, self.incarnation)
        self.connections = connections.named(name, self._register, "worker")
        self.open_session = partial(connections.open_session, application_name=name)
        #: Reentrant: a signal handler may close the reader.
        self._lock = RLock()
        #: Whether a claim is on its way to or from the database.
        self._in_use = self._closed = False
        self._held: _Claim | None = None
        #: Whether an acknowledgement of that has failed.
        self._was_tried = False
        self._renew_at = 0.0
        self._stopping = Event()
        self._thread: Thread | None = None

    def claim(self, domain: str, *, shared: bool) -> ReceivedReply | None:
        with self._using():
            while not self._closed and (claim := self._claim_one(domain, shared=shared)):
                reply = _received(claim)
                if claim.losses >= MAX_LOSSES:
                    why = f"{claim.losses} of its readers crashed while they had it"
                    self._settle(claim, "LOST", why)
                elif reply is None:
                    self._settle(claim, "NOT_A_REPLY", "its data is not that of a reply")
                else:
                    self._hold(claim)
                    return reply
        return None

    def acknowledge(self) -> bool:
        """Returns True. After an error the reply is still held, and the next call tries again."""
        with self._using():
            held, again = self._held, self._was_tried
            if held is None:
                return True
            self._was_tried = True
            is_settled = self._settle(held)
            self._held = None
            if not is_settled and not again:  # else the first try may have settled it
                logger.warning(
                    "reply %s of domain %s was lost before it was acknowledged, and comes again",
                    held.command_id,
                    held.domain,
                )
            return True

    def release(self) -> None:
        with self._using():
            self._release()

    def stop_renewals(self) -> None:
        """Ends the thread."""
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            in_use = self._in_use
        if not in_use:  # else this interrupts, in a signal handler, what ends it afterwards
            self._end()

    @contextmanager
    def _using(self) -> Iterator[None]:
        try:
            with self._lock:
                self._in_use = True
                try:
                    yield
                finally:
                    self._in_use = False
        finally:
            if self._closed:
                self._end()

    def _end(self) -> None:
        try:
            self._release()
        except (psycopg.Error, DatabaseUnavailableError) as error:
            logger.warning("a reply comes again when its lease ends: %s", joined(str(error)))
        finally:
            self.stop_renewals()
            self.connections.close()

    def _release(self) -> None:
        with self._lock:
            held, self._held = self._held, None
            if held is not None:
                self.connections.rows(
                    None, "release_reply", "worker", **held.key, claimer=self.incarnation
                )

    def _register(self, connection: Connection) -> None:
        """On each new connection: a restored database may have forgotten it."""
        values = {
            "incarnation": self.incarnation,
            "worker": f"{socket.gethostname()}:{os.getpid()}",
            "lease": self._lease,
            "node": node_number(None),
        }
        self._executor.execute(connection, "register", values)

    def _claim_one(self, domain: str, *, shared: bool) -> _Claim | None:
        values = {
            "domain": domain,
            "shared": shared,
            "bytes": MAX_BYTES,
            "claimer": self.incarnation,
            "lease": self._lease,
        }

        def claim(connection: Connection, again: bool) -> list[Row]:
            if again:  # The first try may have claimed one.
                self._release_all(connection)
            return self._executor.rows(connection, "claim_reply", **values)

        rows = self.connections.use(None, claim, "worker")
        if not rows:
            raise InvalidOperationError(
                f"workers handle the replies of domain {domain!r}: let commands reply to a domain "
                f"that has no handler for them, or read with shared=True, which takes replies "
                f"from those workers"
            )
        claims = [_Claim(*row) for row in rows if row[3] is not None]
        return claims[0] if claims else None

    def _release_all(self, connection: Connection) -> None:
        """Reads all rows."""
        names = [*_Claim._fields[:5], "claimer"]
        for row in self._executor.rows(connection, "find_keys", claimer=self.incarnation):
            key = dict(zip(names, row, strict=True))
            self._executor.execute(connection, "release_reply", key)

    def _settle(self, claim: _Claim, code: str | None = None, message: str | None = None) -> bool:
        """False if the claim was lost."""
        values = {
            **claim.key,
            "claimer": self.incarnation,
            "attempts": claim.attempts + (code is None),
            "losses": claim.losses,
            "max_attempts": claim.max_attempts,
            "code": code,
            "message": message,
            "batch_id": claim.batch_id,
        }

        def settle(connection: Connection, again: bool) -> bool:
            # The first try may have settled it.
            return bool(self._executor.value(connection, "settle_reply", **values)) or again

        return self.connections.use(None, settle, "worker")

    def _hold(self, claim: _Claim) -> None:
        self._renew_at = time.monotonic() + self._renewal_seconds
        self._held, self._was_tried = claim, False
        if self._thread is None and not self._closed:
            self._stopping.clear()
            self._thread = Thread(target=self._renew, name="cmdbus-replies", daemon=True)
            self._thread.start()

    def _renew(self) -> None:
        pause = self._renewal_seconds
        while not self._stopping.wait(pause):
            pause = min(self._renewal_seconds, _RETRY_SECONDS)
            # Under the lock, as a release skips a row that is just renewed. It is not waited for:
            # the thread that has it may wait for the end of this one.
            if self._lock.acquire(blocking=False):
                try:
                    pause = self._renew_held() or pause
                finally:
                    self._lock.release()

    def _renew_held(self) -> float | None:
        """Returns the seconds until the next renewal; None if this one failed."""
        held, left = self._held, self._renew_at - time.monotonic()
        if held is None or left > 0:
            return self._renewal_seconds if held is None else left
        try:
            self.connections.rows(
                None,
                "renew_reply",
                "worker",
                **held.key,
                claimer=self.incarnation,
                lease=self._lease,
            )
        except (psycopg.Error, DatabaseUnavailableError) as error:
            logger.warning("the lease of a reply cannot be renewed: %s", joined(str(error)))
            return None
        return self._renewal_seconds


def _received(claim: _Claim) -> ReceivedReply | None:
    fields = reply_fields(decode(claim.data))
    if fields is None:
        return None
    return ReceivedReply(
        **fields,
        correlation_id=claim.correlation_id,
        reply_id=claim.command_id,
        created_at=claim.created_at.astimezone(UTC),
        headers=decode_headers((claim.reply_to_and_headers or "").partition(" ")[2] or None),
    )
