"""The line of log with which each execution of a command ends, written after the settlement: a
handler that hangs may hold the lock of the log.

    completed, or interrupted by something else   DEBUG
    given back by the handler                     DEBUG
    lost with its process                         DEBUG
    canceled while it ran                         INFO
    failed, or its lease was lost                 WARNING
    its command is in troubleshooting             ERROR
"""

import json
import logging

from cmdbus.board.counters import OutcomeLabel
from cmdbus.command_log import log_about
from cmdbus.worker.claims.claim import Claim, Finished
from cmdbus.worker.claims.outcomes import Outcome, OutcomeKind

logger = logging.getLogger(__name__)

_IN_TROUBLE = "is in the troubleshooting queue, where an operator must decide"
_LOST = "nothing that it wrote through its connection landed"


def logs_completions() -> bool:
    return logger.isEnabledFor(logging.DEBUG)


def label_of(outcome: Outcome) -> OutcomeLabel:
    if outcome.kind is OutcomeKind.RETRY and not outcome.charged:
        return OutcomeLabel.INTERRUPTED
    return OutcomeLabel[outcome.kind]


def log_end(finished: Finished) -> None:
    claim, outcome, max_attempts, _, seconds, *_ = finished
    label, problem = label_of(outcome), _problem(outcome)
    if outcome.code is None and label is not OutcomeLabel.COMPLETED and outcome.delay is None:
        return  # Another thread has settled it, and logs it.
    if label is OutcomeLabel.COMPLETED:
        message = "command completed in %.3f s; it had waited %.3f s"
        _log(finished, label, logging.DEBUG, message, seconds, claim.waited)
    elif outcome.code is None:
        message = "command was given back by its handler after %.3f s; again in %.1f s"
        _log(finished, label, logging.DEBUG, message, seconds, outcome.delay)
    elif label is OutcomeLabel.INTERRUPTED:
        message = "command was interrupted after %.3f s: %s; again in %.1f s"
        _log(finished, label, logging.DEBUG, message, seconds, problem, outcome.delay)
    elif outcome.charged:
        after = f" after {seconds:.3f} s" if seconds else ""
        level, then = _consequence(outcome)
        message = "command failed in attempt %s of %s%s: %s; %s"
        attempt = claim.attempts + 1
        _log(finished, label, level, message, attempt, max_attempts, after, problem, then)
    else:
        _log(finished, label, logging.ERROR, "command %s: %s", _IN_TROUBLE, problem)


def log_not_settled(finished: Finished, end: OutcomeLabel | None) -> None:
    """The settlement found no row; `end` is None if the lease was lost."""
    if end is OutcomeLabel.CANCELED:
        _log(finished, end, logging.INFO, "command was canceled while it ran: %s", _LOST)
    else:
        message = "command was lost before it was settled: %s, and it runs again elsewhere"
        _log(finished, OutcomeLabel.LOST, logging.WARNING, message, _LOST)


def log_lost(claim: Claim) -> None:
    """With its process: what else that ran is in a line of the supervisor's."""
    fields = {**claim.log_fields, "outcome": OutcomeLabel.LOST.name.lower()}
    log_about(logger, logging.DEBUG, fields, "command was lost with its process, and runs again")


def _log(finished: Finished, label: OutcomeLabel, level: int, message: str, *args: object) -> None:
    claim = finished.claim
    fields = {
        **claim.log_fields,
        "outcome": label.name.lower(),
        "queue_wait_seconds": round(claim.waited, 6),
    }
    if finished.seconds:  # else its process has ended with it
        fields["duration_seconds"] = round(finished.seconds, 6)
    log_about(logger, level, fields, message, *args, traceback=_traceback(finished.outcome))


def _consequence(outcome: Outcome) -> tuple[int, str]:
    """The level, and what becomes of the command."""
    if outcome.kind is OutcomeKind.TROUBLE:
        return logging.ERROR, f"it {_IN_TROUBLE}"
    if outcome.delay is None:
        return logging.WARNING, "not tried again"
    return logging.WARNING, f"again in {outcome.delay:.1f} s"


def _problem(outcome: Outcome) -> str:
    return " ".join(f"{outcome.code}: {outcome.message or ''}".split())


def _traceback(outcome: Outcome) -> str:
    """That of the exception, or the stack of a handler that has timed out."""
    event = json.loads(outcome.details or "{}")
    details = event.get("details")
    more = details if isinstance(details, dict) else {}
    trace = event.get("traceback") or more.get("traceback") or more.get("stack")
    return trace.rstrip("\n") if isinstance(trace, str) else ""
