"""What an application gives to `sentry_sdk.init`."""

from collections.abc import Sequence
from typing import Any

import sentry_sdk
from sentry_sdk.integrations import Integration
from sentry_sdk.integrations.logging import ignore_logger
from sentry_sdk.scope import add_global_event_processor

from cmdbus import instruments
from cmdbus.checks import check_flag
from cmdbus.headers import check_header_name
from cmdbus.sentry.instrument import SentryInstrument
from cmdbus.sentry.options import IDENTIFIER, Options, options
from cmdbus.sentry.redaction import redact

#: The logger of the ends of executions: there is an event for each that has failed.
ENDS = "cmdbus.worker.claims.ends"


class CmdbusIntegration(Integration):
    """For `sentry_sdk.init(integrations=[CmdbusIntegration()])`, in programs that send, and in the
    module of the registry, which each process of a fleet imports."""

    identifier = IDENTIFIER

    def __init__(
        self,
        *,
        send_payloads: bool = False,
        business_rule_errors: bool = False,
        propagate_traces: bool = True,
        header_tags: Sequence[str] = (),
    ) -> None:
        """`send_payloads`: events show the beginning of the command's data, and the variables of
        the application's frames. `business_rule_errors`: also a BusinessRuleError is an event.
        `propagate_traces`: commands carry the trace in which they are sent, if tracing is on.
        `header_tags`: names of headers whose values are tags of events."""
        if not isinstance(header_tags, list | tuple):
            raise ValueError(f"header_tags must be a list of names, not {header_tags!r:.80}")
        self.options = Options(
            check_flag("send_payloads", send_payloads),
            check_flag("business_rule_errors", business_rule_errors),
            check_flag("propagate_traces", propagate_traces),
            tuple(check_header_name(name, "a name in header_tags") for name in header_tags),
        )

    @staticmethod
    def setup_once() -> None:
        """Called by the SDK for the first client of a process that has the integration."""
        instruments.install(SentryInstrument())
        add_global_event_processor(_without_own_variables)
        ignore_logger(ENDS)


def _without_own_variables(event: Any, hint: Any) -> Any:
    """Also outside of executions: the frames of a send have its data."""
    if not event.get("type") and options() is not None:
        redact(event, sentry_sdk.get_client().options, everywhere=False)
    return event
