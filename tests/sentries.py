"""The SDK of Sentry in a test's own process, with a transport that keeps what it would send."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sentry_sdk
from sentry_sdk import integrations, scope
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.dedupe import DedupeIntegration
from sentry_sdk.integrations.logging import _IGNORED_LOGGERS, LoggingIntegration
from sentry_sdk.transport import Transport

from cmdbus import instruments
from cmdbus.sentry import CmdbusIntegration
from cmdbus.sentry.integration import ENDS

DSN = "http://key@localhost/1"


class Sentry(Transport):
    """What was sent."""

    def __init__(self) -> None:
        super().__init__()
        self._envelopes: list[Envelope] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self._envelopes.append(envelope)

    @property
    def events(self) -> list[Any]:
        """Without transactions."""
        return [event for each in self._envelopes if (event := each.get_event()) is not None]

    @property
    def transactions(self) -> list[Any]:
        found = [each.get_transaction_event() for each in self._envelopes]
        return [each for each in found if each is not None]

    @property
    def spans(self) -> list[Any]:
        """Those that are streamed."""
        sentry_sdk.flush()
        items = [item for each in self._envelopes for item in each.items]
        lists = [item.payload.json for item in items if item.type == "span"]
        return [span for each in lists if each is not None for span in each["items"]]

    @property
    def text(self) -> str:
        return "\n".join(each.serialize().decode() for each in self._envelopes)

    def clear(self) -> None:
        self._envelopes.clear()


@contextmanager
def sentry(integration: CmdbusIntegration | None = None, /, **options: Any) -> Iterator[Sentry]:
    """With the default integrations that may make a second event of an error, and no other: they
    change the process. Everything is as before at the end."""
    taken = Sentry()
    installed = instruments.installed
    known = [*integrations._processed_integrations], [*integrations._installed_integrations]
    processors = [*scope.global_event_processors]
    call_handlers = logging.Logger.callHandlers
    given = [integration or CmdbusIntegration(), LoggingIntegration(), DedupeIntegration()]
    sentry_sdk.init(
        dsn=DSN,
        transport=taken,
        default_integrations=False,
        auto_enabling_integrations=False,
        enable_backpressure_handling=False,  # which would be another thread
        **{"integrations": given, **options},
    )
    try:
        yield taken
    finally:
        sentry_sdk.get_client().close()
        sentry_sdk.get_global_scope().set_client(None)
        integrations._processed_integrations = {*known[0]}
        integrations._installed_integrations = {*known[1]}
        scope.global_event_processors[:] = processors
        logging.Logger.callHandlers = call_handlers  # type: ignore[method-assign]
        _IGNORED_LOGGERS.discard(ENDS)
        for each in {*instruments.installed} - {*installed}:
            instruments.remove(each)
