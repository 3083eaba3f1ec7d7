"""Instruments: what libraries for tracing, metrics and error reports put around each send, wait and
execution of this process. While none is installed, a send pays for one test of a tuple, and an
execution for nothing.

An instrument changes no outcome: its errors are logged, once for each hook, and it cannot swallow
those of others. instrument_hooks.py calls the hooks.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import UUID

from cmdbus.execution_outcome import STATUSES
from cmdbus.headers import NO_HEADERS

if TYPE_CHECKING:
    from cmdbus.command import Command
    from cmdbus.context import Context

logger = logging.getLogger(__name__)


class Request(Protocol):
    """A SendRequest. An instrument reads it, and changes nothing."""

    @property
    def domain(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def command_id(self) -> UUID | str | None: ...
    @property
    def correlation_id(self) -> UUID | str | None: ...
    @property
    def priority(self) -> str | int: ...
    @property
    def reply_to(self) -> str | None: ...


class Sending:
    """One call that sends."""

    #: Added to all of its commands, but for names that their sender, too, has given.
    headers: Mapping[str, str] = NO_HEADERS
    #: Number of commands; known once they are sent.
    count = 0

    def sent(self, ids: Sequence[UUID]) -> None:
        """Once all are written, before the commit of a caller's transaction. `ids` are in the order
        of the requests; of a batch only the batch's, and of a signal the process's."""


class EndedExecution(NamedTuple):
    """An execution whose end is committed, or that was lost."""

    domain: str
    type: str
    command_id: UUID
    #: From 1.
    attempt: int
    #: COMPLETED, FAILED, RETRY, TROUBLE, INTERRUPTED, CANCELED or LOST, as the metrics have it.
    outcome: str
    code: str | None
    message: str | None
    #: Monotonic time; 0 if that is unknown.
    ended_at: float
    settled_at: float
    #: Duration of the execution; 0 if there was none.
    seconds: float
    #: Seconds between being due and being claimed.
    waited: float
    max_attempts: int
    correlation_id: UUID
    priority: int
    created_at: datetime
    #: JSON text of its event: reason, details, exception, traceback, or the stack of a timeout.
    details: str | None
    #: The headers of the command.
    headers: Mapping[str, str]
    #: Seconds until the next try, if there is one.
    delay: float | None

    @property
    def status(self) -> str:
        """The outcome as `context.outcome` names it."""
        return STATUSES.get(self.outcome, self.outcome)


class Instrument:
    """Base class, whose hooks do nothing. Any thread may call them."""

    def sending(
        self, requests: Sequence[Request], operation: str
    ) -> AbstractContextManager[Sending]:
        """Around a call that sends; entered before its requests are checked. `operation`: send,
        send_many, call, create_batch, start_process, signal_process, or batch.add for
        `context.batch`. There are no requests if a batch reads them from an iterator, and for a
        signal, whose domain only the database knows."""
        return nullcontext(Sending())

    def waiting(
        self, operation: str, domain: str | None, id: UUID
    ) -> AbstractContextManager[object]:
        """Around a wait for the end of a command or a batch. `operation`: wait, wait_batch, or
        call, whose send is inside."""
        return nullcontext()

    def executing(
        self, command: "Command[Any]", context: "Context"
    ) -> AbstractContextManager[object]:
        """Around an execution and its middleware. At its exit it sees the error, and
        `context.outcome`, which is to be settled. Asked for when a process meets a type for the
        first time: install instruments before that."""
        return nullcontext()

    def settled(self, ended: EndedExecution) -> None:
        """After the commit, in a thread of the worker's that has other work: be quick.

        An execution and its settlement have command_id and attempt in common. The settlement of a
        handler that hangs comes while `executing` is still entered (code TIMEOUT), and that of a
        crash comes in the steward's process. Some executions have none, such as those of a group
        that has failed, whose commands run again by themselves."""

    def flush(self, seconds: float) -> None:
        """Sends what is left, within `seconds`: a process of a fleet exits, and calls no function
        of `atexit`."""


#: The instruments of this process, the outermost first.
installed: tuple[Instrument, ...] = ()
_lock = Lock()
#: Instruments and hooks whose errors are in the log.
_logged: set[tuple[int, str]] = set()


def install(instrument: Instrument) -> None:
    """Has no effect if it is installed."""
    global installed
    if not isinstance(instrument, Instrument):
        raise ValueError(f"an instrument must be an Instrument, not {instrument!r:.80}")
    with _lock:
        if instrument not in installed:
            installed = (*installed, instrument)


def remove(instrument: Instrument) -> None:
    """Has no effect if it is not installed."""
    global installed
    with _lock:
        installed = tuple(each for each in installed if each is not instrument)
        _logged.difference_update([key for key in _logged if key[0] == id(instrument)])


def log_failure(instrument: Instrument, hook: str, error: BaseException) -> None:
    """Once for each hook."""
    key = id(instrument), hook
    if key not in _logged:
        _logged.add(key)
        name = type(instrument).__qualname__
        message = "the instrument %s failed in %s, which changes nothing; not logged again"
        logger.warning(message, name, hook, exc_info=error)
