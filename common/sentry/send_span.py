"""One call that sends, as Sentry sees it."""

from collections.abc import Sequence
from typing import Self
from uuid import UUID

from cmdbus.instruments import Request, Sending
from cmdbus.sentry import tracing

#: Calls whose ids are those of commands, and not of a batch or a process.
_OF_COMMANDS = {"send", "send_many", "call", "batch.add"}


class SendSpan(Sending):
    """A span, inside of the current one, and headers with the trace."""

    _span: tracing.Span | None = None

    def __init__(self, requests: Sequence[Request], operation: str, *, propagate: bool) -> None:
        self._requests, self._operation, self._propagate = requests, operation, propagate

    def __enter__(self) -> Self:
        types = {(each.domain, each.type) for each in self._requests}
        domains = {domain for domain, _ in types}
        name = "/".join(*types) if len(types) == 1 else self._operation
        attributes = {"messaging.system": "cmdbus", "messaging.operation.name": self._operation}
        if len(domains) == 1:
            attributes["messaging.destination.name"] = domains.pop()
        self._span = tracing.publish(name, attributes)
        if self._propagate:
            self.headers = tracing.propagated()
        return self

    def sent(self, ids: Sequence[UUID]) -> None:
        if self._span is None:
            return
        self._span.set("messaging.batch.message_count", self.count)
        if self.count == 1 and self._operation in _OF_COMMANDS:
            self._span.set("messaging.message.id", str(ids[0]))

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._span is not None:
            self._span.end(tracing.OK if error is None else tracing.FAILED)
