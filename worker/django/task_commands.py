"""The commands of tasks, sent and read on Django's connection, in its transaction."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from uuid import UUID

from django.db import connections
from psycopg.errors import InsufficientPrivilege

from cmdbus.data import MAX_BYTES
from cmdbus.database.pool import Connection
from cmdbus.django.results import TaskRow
from cmdbus.forwarding import default_headers
from cmdbus.instrument_hooks import observing_send
from cmdbus.integrations.callers_connection import session_of
from cmdbus.producer.ids import new_id
from cmdbus.producer.requests import SendRequest, SendRules
from cmdbus.producer.sending import Sender
from cmdbus.producer.statement_errors import NOT_INSTALLED, missing_right, not_installed
from cmdbus.producer.store import Store


class TaskCommands:
    """Those of one schema, in the database of one alias. Safe to share between threads."""

    def __init__(self, using: str, schema: str) -> None:
        self._using = using
        self._store = Store(schema)
        self._sender, self._rules = Sender(self._store), SendRules.of(None, MAX_BYTES)

    def send(self, request: SendRequest) -> tuple[UUID, datetime | None]:
        """In one round trip. See `Sender.send_dated`."""
        with observing_send([request], "send") as sending:
            command = self._rules.check(request, new_id(), default_headers())
            with self._session("producer") as session:
                command_id, sent_at = self._sender.send_dated(session, command)
            sending.sent([command_id])
        return command_id, sent_at

    def read(self, domains: Iterable[str], command_id: UUID) -> TaskRow | None:
        """In one round trip."""
        values = {"domains": sorted(domains), "command_id": command_id}
        with self._session("operator") as session:
            rows = self._store.rows(session, "read_task", **values)
        return TaskRow(*rows[0]) if rows else None

    @contextmanager
    def _session(self, needs: str) -> Iterator[Connection]:
        """Its errors are Django's, which notices that way that a connection is dead."""
        wrapper = connections[self._using]
        session = session_of(wrapper)
        with wrapper.wrap_database_errors:
            try:
                yield session
            except InsufficientPrivilege as error:
                raise missing_right(self._store, session, error, needs) from None
            except NOT_INSTALLED as error:
                raise not_installed(self._store.schema, session, error) from None


@lru_cache(maxsize=16)
def task_commands(using: str, schema: str) -> TaskCommands:
    """Django has backends for each thread, or each task of asyncio; these they share."""
    return TaskCommands(using, schema)
