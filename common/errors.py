"""Everything that cmdbus raises by name. Bad arguments are ValueErrors."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID


class CmdbusError(Exception):
    """The root of all errors of cmdbus. They can be pickled and copied, whatever arguments their
    initializers take."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _blank, (type(self),), {**self.__dict__, "args": self.args}


def _blank(kind: type[CmdbusError]) -> CmdbusError:
    return kind.__new__(kind)


class CommandError(CmdbusError):
    """What a handler raises to say how its command ended."""

    #: Of a subclass whose initializer does not call this one.
    code: str = ""
    message: str = ""
    details: object = None

    def __init__(self, code: str, message: str, details: object = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.details = details

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class TransientCommandError(CommandError):
    """It may work later: retried after the policy's backoff, or after `retry_after` seconds."""

    retry_after: float | None = None

    def __init__(
        self, code: str, message: str, details: object = None, retry_after: float | None = None
    ) -> None:
        super().__init__(code, message, details)
        self.retry_after = retry_after


class PermanentCommandError(CommandError):
    """It will never work as it is: it waits in the troubleshooting queue for an operator."""


class BusinessRuleError(CommandError):
    """A rule forbids it: the command is FAILED without a retry, and its reply says so."""


class BreakerOpenError(CmdbusError):
    """A circuit breaker keeps a handler from its call, which was not made. If the handler lets it
    out, its command runs again, uncharged, after `retry_after` seconds."""

    def __init__(self, name: str, retry_after: float) -> None:
        self.name = name
        self.retry_after = retry_after
        super().__init__(f"the breaker {name} is open: again in {retry_after:.1f} s")


class CronMissingError(CmdbusError, ValueError):
    """The package that reads cron lines, cronsim, is not installed."""


class SendRefusedError(CmdbusError):
    """Nothing was sent. A hook of sends raises it to refuse a request."""

    code: str = ""
    message: str = ""
    #: Of the request that a hook refused, and of others where the domain refused it.
    domain: str | None = None
    type: str | None = None
    #: Such as "request 3 of 500", if the error is about one of several requests.
    position: str = ""

    def __init__(self, code: str, message: str | None = None) -> None:
        """A code of the application's, if it has one, and a message."""
        super().__init__(code) if message is None else super().__init__(code, message)
        self.code, self.message = ("", code) if message is None else (code, message)

    def __str__(self) -> str:
        text = f"{self.code}: {self.message}" if self.code else self.message
        if self.type is not None:
            text = f"{self.domain}/{self.type} is refused: {text}"
        return f"{self.position}: {text}" if self.position else text


class DuplicateCommandError(SendRefusedError):
    """The domain has a command with this id or this unique key, or still keeps the history of one
    with this id."""

    def __init__(
        self,
        domain: str,
        command_ids: Sequence[UUID],
        *,
        in_one_call: bool = False,
        unique: str | None = None,
        hint: str = "",
    ) -> None:
        """`in_one_call`: the call itself has an id twice; nothing is known of earlier ones.
        `unique`: the key that the first of these commands has, and `hint` what to do."""
        self.domain = domain
        self.command_ids = tuple(command_ids)
        self.command_id = self.command_ids[0]
        self.unique = unique
        others = f" (and {len(command_ids) - 1} others)" if len(command_ids) > 1 else ""
        if in_one_call:
            message = (
                f"command {self.command_id} of domain {domain!r} is in this call twice: give each "
                f"request an id of its own"
            )
        elif unique is not None:
            message = (
                f"command {self.command_id}{others} of domain {domain!r} has the unique key "
                f"{unique!r}{hint}"
            )
        else:
            message = (
                f"command {self.command_id}{others} was sent to domain {domain!r} before: "
                f"an id is taken once, and `get` shows what became of that command"
            )
        super().__init__(message)


class QueueFullError(SendRefusedError):
    """As many commands wait as the domain's max_depth or, with one key, its max_waiting_per_key
    allows, or more were sent at once."""

    def __init__(
        self,
        domain: str,
        depth: int,
        max_depth: int,
        retry_after: float,
        count: int = 1,
        key: str | None = None,
    ) -> None:
        """`count`: the commands of the send. With a `key` the numbers are about it."""
        self.domain = domain
        #: None if the whole domain is full.
        self.key = key
        self.depth = depth
        self.max_depth = max_depth
        #: Seconds after which another try makes sense, as for an HTTP 429.
        self.retry_after = retry_after
        what, limit = f"domain {domain!r}", "max_depth"
        if key is not None:
            what, limit = f"key {key!r} of {what}", "max_waiting_per_key"
        super().__init__(
            f"{what} never takes {count} commands at once: its {limit} is {max_depth}; "
            f"send fewer at once"
            if count > max_depth
            else f"{what} is full: its depth is {depth}, its {limit} {max_depth}; "
            f"send again in {retry_after:.0f} s"
        )


class ShutdownError(SendRefusedError):
    """The domain does not accept commands."""

    def __init__(self, domain: str) -> None:
        self.domain = domain
        super().__init__(
            f"domain {domain!r} does not accept commands: "
            f"cmdbus domain configure {domain} --accepting opens it again "
            f"(configure(accepting=True))"
        )


class CommandNotFoundError(CmdbusError):
    """No command with this id was ever sent to the domain, or its history is gone."""

    def __init__(self, domain: str, command_id: UUID) -> None:
        self.domain = domain
        self.command_id = command_id
        super().__init__(f"domain {domain!r} has no command {command_id}")


class BatchNotFoundError(CmdbusError):
    """No batch with this id was ever created, or it is not kept any longer."""

    def __init__(self, batch_id: UUID) -> None:
        self.batch_id = batch_id
        super().__init__(f"there is no batch {batch_id}")


class CommandFailedError(CmdbusError):
    """A called command was FAILED or CANCELED, or is in the troubleshooting queue."""

    def __init__(
        self, code: str, message: str, details: object, command_id: UUID, status: str = "FAILED"
    ) -> None:
        super().__init__(code, message, details, command_id, status)
        self.code = code
        self.message = message
        self.details = details
        self.command_id = command_id
        #: FAILED, CANCELED or IN_TROUBLESHOOTING_QUEUE.
        self.status = status

    def __str__(self) -> str:
        cause = self.message if self.code == self.status else f"{self.code}: {self.message}"
        return f"command {self.command_id} is {self.status}: {cause}"


class CallTimeoutError(CmdbusError, TimeoutError):
    """A called command has not ended in time. It goes on: `cancel` and `wait` take its domain and
    its id."""

    def __init__(self, domain: str, command_id: UUID, state: str, timeout: float) -> None:
        self.domain = domain
        self.command_id = command_id
        super().__init__(
            f"command {command_id} of domain {domain!r} is {state} after {timeout:g} s; "
            f"it is not canceled"
        )


class ProcessNotFoundError(CmdbusError):
    """No process with this id was ever started, or it is not kept any longer."""

    def __init__(self, process_id: UUID) -> None:
        self.process_id = process_id
        super().__init__(f"there is no process {process_id}")


class InvalidOperationError(CmdbusError):
    """The present state of the command, batch or process does not allow it."""


class NotHereError(CmdbusError):
    """This worker cannot run the command, and another one can: it runs again, uncharged."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class PayloadInvalidError(CmdbusError):
    """The data of a command does not fit the type that its handler's annotation names: an operator
    decides."""


class HandlerAlreadyRegisteredError(CmdbusError):
    """The registry has a handler for this domain and type; it keeps that one."""

    def __init__(self, domain: str, type: str, present: str) -> None:
        self.domain = domain
        self.type = type
        super().__init__(f"{domain}/{type} is handled by {present} already")


class SchemaError(CmdbusError):
    """The database's schema is missing, older or newer than this code."""


class MissingRightError(CmdbusError):
    """The database role lacks a right; the message says which, and how to grant it."""


class QueueNotFoundError(CmdbusError):
    """The database has no queue of PGMQ with this name, or the queue lacks its archive."""

    def __init__(self, queue: str, part: str = "") -> None:
        self.queue = queue
        literal = queue.replace("'", "''")
        has_no = f"has no {part}" if part else "does not exist"
        super().__init__(f"the queue {queue!r} {has_no}: SELECT pgmq.create('{literal}') makes it")


class OutcomeUnknownError(CmdbusError):
    """A connection died before the answer came: the call may have been carried out."""


class DatabaseUnavailableError(CmdbusError):
    """No connection could be made; the message says where to and why, without the password."""


class EmbeddedError(CmdbusError):
    """The private PostgreSQL cannot be had; the text says why and what to do."""


class BoardError(CmdbusError):
    """The board cannot be made or read; the message says which and why."""


class AppError(CmdbusError):
    """The handlers cannot be loaded; what their own code raised is in it with its traceback."""
