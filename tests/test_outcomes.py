"""What an execution's end means for its command, as values."""

import json

import pytest

from cmdbus import BusinessRuleError, PermanentCommandError, RetryPolicy, TransientCommandError
from cmdbus.checks import MAX_SECONDS
from cmdbus.worker.claims.outcomes import (
    MAX_MESSAGE,
    Outcome,
    OutcomeKind,
    class_path,
    completed,
    failed,
    not_to_be_run,
)

POLICY = RetryPolicy(backoff=(10, 60), jitter=0.0)


def fate(error: BaseException, attempt: int = 1, retry_after: float | None = None) -> Outcome:
    return failed(
        error,
        "the traceback",
        attempt=attempt,
        max_attempts=3,
        policy=POLICY,
        retry_after=retry_after,
        rand=0.5,
    )


@pytest.mark.parametrize(
    ("error", "attempt", "kind", "delay", "code", "reason"),
    [
        (TransientCommandError("BUSY", "x"), 1, OutcomeKind.RETRY, 10, "BUSY", "TRANSIENT"),
        (TransientCommandError("BUSY", "x"), 2, OutcomeKind.RETRY, 60, "BUSY", "TRANSIENT"),
        (TransientCommandError("BUSY", "x"), 3, OutcomeKind.TROUBLE, None, "BUSY", "EXHAUSTED"),
        (TransientCommandError("B", "x", None, 7), 1, OutcomeKind.RETRY, 7, "B", "TRANSIENT"),
        (PermanentCommandError("GONE", "x"), 1, OutcomeKind.TROUBLE, None, "GONE", "PERMANENT"),
        (BusinessRuleError("NO", "x"), 1, OutcomeKind.FAILED, None, "NO", "BUSINESS_RULE"),
        (BusinessRuleError("NO", "x"), 3, OutcomeKind.FAILED, None, "NO", "BUSINESS_RULE"),
        (ValueError("x"), 1, OutcomeKind.RETRY, 10, "ValueError", "TRANSIENT"),
        (ValueError("x"), 3, OutcomeKind.TROUBLE, None, "ValueError", "EXHAUSTED"),
        (SystemExit(1), 1, OutcomeKind.RETRY, 10, "SystemExit", "TRANSIENT"),
        (KeyboardInterrupt(), 1, OutcomeKind.RETRY, 10, "KeyboardInterrupt", "TRANSIENT"),
        (RecursionError("x"), 1, OutcomeKind.RETRY, 10, "RecursionError", "TRANSIENT"),
    ],
)
def test_what_an_error_means(
    error: BaseException, attempt: int, kind: OutcomeKind, delay: float, code: str, reason: str
) -> None:
    outcome = fate(error, attempt)
    assert (outcome.kind, outcome.delay, outcome.code) == (kind, delay, code)
    assert outcome.charged
    assert json.loads(outcome.details or "")["reason"] == reason


def test_a_handler_may_choose_the_time_of_its_retry() -> None:
    assert fate(ValueError("x"), retry_after=4).delay == 4


@pytest.mark.parametrize(
    ("asked", "pause"),
    [
        *((0, 0), (-1, 0), (float("nan"), 10), ("7", 10), (True, 10)),
        *((seconds, MAX_SECONDS) for seconds in (float("inf"), 1e300, 10**400)),
    ],
    ids=["now", "past", "nan", "text", "flag", "never", "float", "integer"],
)
def test_a_pause_that_cannot_be_stored_costs_neither_the_retry_nor_its_reason(
    asked: float, pause: float
) -> None:
    outcome = fate(TransientCommandError("BUSY", "x", retry_after=asked))
    assert (outcome.kind, outcome.delay, outcome.code) == (OutcomeKind.RETRY, pause, "BUSY")


class OverdrawnError(BusinessRuleError):
    def __init__(self, account: str) -> None:
        self.account = account


class BusyError(TransientCommandError):
    code = "BUSY"

    def __init__(self) -> None:
        pass


def test_an_error_of_a_class_with_an_initializer_of_its_own_means_the_same() -> None:
    overdrawn = fate(OverdrawnError("savings"))
    assert (overdrawn.kind, overdrawn.code) == (OutcomeKind.FAILED, "OverdrawnError")
    assert overdrawn.message == "savings"
    busy = fate(BusyError())
    assert (busy.kind, busy.code, busy.delay) == (OutcomeKind.RETRY, "BUSY", 10)


def test_the_event_of_an_error_has_its_class_and_traceback() -> None:
    """Of an expected one, too, with its details."""
    assert json.loads(fate(ValueError("x")).details or "") == {
        "reason": "TRANSIENT",
        "exception": "builtins.ValueError",
        "traceback": "the traceback",
    }
    assert json.loads(fate(PermanentCommandError("GONE", "x", {"account": 1})).details or "") == {
        "reason": "PERMANENT",
        "details": {"account": 1},
        "exception": "cmdbus.errors.PermanentCommandError",
        "traceback": "the traceback",
    }


class Ledger:
    class LockedError(BusyError):
        pass


def test_a_class_that_cannot_be_imported_is_named_by_its_nearest_base() -> None:
    class LocalError(OverdrawnError):
        pass

    class RenamedError(ValueError):
        __module__ = 5  # type: ignore[assignment]

    assert class_path(OverdrawnError("x")) == f"{__name__}.OverdrawnError"
    assert class_path(LocalError("x")) == f"{__name__}.OverdrawnError"
    assert class_path(Ledger.LockedError()) == f"{__name__}.BusyError"
    assert class_path(RenamedError()) == "builtins.ValueError"


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Unspeakable(), "(its message could not be made: RuntimeError)"),
        (ValueError("a\0b\ud800"), "a\\0b\\ud800"),
        (ValueError("x" * 50_000_000), "x" * (MAX_MESSAGE - 3) + "..."),
        (PermanentCommandError("C", 5), "5"),  # type: ignore[arg-type]
    ],
    ids=["unspeakable", "unstorable", "endless", "no text"],
)
def test_any_error_can_be_stored(error: BaseException, message: str) -> None:
    assert fate(error).message == message


def test_details_that_cannot_be_stored_are_replaced_by_the_reason() -> None:
    outcome = fate(PermanentCommandError("C", "m", {"when": object()}))
    assert "details.when is of type object" in json.loads(outcome.details or "")["details"]


def test_a_result_is_checked_like_data() -> None:
    assert completed({"a": 1}).result == '{"a":1}'
    with pytest.raises(ValueError, match=r"result\.a contains a NUL"):
        completed({"a": "\0"})


@pytest.mark.parametrize(
    ("attempts", "losses", "code"),
    [(0, 0, None), (2, 2, None), (3, 0, "EXHAUSTED"), (0, 3, "LOST"), (9, 9, "EXHAUSTED")],
)
def test_limits_are_looked_at_when_a_command_was_claimed(
    attempts: int, losses: int, code: str | None
) -> None:
    outcome = not_to_be_run(attempts, 3, losses)
    assert (outcome and outcome.code) == code
    assert outcome is None or (outcome.kind is OutcomeKind.TROUBLE and not outcome.charged)
