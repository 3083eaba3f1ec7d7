"""What a handler gets together with its command."""

import logging
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from cmdbus.checks import check_seconds
from cmdbus.clock import time
from cmdbus.command import Command
from cmdbus.command_log import CommandLogger, fields_of
from cmdbus.execution_outcome import ExecutionOutcome
from cmdbus.headers import check_headers, encode_headers

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy.orm import Session


_LOGGER = logging.getLogger("cmdbus.handler")


class Batch(Protocol):
    """The batch of a command that runs."""

    batch_id: UUID

    def add(self, requests: Iterable[Any], /) -> list[UUID]:
        """Sends these SendRequests as further commands of the batch, in the transaction of
        `context.connection`, and returns their ids in order.

        Raises what `CommandBus.send_many` raises, and InvalidOperationError if the batch is over
        or its cancellation was requested.
        """


class Checkpoints(Protocol):
    """Those of a command that runs."""

    def save(self, data: object, /) -> None: ...
    @property
    def latest(self) -> object: ...


class Execution(Protocol):
    """What a worker does for the handler."""

    #: Seconds; set by retry_after.
    retry_delay: float | None
    #: Seconds; set by again.
    again_in: float | None

    @property
    def schema(self) -> str: ...
    @property
    def due(self) -> float: ...
    @property
    def canceled(self) -> bool: ...
    @property
    def stopping(self) -> bool: ...
    def open(self) -> "psycopg.Connection[Any]": ...
    def orm_session(self) -> "Session": ...
    def batch(self) -> Batch | None: ...
    def extend(self, seconds: float, /) -> None: ...
    @property
    def checkpoints(self) -> Checkpoints: ...
    def breaker(self, name: str, /) -> AbstractContextManager[None]: ...
    def forward(self, headers: Mapping[str, str], /) -> dict[str, str]: ...


class Context:
    """One execution of a command."""

    #: For middleware, once what is inside of it has ended.
    outcome: ExecutionOutcome | None = None
    _headers: dict[str, str] | None = None

    def __init__(
        self, command: Command, execution: Execution, attempt: int, max_attempts: int
    ) -> None:
        #: This execution's number, from 1.
        self.attempt = attempt
        self.max_attempts = max_attempts
        self._command = command
        self._execution = execution

    @cached_property
    def log(self) -> "logging.LoggerAdapter[logging.Logger]":
        """A logger whose records carry command_id, command_type, domain, attempt and
        correlation_id."""
        about = self._command
        fields = fields_of(
            about.command_id, about.domain, about.type, about.correlation_id, self.attempt
        )
        return CommandLogger(_LOGGER, fields)

    @property
    def headers(self) -> dict[str, str]:
        """The headers that commands and replies of this execution get unless they are sent with
        others of the same names. At first those of the command that the registry forwards; it may
        be changed or replaced at any time. It reaches the handler's own thread, whatever runs on
        asyncio there, and threads that run in a copy of its context
        (`contextvars.copy_context().run`)."""
        found = self._headers
        if found is None:
            found = self._headers = self._execution.forward(self._command.headers)
        return found

    @headers.setter
    def headers(self, headers: Mapping[str, str]) -> None:
        own = self.headers
        if headers is not own:  # As it is after `|=`.
            given = check_headers(headers)
            encode_headers(given)  # Raises if they are too long.
            own.clear()
            own.update(given)

    def _forward_headers(self) -> None:
        """Makes `headers` before the handler is called, if the command has some, or if middleware
        may add some."""
        self.headers  # noqa: B018  # makes it

    @property
    def connection(self) -> "psycopg.Connection[Any]":
        """A connection inside a transaction that commits together with the command's
        completion, or not at all; opened when it is first touched."""
        return self._execution.open()

    @property
    def session(self) -> "Session":
        """An SQLAlchemy session in the transaction of `connection`: what it flushes, at the latest
        when the handler returns, commits together with the command's completion, or not at all.
        Needs SQLAlchemy 2."""
        return self._execution.orm_session()

    @property
    def batch(self) -> Batch | None:
        """The batch that the command is part of, if any."""
        return self._execution.batch()

    @property
    def schema(self) -> str:
        """The schema of the bus."""
        return self._execution.schema

    @property
    def deadline(self) -> datetime:
        """The time at which this execution times out."""
        return datetime.now(UTC) + timedelta(seconds=self.remaining())

    def remaining(self) -> float:
        """Seconds until this execution times out; negative after that."""
        return self._execution.due - time.monotonic()

    def extend(self, seconds: float) -> None:
        """Adds these seconds to the deadline, and to the limits of an open transaction."""
        self._execution.extend(check_seconds("extend", seconds))

    @property
    def canceled(self) -> bool:
        """Whether nothing of this execution counts any longer, so that the handler may return: an
        operator has canceled the command, another worker has its lease, or the execution has timed
        out. Known within a third of a lease; reading it costs no statement."""
        return self._execution.canceled

    @property
    def stopping(self) -> bool:
        """Whether the process stops, for whatever reason: the handler has until the deadline of
        the stop. Reading it costs no statement."""
        return self._execution.stopping

    def retry_after(self, seconds: float) -> None:
        """Sets the pause, in seconds, before the retry if this execution fails."""
        self._execution.retry_delay = check_seconds("retry_after", seconds)

    def checkpoint(self, data: object) -> None:
        """Keeps this JSON value of at most 1 MiB with the command, instead of an earlier one: for
        the next execution, whatever ends this one. If the transaction of `connection` is open, it
        commits or is rolled back with that; else it is kept when this returns. Once the execution
        is `canceled` it raises an error, which the handler should let out."""
        self._execution.checkpoints.save(data)

    @property
    def resumed(self) -> Any:
        """The latest checkpoint of the command; None if there is none. Read when it is first
        touched, in the transaction of `connection` if that is open. A command's first execution
        reads nothing."""
        return self._execution.checkpoints.latest

    def again(self, delay: float = 0) -> None:
        """Gives the command back when the handler returns: `return context.again()`. It runs again
        after `delay` seconds, behind the commands that wait by then; after a second at least if
        this execution has kept no checkpoint and written nothing through `connection`. What it
        wrote commits; what it returns is not kept. No attempt is charged, and no event is left."""
        self._execution.again_in = check_seconds("delay", delay) if delay else 0.0

    def breaker(self, name: str) -> AbstractContextManager[None]:
        """`with context.breaker(name):` around a call to another system: how it ends counts for the
        registry's breaker of this name. While that is open, the call is not made: a
        BreakerOpenError is raised, and if the handler lets it out, its command runs again once the
        breaker may let it through, uncharged. Inside a block of the same breaker, and in a handler
        that is bound to it, it changes nothing."""
        return self._execution.breaker(name)
