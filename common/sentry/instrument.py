"""What Sentry gets of sends, executions and settlements."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import sentry_sdk
from sentry_sdk.scope import use_isolation_scope

from cmdbus.command import Command
from cmdbus.context import Context
from cmdbus.instruments import EndedExecution, Instrument, Request, Sending
from cmdbus.sentry import events, tracing
from cmdbus.sentry.attempts import Attempt, Attempts
from cmdbus.sentry.execution_scope import ExecutionScope
from cmdbus.sentry.options import options
from cmdbus.sentry.redaction import hide_values
from cmdbus.sentry.send_span import SendSpan


class SentryInstrument(Instrument):
    """Does nothing while the current client has no CmdbusIntegration."""

    def __init__(self) -> None:
        self._attempts = Attempts()

    def sending(
        self, requests: Sequence[Request], operation: str
    ) -> AbstractContextManager[Sending]:
        asked = options()
        if asked is None or not tracing.is_on():
            return nullcontext(Sending())
        return SendSpan(requests, operation, propagate=asked.propagate_traces)

    def executing(self, command: Command, context: Context) -> AbstractContextManager[object]:
        asked = options()
        if asked is None:
            return nullcontext()
        return ExecutionScope(command, context, asked, self._attempts)

    def settled(self, ended: EndedExecution) -> None:
        if ended.outcome == "COMPLETED":
            return
        attempt = Attempt(ended.command_id, ended.attempt)
        has_event, scope = self._attempts.settled(attempt)
        asked = options()
        # Without a code another thread has settled it, and reports it.
        if has_event or asked is None or ended.code is None:
            return
        if not events.is_reported(ended.status, asked):
            return
        event = events.of_ended(ended)
        if not asked.send_payloads:
            hide_values(event)
        with use_isolation_scope(scope or sentry_sdk.get_isolation_scope()):
            sentry_sdk.capture_event(event)

    def flush(self, seconds: float) -> None:
        if options() is not None:
            sentry_sdk.flush(timeout=seconds)
