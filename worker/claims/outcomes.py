"""How an execution ended, and what becomes of its command. Pure: random numbers are passed in."""

import math
import re
import sys
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum

from cmdbus.checks import MAX_SECONDS
from cmdbus.data import encode
from cmdbus.errors import (
    BusinessRuleError,
    CommandError,
    PayloadInvalidError,
    PermanentCommandError,
    TransientCommandError,
)
from cmdbus.payloads.forms import Encoder
from cmdbus.retry import MAX_LOSSES, RetryPolicy

#: Characters to which error texts are cut before they are stored.
MAX_MESSAGE = 2_000
MAX_TRACEBACK = 20_000
MAX_DETAILS = 20_000
MAX_CLASS_PATH = 500

#: Seconds until a command that another worker must run is tried again: a share of its age, within
#: bounds.
_MIN_ELSEWHERE, _ELSEWHERE_SHARE, _MAX_ELSEWHERE = 5.0, 0.2, 600.0
#: Seconds until a command runs again that was given back where it had begun.
_NO_FURTHER = 1.0

_CLASS_NAME = type.__dict__["__name__"]
_CLASS_PATH = type.__dict__["__module__"], type.__dict__["__qualname__"]
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


class OutcomeKind(StrEnum):
    """See settle in the schema."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    RETRY = "RETRY"
    TROUBLE = "TROUBLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    kind: OutcomeKind
    #: Whether the execution counts against max_attempts.
    charged: bool = True
    #: Whether the execution counts as a loss; None: only if the server did not restart meanwhile.
    lost: bool | None = False
    #: JSON text.
    result: str | None = None
    #: Seconds until the next try.
    delay: float | None = None
    code: str | None = None
    message: str | None = None
    #: JSON text: reason, details, exception, traceback. Without it there is no event.
    details: str | None = None


#: The result of most handlers.
_NOTHING = Outcome(kind=OutcomeKind.COMPLETED, result="null")


def completed(result: object, encoder: Encoder | None = None) -> Outcome:
    """Raises a ValueError if the result cannot be stored."""
    if result is None:
        return _NOTHING
    text = encode(result, what="result", encoder=encoder, read_again=False)
    return Outcome(kind=OutcomeKind.COMPLETED, result=text)


def failed(
    error: BaseException,
    traceback: str,
    *,
    attempt: int,
    max_attempts: int,
    policy: RetryPolicy,
    retry_after: float | None,
    rand: float,
    encoder: Encoder | None = None,
) -> Outcome:
    """The outcome of the `attempt`-th execution, which raised this error; or, without a traceback,
    of one that was given up with it."""
    if isinstance(error, PayloadInvalidError):
        return troubled("PAYLOAD_INVALID", _message(error))
    if isinstance(error, BusinessRuleError):
        kind, reason = OutcomeKind.FAILED, "BUSINESS_RULE"
    elif isinstance(error, PermanentCommandError):
        kind, reason = OutcomeKind.TROUBLE, "PERMANENT"
    elif attempt >= max_attempts:
        kind, reason = OutcomeKind.TROUBLE, "EXHAUSTED"
    else:
        kind, reason = OutcomeKind.RETRY, "TRANSIENT"
    if isinstance(error, TransientCommandError) and error.retry_after is not None:
        retry_after = _storable_pause(error.retry_after)
    delay = policy.delay(attempt, rand) if retry_after is None else retry_after
    own = error if isinstance(error, CommandError) else CommandError("", "")
    return Outcome(
        kind=kind,
        delay=delay if kind is OutcomeKind.RETRY else None,
        code=_text(own.code or class_name(error), 100),
        message=_message(error),
        details=_details(
            reason, own.details, class_path(error) if traceback else None, traceback, encoder
        ),
    )


def within_middleware(outcome: Outcome, name: str) -> Outcome:
    """The outcome of an error that a middleware has raised, and not the handler."""
    message = _text(f"in the middleware {name}: {outcome.message}", MAX_MESSAGE)
    return replace(outcome, message=message)


def troubled(code: str, message: str) -> Outcome:
    """The outcome of a command that must not be executed: an operator decides."""
    return Outcome(
        kind=OutcomeKind.TROUBLE, charged=False, code=code, message=message, details=_details(code)
    )


def interrupted(code: str, message: str, delay: float, *, lost: bool | None) -> Outcome:
    """The outcome of an execution that something else cut off; uncharged. `lost` if the command
    itself may have done so."""
    return Outcome(
        kind=OutcomeKind.RETRY,
        charged=False,
        lost=lost,
        delay=delay,
        code=code,
        message=_text(message, MAX_MESSAGE),
        details=_details("INTERRUPTED"),
    )


def deferred(code: str, message: str, delay: float) -> Outcome:
    """The outcome of an execution that has found that its command must wait; uncharged, and without
    an event, as there may be many in a row."""
    return replace(interrupted(code, message, delay, lost=False), details=None)


def elsewhere_in(age: timedelta) -> float:
    """Seconds until another worker may run a command of this age; longer and longer, as each try
    leaves an event."""
    return min(max(_MIN_ELSEWHERE, age.total_seconds() * _ELSEWHERE_SHARE), _MAX_ELSEWHERE)


def given_back(delay: float, *, got_further: bool = True) -> Outcome:
    """The outcome of an execution whose handler wants to go on in another one: uncharged, and
    without an error and an event. One that has not got further waits a while, as nothing else
    bounds how often it runs."""
    pause = delay if got_further else max(delay, _NO_FURTHER)
    return Outcome(kind=OutcomeKind.RETRY, charged=False, delay=pause)


def not_to_be_run(attempts: int, max_attempts: int, losses: int) -> Outcome | None:
    """Checks the limits before an execution, as a command that kills its process reports none."""
    if attempts >= max_attempts:
        return troubled("EXHAUSTED", f"all {max_attempts} attempts are used up")
    if losses >= MAX_LOSSES:
        return troubled(
            "LOST",
            f"{losses} of its executions ended without an outcome, together with their process or "
            f"their database session",
        )
    return None


def with_ascii_texts(outcome: Outcome) -> Outcome:
    """With error texts that a server of any encoding can hold. A result stays as it is: the server
    rejects one with a character that its encoding lacks."""
    code, message, details = outcome.code, outcome.message, outcome.details
    # JSON that names such a character is rejected, too: the backslash is escaped in turn.
    return replace(
        outcome,
        code=code and _ascii(code),
        message=message and _ascii(message),
        details=details and _NOT_ASCII.sub(lambda found: "\\" + _ascii(found[0]), details),
    )


def class_name(value: object) -> str:
    """The real name of an object's class, which may have overridden `__name__`."""
    return str(_CLASS_NAME.__get__(type(value)))


def class_path(error: BaseException) -> str:
    """Module and name of its class or, if that is in a function or another class, of its nearest
    base class that can be imported."""
    for kind in type(error).__mro__:
        module, name = (attribute.__get__(kind) for attribute in _CLASS_PATH)
        if (
            isinstance(module, str)
            and module != "__main__"
            and getattr(sys.modules.get(module), "__dict__", {}).get(name) is kind
        ):
            return f"{module}.{name}"
    raise AssertionError("each exception is a BaseException, which is in builtins")


def _message(error: BaseException) -> str:
    try:
        if isinstance(error, CommandError):
            text = error.message or Exception.__str__(error)
        else:
            text = str(error)
    except BaseException as second:
        text = f"(its message could not be made: {class_name(second)})"
    return _text(text, MAX_MESSAGE)


def _storable_pause(seconds: object) -> float | None:
    """The nearest pause that can be stored; None for anything but a number of seconds."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    pause = float(min(max(seconds, 0), MAX_SECONDS))
    return None if math.isnan(pause) else pause


def _text(text: object, limit: int) -> str:
    """What PostgreSQL can hold, cut to a limit."""
    try:
        cut = str(text)[: limit + 1]
    except BaseException:
        cut = f"(a {class_name(text)})"
    cut = cut.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
    return cut if len(cut) <= limit else f"{cut[: limit - 3]}..."


def ascii_text(text: str, limit: int) -> str:
    """What a database of any encoding can hold, cut to a limit."""
    return _text(_ascii(text), limit)


def _ascii(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()


def _details(
    reason: str,
    details: object = None,
    exception: str | None = None,
    traceback: str = "",
    encoder: Encoder | None = None,
) -> str:
    kept: dict[str, object] = {"reason": reason}
    if details is not None:
        try:
            encode(
                details,
                what="details",
                max_bytes=MAX_DETAILS,
                encoder=encoder,
                read_again=False,
            )
            kept["details"] = details
        except ValueError as error:
            kept["details"] = f"(not kept: {error})"
    if exception is not None:
        kept["exception"] = _text(exception, MAX_CLASS_PATH)
        # The end shows where it happened.
        kept["traceback"] = _text(traceback[-MAX_TRACEBACK:], MAX_TRACEBACK)
    return encode(kept, encoder=encoder, read_again=False)
