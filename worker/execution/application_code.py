"""How a worker calls the application's code."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from datetime import UTC
from typing import Any, TypeVar

from cmdbus.command import Command, received
from cmdbus.worker.claims.claim import Claim

Result = TypeVar("Result")


def command_of(claim: Claim, data: Any) -> Command:
    """The command as its handler gets it, with its decoded data."""
    return received(
        claim.domain,
        claim.type,
        claim.command_id,
        data,
        claim.priority,
        claim.correlation_id,
        claim.reply_to,
        claim.created_at.astimezone(UTC),
    )


def call(pid: int, function: Callable[..., Result], *arguments: object) -> Result:
    """Calls it in a copy of the context, so that the values that it sets for itself end with it.
    `pid` is the worker's: the function may fork."""
    try:
        return copy_context().run(function, *arguments)
    finally:
        if os.getpid() != pid:
            _leave_fork()


def _leave_fork() -> None:
    """Ends a process that the handler forked and that has returned from the handler: it must not
    touch anything that it shares with the worker."""
    error = sys.exception()
    code = 0 if error is None else 1
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    with suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code & 0xFF)
