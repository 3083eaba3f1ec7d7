"""The demo's application: a command of every kind, those that misbehave among them.

It runs when neither an application nor a database is named; report.py prints the outcomes.
"""

import resource
import signal
import threading
from typing import Any

from cmdbus.clock import time
from cmdbus.command import Command
from cmdbus.context import Context
from cmdbus.database.statements import statement
from cmdbus.errors import BusinessRuleError, PermanentCommandError, TransientCommandError
from cmdbus.registry import HandlerRegistry
from cmdbus.retry import RetryPolicy

DOMAIN = "demo"
#: Seconds before a second attempt: short, because a user watches.
BACKOFF = 0.5
_SOON = RetryPolicy(max_attempts=3, backoff=(BACKOFF,), jitter=0.0)

registry = HandlerRegistry()


@registry.handler(DOMAIN, "Quick")
def quick(command: Command, context: Context) -> dict[str, Any]:
    return {"square": command.data["n"] ** 2}


@registry.handler(DOMAIN, "Slow", timeout=120.0)
def slow(command: Command, context: Context) -> None:
    time.sleep(command.data["seconds"])


@registry.handler(DOMAIN, "Transfer", retry=_SOON)
def transfer(command: Command, context: Context) -> None:
    """Writes in the transaction that completes the command; some fail after that, once."""
    values = {"command_id": command.command_id, "amount": command.data["amount"]}
    context.connection.execute(statement("demo_transfer", "cmdbus"), values)
    if command.data["fails"] and context.attempt == 1:
        raise TransientCommandError("DEMO_FAILURE", "it fails after it has written, as it should")


@registry.handler(DOMAIN, "Flaky", retry=_SOON)
def flaky(command: Command, context: Context) -> None:
    if context.attempt == 1:
        raise TransientCommandError("DEMO_FAILURE", "the first attempt fails, as it should")


@registry.handler(DOMAIN, "Overdraw")
def overdraw(command: Command, context: Context) -> None:
    raise BusinessRuleError("LIMIT_EXCEEDED", f"{command.data['amount']} is more than is allowed")


@registry.handler(DOMAIN, "Mistake")
def mistake(command: Command, context: Context) -> None:
    account = command.data["account"]
    raise PermanentCommandError("NO_SUCH_ACCOUNT", f"there is no account {account!r}: which one?")


@registry.handler(DOMAIN, "Later")
def later(command: Command, context: Context) -> None:
    pass


@registry.handler(DOMAIN, "Hang", retry=_SOON)
def hang(command: Command, context: Context) -> None:
    if context.attempt == 1:
        threading.Event().wait()


@registry.handler(DOMAIN, "Crash")
def crash(command: Command, context: Context) -> None:
    """As a library in C would do it; without a core dump."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.raise_signal(signal.SIGSEGV)
