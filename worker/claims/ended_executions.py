"""Ends of executions, as the instruments of the process see them."""

from collections.abc import Sequence
from datetime import UTC

from cmdbus.board.counters import OutcomeLabel
from cmdbus.clock import time
from cmdbus.instruments import EndedExecution
from cmdbus.worker.claims.claim import Claim, Finished
from cmdbus.worker.claims.ends import label_of
from cmdbus.worker.claims.outcomes import completed


def settled_executions(done: Sequence[Finished]) -> list[EndedExecution]:
    return [_ended(finished, label_of(finished.outcome)) for finished in done]


def other_end(
    claim: Claim, label: OutcomeLabel, finished: Finished | None = None
) -> EndedExecution:
    """The end of an execution whose outcome, if there was one, found no row."""
    outcome = completed(None)
    known = finished or Finished(claim, outcome, claim.max_attempts or 0, 0.0)
    return _ended(known._replace(outcome=outcome), label)


def _ended(finished: Finished, label: OutcomeLabel) -> EndedExecution:
    claim, outcome, max_attempts, at, seconds, *_ = finished
    return EndedExecution(
        claim.domain,
        claim.type,
        claim.command_id,
        claim.attempts + 1,
        label.name,
        outcome.code,
        outcome.message,
        at,
        time.monotonic(),
        seconds,
        claim.waited,
        max_attempts,
        claim.correlation_id,
        claim.priority,
        claim.created_at.astimezone(UTC),
        outcome.details,
        claim.headers,
        outcome.delay,
    )
