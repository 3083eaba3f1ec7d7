"""Calls in threads of tests, and a handler that gives them each outcome."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from eventually import eventually

from cmdbus import (
    BusinessRuleError,
    Command,
    CommandBus,
    Context,
    PermanentCommandError,
    RetryPolicy,
    TransientCommandError,
)

#: Sessions that listen for calls.
LISTENING = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND query ~ '^LISTEN [a-z_]+_c[0-9a-f]+;'"
)


SOON = RetryPolicy(max_attempts=3, backoff=(0.01,), jitter=0.0)


def answer(command: Command, context: Context) -> Any:
    """The outcome that the data names."""
    match command.data:
        case {"fail": "rule"}:
            raise BusinessRuleError("NO_FUNDS", "too little", {"lacks": 5})
        case {"fail": "permanent"}:
            raise PermanentCommandError("GONE", "no such account", [1])
        case {"fail": "bug"}:
            raise ZeroDivisionError("a bug")
        case {"fail": "once"} if context.attempt == 1:
            raise TransientCommandError("BUSY", "later")
        case {"write": result}:
            context.connection.execute("SELECT 1")
            return result
        case data:
            return data


@contextmanager
def calling(
    bus: CommandBus, data: Any = None, domain: str = "payments", **options: Any
) -> Iterator["Future[Any]"]:
    """A call in a thread of its own."""
    with ThreadPoolExecutor(1) as threads:
        yield threads.submit(bus.call, domain, "Debit", data, **{"timeout": 20, **options})


def called_id(bus: CommandBus, status: str | None = None) -> UUID:
    """The only command there is, once it is in this state."""
    [record] = eventually(lambda: bus.query(status=status))
    return record.command_id


def is_heard(bus: CommandBus) -> bool:
    return any(listener.hears for listener in bus._calls._listeners.values())
