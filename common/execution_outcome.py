"""How an execution ends, as what is around its handler sees it. Pure."""

from typing import Any, NamedTuple

#: Statuses that differ from the names of the outcomes that are settled, by these.
STATUSES = {"TROUBLE": "TROUBLESHOOTING"}


class ExecutionOutcome(NamedTuple):
    """What becomes of the command, if its settlement succeeds and nothing around it changes that.

    COMPLETED with the handler's `result`; RETRY with `delay`, the seconds until then; FAILED (a
    business rule); TROUBLESHOOTING; AGAIN, if the handler gives the command back; or DEFERRED, if
    it is not charged, because a breaker is open, the database is away or has changed, another
    worker must run it, or the lease is lost. `error` is what was raised, and `code` its code.
    """

    status: str
    result: Any = None
    error: BaseException | None = None
    code: str | None = None
    delay: float | None = None
