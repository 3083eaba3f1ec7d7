"""cmdbus in Sentry: an event for each failed attempt with the command that it is about, and traces
from a send to the executions of its commands.

    CmdbusIntegration   for sentry_sdk.init(integrations=[...])

Needs the extra `sentry`. Imported by applications, and by nothing of cmdbus. Imports only the root
of cmdbus: a program that sends loads no worker.
"""

try:
    import sentry_sdk  # noqa: F401
except ImportError as error:
    raise ImportError(
        "cmdbus.sentry needs the extra sentry: pip install 'cmdbus[sentry]'"
    ) from error

from cmdbus.sentry.integration import CmdbusIntegration

__all__ = ["CmdbusIntegration"]
