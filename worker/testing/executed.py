"""What a test sees of an execution that its runner has made."""

from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from cmdbus.data import decode
from cmdbus.worker.claims.claim import Claim, Finished
from cmdbus.worker.claims.outcomes import OutcomeKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """One execution. `outcome` is what it was settled as: COMPLETED, FAILED, RETRY, TROUBLE, or
    LOST if its command was canceled meanwhile."""

    domain: str
    type: str
    command_id: UUID
    #: From 1.
    attempt: int
    outcome: str
    #: What the handler has returned, as JSON keeps it.
    result: object = None
    error_code: str | None = None
    error_message: str | None = None
    #: Seconds until the next try, if there is one.
    retry_in: float | None = None
    #: What the handler has raised.
    error: BaseException | None = field(default=None, compare=False)
    #: Whether the execution counts as an attempt.
    charged: bool = True

    @property
    def failed(self) -> bool:
        """Not if a breaker has put it off, or the handler has given it back."""
        ended = self.outcome in (OutcomeKind.FAILED, OutcomeKind.TROUBLE)
        return ended or (self.outcome == OutcomeKind.RETRY and self.charged)


def executed(claim: Claim, finished: Finished | None, error: BaseException | None) -> Executed:
    """`finished`: what was settled; None if the claim was lost."""
    make = partial(
        Executed,
        domain=claim.domain,
        type=claim.type,
        command_id=claim.command_id,
        attempt=claim.attempts + 1,
        error=error,
    )
    if finished is None:
        return make(outcome="LOST", charged=False)
    outcome = finished.outcome
    return make(
        outcome=outcome.kind.value,
        result=None if outcome.result is None else decode(outcome.result),
        error_code=outcome.code,
        error_message=outcome.message,
        retry_in=outcome.delay,
        charged=outcome.charged,
    )
