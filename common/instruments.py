"""Instruments: what libraries for tracing, metrics and error reports put around each send, wait and
execution of this process. While none is installed, a send pays for one test of a tuple, and an
execution for nothing.

An instrument changes no outcome: its errors are logged, once for each hook, and it cannot swallow
those of others.
"""

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self
from uuid import UUID

from cmdbus.clock import time
from cmdbus.forwarding import also_forwarding
from cmdbus.headers import check_headers

if TYPE_CHECKING:
    from cmdbus.command import Command
    from cmdbus.context import Context

logger = logging.getLogger(__name__)

#: A handler, or what is around it.
Run = Callable[["Command[Any]", "Context"], Any]

_NONE: Mapping[str, str] = MappingProxyType({})


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
    headers: Mapping[str, str] = _NONE
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
    #: Of the execution; 0 if there was none.
    seconds: float
    #: Seconds between being due and being claimed.
    waited: float
    max_attempts: int
    correlation_id: UUID
    priority: int
    created_at: datetime
    #: JSON text of its event: reason, details, exception, traceback, or the stack of a timeout.
    details: str | None
    #: Of the command.
    headers: Mapping[str, str]
    #: Seconds until the next try, if there is one.
    delay: float | None


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
        """After the commit, in a thread of the worker's that has other work: be quick."""

    def flush(self, seconds: float) -> None:
        """Sends what is left within so many seconds: a process of a fleet ends, and calls no
        function of `atexit`."""


#: Those of this process, the outermost first.
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


class Entered:
    """Context managers of instruments, entered and left without their errors."""

    __slots__ = ("_managers",)

    def __init__(self) -> None:
        self._managers: list[tuple[Instrument, str, AbstractContextManager[Any]]] = []

    def enter(self, instrument: Instrument, hook: str, *arguments: object) -> Any:
        """What the manager gives; None after an error."""
        try:
            manager = getattr(instrument, hook)(*arguments)
            given = manager.__enter__()
        except Exception as error:
            _log(instrument, hook, error)
            return None
        self._managers.append((instrument, hook, manager))
        return given

    def leave(self, error: BaseException | None) -> None:
        kind, trace = (None, None) if error is None else (type(error), error.__traceback__)
        for instrument, hook, manager in reversed(self._managers):
            try:
                manager.__exit__(kind, error, trace)
            except Exception as second:
                if second is not error:
                    _log(instrument, hook, second)
            finally:
                if error is not None:
                    error.__traceback__ = trace  # Without the frames of the instrument.


class _Hook:
    """One hook of all instruments, as a context manager."""

    def __init__(self, hook: str, *arguments: object) -> None:
        self._hook, self._arguments, self._entered = hook, arguments, Entered()

    def __enter__(self) -> Self:
        for instrument in installed:
            self._entered.enter(instrument, self._hook, *self._arguments)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._entered.leave(error)


class SendingAll(_Hook):
    """A call that sends, as all instruments see it, with the headers that they add."""

    def __init__(self, requests: Sequence[Request], operation: str) -> None:
        super().__init__("sending", requests, operation)
        self._sendings: list[tuple[Instrument, Sending]] = []
        self._forwarding: AbstractContextManager[None] = nullcontext()

    def __enter__(self) -> Self:
        headers: dict[str, str] = {}
        for instrument in installed:
            sending = self._entered.enter(instrument, self._hook, *self._arguments)
            if sending is None:
                continue
            try:
                headers.update(check_headers(sending.headers))
            except Exception as error:
                _log(instrument, "sending", error)
            else:
                self._sendings.append((instrument, sending))
        if headers:
            self._forwarding = also_forwarding(headers)
        self._forwarding.__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._forwarding.__exit__(kind, error, trace)
        super().__exit__(kind, error, trace)

    def sent(self, ids: Sequence[UUID], count: int | None = None) -> None:
        for instrument, sending in self._sendings:
            try:
                sending.count = len(ids) if count is None else count
                sending.sent(ids)
            except Exception as error:
                _log(instrument, "sent", error)


def waiting(operation: str, domain: str | None, id: UUID) -> AbstractContextManager[object]:
    return _Hook("waiting", operation, domain, id) if installed else nullcontext()


def settled(ended: Iterable[EndedExecution]) -> None:
    """Tells all instruments of these ends."""
    for each in ended:
        for instrument in installed:
            try:
                instrument.settled(each)
            except Exception as error:
                _log(instrument, "settled", error)


def flush(seconds: float) -> None:
    """Has all instruments send what is left, one after the other, within this time."""
    until = time.monotonic() + seconds
    for instrument in installed:
        if (left := until - time.monotonic()) > 0:
            try:
                instrument.flush(left)
            except Exception as error:
                _log(instrument, "flush", error)


def having(hook: str) -> list[Instrument]:
    """Those that do something in this hook."""
    base = getattr(Instrument, hook)
    return [each for each in installed if getattr(type(each), hook) is not base]


def observed(instruments: Sequence[Instrument], run: Run) -> Run:
    """`run` as these instruments see it."""

    def inside(command: "Command[Any]", context: "Context") -> Any:
        entered = Entered()
        for instrument in instruments:
            entered.enter(instrument, "executing", command, context)
        try:
            result = run(command, context)
        except BaseException:
            # In no variable: libraries read those of a traceback's frames, which then keep them.
            entered.leave(sys.exception())
            raise
        entered.leave(None)
        return result

    return inside


def _log(instrument: Instrument, hook: str, error: Exception) -> None:
    key = id(instrument), hook
    if key not in _logged:
        _logged.add(key)
        name = type(instrument).__qualname__
        message = "the instrument %s failed in %s, which changes nothing; not logged again"
        logger.warning(message, name, hook, exc_info=error)
