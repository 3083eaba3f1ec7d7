"""What the context of an execution asks for without a session: its thread, its limits, and what it
passes on of its command's headers, to commands that its handler sends and to the reply."""

from collections.abc import Mapping
from typing import Any

from cmdbus.clock import time
from cmdbus.forwarding import ForwardedHeaders, forward, reply_headers
from cmdbus.worker.claims.claim import Claim
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.execution.executing_thread import ExecutingThread, Handled


class ContextFacts:
    """A part of Execution."""

    claim: Claim
    due: float
    _handled: Handled
    _thread: ExecutingThread[Any]
    _statements: ClaimStatements
    #: None if nothing has asked for `context.headers`, and the command has none.
    _forwarded: ForwardedHeaders | None = None

    @property
    def schema(self) -> str:
        return self._statements.schema

    @property
    def bound_to(self) -> str | None:
        """The breaker of its type."""
        return self._handled.handler.breaker

    @property
    def canceled(self) -> bool:
        return self._thread.has_lost(self)

    @property
    def stopping(self) -> bool:
        return self._thread.is_stopping

    def seconds_left(self) -> float:
        return max(0.0, self.due - time.monotonic())

    def count_denied(self) -> None:
        self._thread.count_denied()

    def forward(self, headers: Mapping[str, str]) -> ForwardedHeaders:
        self._forwarded = forward(headers, self._handled.forward_headers)
        return self._forwarded

    def _reply_headers(self) -> str | None:
        """See Finished. Called only if something asked for `context.headers`."""
        if self._forwarded is None or self.claim.reply_to is None:
            return None
        return reply_headers(self._forwarded, self.claim.headers)
