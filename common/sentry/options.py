"""What an application has asked for, as its client of Sentry has it at the moment."""

from dataclasses import dataclass

import sentry_sdk

#: The name by which the SDK knows the integration.
IDENTIFIER = "cmdbus"


@dataclass(frozen=True, slots=True)
class Options:
    """See CmdbusIntegration."""

    send_payloads: bool = False
    business_rule_errors: bool = False
    propagate_traces: bool = True
    header_tags: tuple[str, ...] = ()


def options() -> Options | None:
    """None if the client was initialized without the integration, or does not send."""
    integration = sentry_sdk.get_client().get_integration(IDENTIFIER)
    return getattr(integration, "options", None)
