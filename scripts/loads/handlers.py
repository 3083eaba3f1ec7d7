"""What the instances run: an app with a handler for every type of a workload."""

import hashlib
import time

from cmdbus import (
    BusinessRuleError,
    Command,
    Context,
    HandlerRegistry,
    PermanentCommandError,
    RetryPolicy,
    TransientCommandError,
)
from loads.runs import recorded
from loads.workloads import DOMAIN

EFFECTS = "CREATE TABLE effect (command_id uuid NOT NULL)"

_IO_S = 0.02
_CPU_S = 0.001
_LONG_S = 2.0
#: A thread that is late comes back by itself, a while after it was given up.
_TIMEOUT_S, _LATE_S = 1.0, 1.5
_BLOCK = bytes(4096)

_SOON = RetryPolicy(max_attempts=3, backoff=(0.05,), jitter=0.0)
_ONCE = RetryPolicy(max_attempts=1)

registry = HandlerRegistry()


@registry.handler(DOMAIN, "Noop")
@recorded
def noop(command: Command, context: Context) -> None:
    return None


@registry.handler(DOMAIN, "Io")
@recorded
def io(command: Command, context: Context) -> None:
    time.sleep(_IO_S)


@registry.handler(DOMAIN, "Cpu")
@recorded
def cpu(command: Command, context: Context) -> None:
    until = time.thread_time() + _CPU_S
    while time.thread_time() < until:
        hashlib.sha256(_BLOCK).digest()


@registry.handler(DOMAIN, "Tx")
@recorded
def tx(command: Command, context: Context) -> None:
    context.connection.execute("INSERT INTO effect VALUES (%s)", (command.command_id,))


@registry.handler(DOMAIN, "Long")
@recorded
def long(command: Command, context: Context) -> None:
    time.sleep(_LONG_S)


@registry.handler(DOMAIN, "Transient", retry=_SOON)
@recorded
def transient(command: Command, context: Context) -> None:
    if context.attempt < context.max_attempts:
        raise TransientCommandError("TRANSIENT", "not yet")


@registry.handler(DOMAIN, "Exhausted", retry=_SOON)
@recorded
def exhausted(command: Command, context: Context) -> None:
    raise TransientCommandError("TRANSIENT", "never")


@registry.handler(DOMAIN, "Permanent")
@recorded
def permanent(command: Command, context: Context) -> None:
    raise PermanentCommandError("PERMANENT", "a person must look")


@registry.handler(DOMAIN, "Rule")
@recorded
def rule(command: Command, context: Context) -> None:
    raise BusinessRuleError("RULE", "not allowed")


@registry.handler(DOMAIN, "Timeout", timeout=_TIMEOUT_S, retry=_ONCE)
@recorded
def timeout(command: Command, context: Context) -> None:
    time.sleep(_LATE_S)
