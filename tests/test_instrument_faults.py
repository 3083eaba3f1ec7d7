"""Instruments that fail: nothing changes for sends, waits and executions."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any
from uuid import UUID

import pytest
from handlers import ONCE, handling, running
from observed import installed

from cmdbus import (
    BusinessRuleError,
    Command,
    CommandBus,
    CommandFailedError,
    Context,
    instrument_hooks,
)
from cmdbus.instruments import EndedExecution, Instrument, Request, Sending


class Failing(Instrument):
    """Each hook raises, but for those that only try to swallow."""

    def sending(self, requests: Sequence[Request], operation: str) -> Any:
        raise LookupError("in sending")

    @contextmanager
    def waiting(self, operation: str, domain: str | None, id: UUID) -> Iterator[None]:
        yield
        raise LookupError("in waiting")

    @contextmanager
    def executing(self, command: Command[Any], context: Context) -> Iterator[None]:
        try:
            yield
        finally:
            raise LookupError("in executing")

    def settled(self, ended: EndedExecution) -> None:
        raise SystemExit("in settled")


class FailingLater(Instrument):
    def sending(
        self, requests: Sequence[Request], operation: str
    ) -> AbstractContextManager[Sending]:
        @contextmanager
        def manage() -> Iterator[Any]:
            yield "no Sending"
            raise LookupError("after sending")

        return manage()

    @contextmanager
    def executing(self, command: Command[Any], context: Context) -> Iterator[None]:
        with suppress(BusinessRuleError):
            yield


@pytest.mark.parametrize("kind", [Failing, FailingLater])
def test_an_instrument_that_fails_changes_nothing_and_is_logged_once(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture, kind: type[Instrument]
) -> None:
    def handle(command: Command, context: Context) -> str:
        if command.data == "fails":
            raise BusinessRuleError("CLOSED", "not today")
        return "done"

    with installed(kind()), running(dsn, handling(handle, retry=ONCE)):
        for _ in range(2):
            assert bus.call("payments", "Debit") == "done"
            with pytest.raises(CommandFailedError, match="CLOSED: not today"):
                bus.call("payments", "Debit", "fails")
    logged = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    failures = [message for message in logged if "instrument" in message]
    assert len(failures) == len(set(failures)) == (4 if kind is Failing else 1), failures
    assert all(kind.__name__ in message for message in failures)


def test_an_instrument_that_cannot_send_what_is_left_keeps_no_other_from_it() -> None:
    left: list[float] = []

    class Broken(Instrument):
        def flush(self, seconds: float) -> None:
            raise OSError("no network")

    class Flushing(Instrument):
        def flush(self, seconds: float) -> None:
            left.append(seconds)

    with installed(Broken()), installed(Flushing()):
        instrument_hooks.flush(60)
        instrument_hooks.flush(-1)  # It is late.
    assert len(left) == 1 and 30 < left[0] <= 60
