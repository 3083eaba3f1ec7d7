"""Calls the hooks of the instruments of this process, where there is something for them to see.

No error of an instrument leaves this module, and the errors of others pass it unchanged.
"""

import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from cmdbus import instruments
from cmdbus.clock import time
from cmdbus.forwarding import also_by_default
from cmdbus.headers import check_headers
from cmdbus.instruments import EndedExecution, Instrument, Request, Sending, log_failure
from cmdbus.surroundings import Run

if TYPE_CHECKING:
    from cmdbus.command import Command
    from cmdbus.context import Context


class _Managers:
    """Context managers of instruments, entered and left without their errors."""

    __slots__ = ("_entered",)

    def __init__(self) -> None:
        self._entered: list[tuple[Instrument, str, AbstractContextManager[Any]]] = []

    def enter(self, instrument: Instrument, hook: str, *arguments: object) -> Any:
        """What the manager gives; None after an error."""
        try:
            manager = getattr(instrument, hook)(*arguments)
            given = manager.__enter__()
        except Exception as error:
            log_failure(instrument, hook, error)
            return None
        self._entered.append((instrument, hook, manager))
        return given

    def leave(self, error: BaseException | None) -> None:
        kind, trace = (None, None) if error is None else (type(error), error.__traceback__)
        for instrument, hook, manager in reversed(self._entered):
            try:
                manager.__exit__(kind, error, trace)
            except Exception as second:
                if second is not error:
                    log_failure(instrument, hook, second)
            finally:
                if error is not None:
                    error.__traceback__ = trace  # Without the frames of the instrument.


class _Observation:
    """One hook of all instruments, as a context manager."""

    def __init__(self, hook: str, *arguments: object) -> None:
        self._hook, self._arguments, self._managers = hook, arguments, _Managers()

    def __enter__(self) -> Self:
        for instrument in instruments.installed:
            self._managers.enter(instrument, self._hook, *self._arguments)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._managers.leave(error)


class ObservedSend(_Observation):
    """A call that sends, as all instruments see it, with the headers that they add."""

    def __init__(self, requests: Sequence[Request], operation: str) -> None:
        super().__init__("sending", requests, operation)
        self._sendings: list[tuple[Instrument, Sending]] = []
        self._with_headers: AbstractContextManager[None] = nullcontext()

    def __enter__(self) -> Self:
        headers: dict[str, str] = {}
        for instrument in instruments.installed:
            sending = self._managers.enter(instrument, self._hook, *self._arguments)
            if sending is None:
                continue
            try:
                headers.update(check_headers(sending.headers))
            except Exception as error:
                log_failure(instrument, "sending", error)
            else:
                self._sendings.append((instrument, sending))
        if headers:
            self._with_headers = also_by_default(headers)
        self._with_headers.__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._with_headers.__exit__(kind, error, trace)
        super().__exit__(kind, error, trace)

    def sent(self, ids: Sequence[UUID], count: int | None = None) -> None:
        for instrument, sending in self._sendings:
            try:
                sending.count = len(ids) if count is None else count
                sending.sent(ids)
            except Exception as error:
                log_failure(instrument, "sent", error)


class _UnobservedSend:
    """The same while no instrument is installed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def sent(self, ids: Sequence[UUID], count: int | None = None) -> None:
        pass


_UNOBSERVED = _UnobservedSend()


def observing_send(requests: Sequence[Request], operation: str) -> ObservedSend | _UnobservedSend:
    return ObservedSend(requests, operation) if instruments.installed else _UNOBSERVED


def waiting(operation: str, domain: str | None, id: UUID) -> AbstractContextManager[object]:
    return (
        _Observation("waiting", operation, domain, id) if instruments.installed else nullcontext()
    )


def settled(ended: Iterable[EndedExecution]) -> None:
    """Shows these ends to all instruments, in a thread that none of them must end."""
    for each in ended:
        for instrument in instruments.installed:
            try:
                instrument.settled(each)
            except (Exception, SystemExit) as error:
                log_failure(instrument, "settled", error)


def flush(seconds: float) -> None:
    """Lets all instruments send what is left, one after the other, within this time."""
    until = time.monotonic() + seconds
    for instrument in instruments.installed:
        if (left := until - time.monotonic()) > 0:
            try:
                instrument.flush(left)
            except Exception as error:
                log_failure(instrument, "flush", error)


def instruments_with(hook: str) -> list[Instrument]:
    """The instruments that do something in this hook."""
    base = getattr(Instrument, hook)
    return [each for each in instruments.installed if getattr(type(each), hook) is not base]


def observed(observers: Sequence[Instrument], run: Run) -> Run:
    """`run` as these instruments see it."""

    def inside(command: "Command[Any]", context: "Context") -> Any:
        managers = _Managers()
        for instrument in observers:
            managers.enter(instrument, "executing", command, context)
        try:
            result = run(command, context)
        except BaseException:
            # In no variable: libraries read those of a traceback's frames, which then keep them.
            managers.leave(sys.exception())
            raise
        managers.leave(None)
        return result

    return inside
