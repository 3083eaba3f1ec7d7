"""Names of OpenTelemetry's messaging conventions, and those that cmdbus adds. Pure."""

from collections.abc import Mapping
from functools import lru_cache

SYSTEM = "messaging.system"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
DESTINATION = "messaging.destination.name"
MESSAGE_ID = "messaging.message.id"
CONVERSATION_ID = "messaging.message.conversation_id"
MESSAGE_COUNT = "messaging.batch.message_count"
ERROR_TYPE = "error.type"
EXCEPTION_TYPE = "exception.type"
EXCEPTION_MESSAGE = "exception.message"
EXCEPTION_STACKTRACE = "exception.stacktrace"

COMMAND_TYPE = "cmdbus.command.type"
METHOD = "cmdbus.method"
BATCH_ID = "cmdbus.batch.id"
PROCESS_ID = "cmdbus.process.id"
ATTEMPT = "cmdbus.attempt"
MAX_ATTEMPTS = "cmdbus.max_attempts"
PRIORITY = "cmdbus.priority"
OUTCOME = "cmdbus.outcome"
DELAY = "cmdbus.delay"

CMDBUS = "cmdbus"
#: The value of `error.type` once a process has met its limit of different ones.
OTHER = "_OTHER"
#: Different values of `error.type` in the metrics of a process.
MAX_ERROR_TYPES = 100
#: Seconds; boundaries that the conventions advise.
SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

#: Outcomes of failed attempts.
FAILURES = frozenset(["RETRY", "FAILED", "TROUBLESHOOTING"])


@lru_cache(maxsize=1024)
def operation(
    name: str,
    domain: str | None,
    kind: str | None,
    outcome: str | None = None,
    error: str | None = None,
) -> Mapping[str, str]:
    """Attributes of a span or a measurement; `name` is one of send, queue, wait, call, process
    and settle, `domain` and `kind` those of the commands, if all have the same ones."""
    found = {
        SYSTEM: CMDBUS,
        OPERATION_NAME: name,
        OPERATION_TYPE: name if name in _TYPES else None,
        DESTINATION: domain,
        COMMAND_TYPE: kind,
        OUTCOME: outcome,
        ERROR_TYPE: error,
    }
    return {name: value for name, value in found.items() if value is not None}


#: Operations that the conventions know.
_TYPES = frozenset(["send", "process", "settle"])


def span_name(name: str, domain: str | None) -> str:
    return name if domain is None else f"{name} {domain}"


class ErrorTypes:
    """Codes are an application's own, and may be any number."""

    def __init__(self, limit: int = MAX_ERROR_TYPES) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def bounded(self, error_type: str) -> str:
        if error_type in self._known:
            return error_type
        if len(self._known) >= self._limit:
            return OTHER
        self._known.add(error_type)
        return error_type
