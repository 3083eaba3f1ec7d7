"""What the application's code gets, and what becomes of its result and of its forks."""

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC
from typing import Any

from cmdbus.command import Command, received
from cmdbus.errors import TransientCommandError
from cmdbus.headers import NO_HEADERS
from cmdbus.payloads.forms import Encoder
from cmdbus.worker.claims.claim import Claim
from cmdbus.worker.claims.outcomes import Outcome, completed

#: Modules whose frames lie between a worker and an application's code.
_CALLERS = tuple(
    f"cmdbus.{name}"
    for name in (
        *("worker.execution.execution", "worker.execution.application_code", "surroundings"),
        *("middleware", "instrument_hooks", "typed_handlers"),
    )
)


def command_of(claim: Claim, data: Any) -> Command:
    """The command as its handler gets it, with its decoded data."""
    reply_to, headers = claim.reply_to_and_headers, NO_HEADERS
    if reply_to is not None:
        reply_to, headers = claim.reply_to, claim.headers
    return received(
        claim.domain,
        claim.type,
        claim.command_id,
        data,
        claim.priority,
        claim.other_correlation_id or claim.command_id,
        reply_to,
        claim.created_at.astimezone(UTC),
        headers,
    )


def run_after(prepare: Callable[[], object], run: Callable[..., Any], *arguments: object) -> Any:
    """Both in one copy of the context variables, which the caller must keep in none of its own: the
    application may put an error there, whose traceback has the frames of the callers."""
    prepare()
    return run(*arguments)


def traceback_of(error: BaseException) -> str:
    """From the application's code on, if there is any: each middleware and instrument would add
    frames before it, which are the same for all errors."""
    began = trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__") in _CALLERS:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace or began))


def leave_fork() -> None:
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


def storable(result: object, encoder: Encoder | None) -> Outcome:
    """The outcome of a handler that has returned this."""
    try:
        return completed(result, encoder)
    except ValueError as error:
        raise TransientCommandError("RESULT_NOT_STORABLE", str(error)) from error
