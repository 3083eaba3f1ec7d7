"""How an execution ended, and what becomes of its command. Pure: the dice are passed in."""

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from cmdbus.data import encode
from cmdbus.errors import (
    BusinessRuleError,
    CommandError,
    PermanentCommandError,
    TransientCommandError,
)
from cmdbus.retry import RetryPolicy

#: Error texts are cut to so many characters before they are stored.
MAX_MESSAGE = 2_000
MAX_TRACEBACK = 20_000
MAX_DETAILS = 20_000
#: So many executions without an outcome (a crash, a lost session or node) make a command a suspect,
#: which a fleet runs in a process of its own; and so many are troubleshooting.
SUSPECT_LOSSES = 2
MAX_LOSSES = 3


_CLASS_NAME = type.__dict__["__name__"]
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


class OutcomeKind(StrEnum):
    """Where the command goes; see settle in the schema."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    RETRY = "RETRY"
    TROUBLE = "TROUBLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    kind: OutcomeKind
    #: Whether the execution counts against max_attempts.
    charged: bool = True
    #: Whether it counts a loss: so many of them, and a person decides. None: unless the server
    #: was restarted meanwhile.
    lost: bool | None = False
    #: JSON text.
    result: str | None = None
    #: Seconds until the next try.
    delay: float | None = None
    code: str | None = None
    message: str | None = None
    #: JSON text: reason, details, traceback.
    details: str | None = None


#: The result of most handlers.
_NOTHING = Outcome(kind=OutcomeKind.COMPLETED, result="null")


def completed(result: object) -> Outcome:
    """A ValueError says that the result cannot be stored: then the execution has failed."""
    return (
        _NOTHING
        if result is None
        else Outcome(kind=OutcomeKind.COMPLETED, result=encode(result, what="result"))
    )


def failed(
    error: BaseException,
    traceback: str,
    *,
    attempt: int,
    max_attempts: int,
    policy: RetryPolicy,
    retry_after: float | None,
    rand: float,
) -> Outcome:
    """What the `attempt`-th execution's error means: again later, failed, or a person decides."""
    if isinstance(error, BusinessRuleError):
        kind, reason = OutcomeKind.FAILED, "BUSINESS_RULE"
    elif isinstance(error, PermanentCommandError):
        kind, reason = OutcomeKind.TROUBLE, "PERMANENT"
    elif attempt >= max_attempts:
        kind, reason = OutcomeKind.TROUBLE, "EXHAUSTED"
    else:
        kind, reason = OutcomeKind.RETRY, "TRANSIENT"
    if isinstance(error, TransientCommandError) and error.retry_after is not None:
        retry_after = error.retry_after
    delay = policy.delay(attempt, rand) if retry_after is None else retry_after
    expected = isinstance(error, CommandError)
    return Outcome(
        kind=kind,
        delay=delay if kind is OutcomeKind.RETRY else None,
        code=_text(error.code if isinstance(error, CommandError) else class_name(error), 100),
        message=_message(error),
        details=_details(
            reason,
            error.details if isinstance(error, CommandError) else None,
            None if expected else traceback,
        ),
    )


def troubled(code: str, message: str) -> Outcome:
    """Not executed, and not to be: a person decides."""
    return Outcome(
        kind=OutcomeKind.TROUBLE, charged=False, code=code, message=message, details=_details(code)
    )


def interrupted(code: str, message: str, delay: float, *, lost: bool | None) -> Outcome:
    """The execution was cut off by something that is not its failure; uncharged. `lost` if
    the command itself may be what cut it off."""
    return Outcome(
        kind=OutcomeKind.RETRY,
        charged=False,
        lost=lost,
        delay=delay,
        code=code,
        message=_text(message, MAX_MESSAGE),
        details=_details("INTERRUPTED"),
    )


def not_to_be_run(attempts: int, max_attempts: int, losses: int) -> Outcome | None:
    """The limits, looked at when a command was claimed: a command that kills its process
    never comes to report it."""
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
    """Of any object: its class may have another name for those who ask it."""
    return str(_CLASS_NAME.__get__(type(value)))


def _message(error: BaseException) -> str:
    try:
        text = error.message if isinstance(error, CommandError) else str(error)
    except BaseException as second:
        text = f"(its message could not be made: {class_name(second)})"
    return _text(text, MAX_MESSAGE)


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


def _details(reason: str, details: object = None, traceback: str | None = None) -> str:
    resolution: dict[str, object] = {"reason": reason}
    if details is not None:
        try:
            encode(details, what="details", max_bytes=MAX_DETAILS)
            resolution["details"] = details
        except ValueError as error:
            resolution["details"] = f"(not kept: {error})"
    if traceback is not None:
        # The end says where it happened.
        resolution["traceback"] = _text(traceback[-MAX_TRACEBACK:], MAX_TRACEBACK)
    return encode(resolution)
