"""Instruments of the process that runs the tests, and one that keeps what it sees."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from cmdbus import Command, Context, instruments
from cmdbus.execution_outcome import ExecutionOutcome
from cmdbus.instruments import EndedExecution, Instrument, Request, Sending


@contextmanager
def installed(instrument: Instrument) -> Iterator[None]:
    instruments.install(instrument)
    try:
        yield
    finally:
        instruments.remove(instrument)


class Sent(Sending):
    def __init__(self, operation: str, requests: Sequence[Request]) -> None:
        self.operation = operation
        self.types = [request.type for request in requests]
        self.ids: Sequence[UUID] | None = None

    def sent(self, ids: Sequence[UUID]) -> None:
        self.ids = ids


class Recorder(Instrument):
    """Keeps all that it sees."""

    def __init__(self) -> None:
        self.sends: list[Sent] = []
        self.waits: list[tuple[object, ...]] = []
        self.executions: list[tuple[str, ExecutionOutcome | None, BaseException | None]] = []
        self.ends: list[EndedExecution] = []

    @contextmanager
    def sending(self, requests: Sequence[Request], operation: str) -> Iterator[Sent]:
        seen = Sent(operation, requests)
        self.sends.append(seen)
        yield seen

    @contextmanager
    def waiting(self, operation: str, domain: str | None, id: UUID) -> Iterator[None]:
        self.waits.append((operation, domain, id))
        yield
        self.waits.append((operation, "over"))

    @contextmanager
    def executing(self, command: Command[Any], context: Context) -> Iterator[None]:
        assert context.outcome is None
        error: BaseException | None = None
        try:
            yield
        except BaseException as caught:
            error = caught
        self.executions.append((command.type, context.outcome, error))

    def settled(self, ended: EndedExecution) -> None:
        self.ends.append(ended)
