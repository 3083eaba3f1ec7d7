"""One execution, as Sentry sees it: with a scope of its own, so that nothing of it gets into the
events of another one; with a span, if tracing is on; and with an event, if it fails."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import sentry_sdk

from cmdbus.command import Command
from cmdbus.command_log import fields_of
from cmdbus.context import Context
from cmdbus.sentry import events, tracing
from cmdbus.sentry.attempts import Attempt, Attempts
from cmdbus.sentry.options import Options
from cmdbus.sentry.redaction import excerpt, hide_values, redact
from cmdbus.surroundings import execution_of

#: Ends of the span, by the status of the outcome.
_STATUSES = {
    "COMPLETED": tracing.OK,
    "AGAIN": tracing.OK,
    "DEFERRED": tracing.PUT_OFF,
    "FAILED": tracing.REFUSED,
}


class ExecutionScope:
    def __init__(
        self, command: Command, context: Context, options: Options, attempts: Attempts
    ) -> None:
        self._command, self._context = command, context
        self._options, self._attempts = options, attempts
        self._attempt = Attempt(command.command_id, context.attempt)
        self._isolation = sentry_sdk.isolation_scope()
        self._span: tracing.Span | None = None

    def __enter__(self) -> None:
        self._scope = scope = self._isolation.__enter__()
        scope.clear_breadcrumbs()  # of the thread
        scope.add_event_processor(self._complete)
        headers, name = self._command.headers, f"{self._command.domain}/{self._command.type}"
        if tracing.is_on():
            self._span = tracing.process(name, self._attributes(), headers, self._fields())
            if self._options.propagate_traces and self._command.reply_to is not None:
                with suppress(ValueError):  # There is no room for more headers.
                    self._context.headers.update(tracing.propagated())
        else:
            scope.set_transaction_name(name, source="task")
            tracing.continue_trace(headers)
        self._attempts.begin(self._attempt, scope)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        outcome = self._context.outcome
        try:
            self._attempts.end(self._attempt, self._scope)
            if error is not None and outcome is not None:
                self._report(error, outcome.status, outcome.code)
        finally:
            if self._span is not None:
                status = "" if outcome is None else outcome.status
                self._span.end(_STATUSES.get(status, tracing.FAILED))
            self._isolation.__exit__(None, None, None)
            del self._scope  # It has the execution, as the one that completes its events.

    def _report(self, error: BaseException, status: str, code: str | None) -> None:
        options, command = self._options, self._command
        if not events.is_reported(status, options):
            return
        if self._context.canceled:  # What it raises does not count: it may have timed out.
            self._attempts.keep(self._attempt, self._scope)
            return
        event, hint = events.of_exception(
            error, sentry_sdk.get_client().options, variables=options.send_payloads
        )
        event |= events.about(command.domain, command.type, status, code)
        self._attempts.keep(self._attempt, None)
        sentry_sdk.capture_event(event, hint=hint)

    def _complete(self, event: Any, hint: Any) -> Any:
        """Any event of this execution, also those that the application captures."""
        fields, headers = self._fields(), self._command.headers
        tags = {name: fields[name] for name in events.TAGS}
        tags |= {name: headers[name] for name in self._options.header_tags if name in headers}
        event["tags"] = tags | (event.get("tags") or {})
        contexts = event.setdefault("contexts", {})
        contexts["command"] = {**(contexts.get("command") or {}), **fields, **self._facts()}
        if not event.get("type"):  # no transaction
            self._show_data(event)
        return event

    def _show_data(self, event: Any) -> None:
        options = sentry_sdk.get_client().options
        if self._options.send_payloads:
            extra = event.setdefault("extra", {})
            extra["data"] = excerpt(self._command.data, options["event_scrubber"])
        else:
            redact(event, options, everywhere=True)
            hide_values(event)

    def _fields(self) -> dict[str, object]:
        about = self._command
        ids = about.command_id, about.domain, about.type, about.correlation_id
        return fields_of(*ids, self._context.attempt)

    def _facts(self) -> Mapping[str, object]:
        """Headers are shown by their names: their values may be anything."""
        about = self._command
        return {
            "max_attempts": self._context.max_attempts,
            "priority": about.priority,
            "created_at": about.created_at.isoformat(),
            "reply_to": about.reply_to,
            "headers": sorted(about.headers),
            "worker": execution_of(self._context).worker,
        }

    def _attributes(self) -> tracing.Attributes:
        return {
            "messaging.system": "cmdbus",
            "messaging.message.id": str(self._command.command_id),
            "messaging.destination.name": self._command.domain,
            "messaging.message.retry.count": self._context.attempt - 1,
            "messaging.message.receive.latency": execution_of(self._context).waited * 1000,
        }
