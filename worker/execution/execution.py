"""Runs one command's handler and finds its outcome.

If the handler never touches `context.connection`, its outcome is settled together with others.
If it does, it gets a transaction, in which the outcome is settled too: effects and completion
commit together, or neither.
"""

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from datetime import UTC, datetime
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from cmdbus.checks import check_seconds
from cmdbus.clock import time
from cmdbus.context import Context
from cmdbus.data import Undecodable, decode
from cmdbus.errors import (
    BreakerOpenError,
    InvalidOperationError,
    NotHereError,
    TransientCommandError,
)
from cmdbus.failpoints import AFTER_COMMIT, AFTER_RETURN, BEFORE_EFFECT, failpoint
from cmdbus.headers import NO_HEADERS
from cmdbus.timeouts import Timeouts
from cmdbus.worker.breakers.guarded_call import Calls, GuardedCall
from cmdbus.worker.claims.claim import Claim, Connection, Finished
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.outcomes import (
    Outcome,
    class_name,
    deferred,
    elsewhere_in,
    failed,
    given_back,
    interrupted,
    not_to_be_run,
    troubled,
)
from cmdbus.worker.execution.application_code import (
    command_of,
    leave_fork,
    run_after,
    storable,
    traceback_of,
)
from cmdbus.worker.execution.checkpoints import Checkpoints
from cmdbus.worker.execution.context_facts import ContextFacts
from cmdbus.worker.execution.executing_thread import ExecutingThread, Handled
from cmdbus.worker.execution.handler_batch import HandlerBatch
from cmdbus.worker.execution.handler_connection import (
    USED_AFTER_FORK,
    USED_AFTER_RETURN,
    HandlerConnection,
)
from cmdbus.worker.execution.handler_transaction import (
    HandlerTransaction,
    LeaseLostError,
    SettlementBlockedError,
)
from cmdbus.worker.execution.used_session import AFTER_OUTAGE, UsedSession

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

Result = TypeVar("Result")

# What a NamedTuple's class does, in half the time.
_new = tuple.__new__


class Execution(ContextFacts):
    """One claim that one thread works on."""

    #: The pause that the handler has asked for, in seconds.
    retry_delay: float | None = None
    #: Seconds until the command runs again, if the handler gives it back.
    again_in: float | None = None
    #: The outcome that was settled in the handler's transaction.
    committed: Finished | None = None
    #: It has timed out, and housekeeping has its outcome.
    outcome_taken = False
    #: The claims that one transaction settles together with this one, and this one.
    group: Sequence[Claim] = ()
    #: None until the handler asks for its first statement.
    _used_session: UsedSession | None = None
    #: A call that breakers guard was let through.
    has_called = False
    #: The breaker of its type has kept the handler from its start.
    was_kept = False
    #: The handler has returned.
    _over = False
    #: Those that breakers guard; None before the first one.
    _calls: Calls | None = None
    #: The same number, however often the pause before a retry is asked for.
    _rand = cached_property(lambda _: random.random())

    def __init__(
        self,
        claim: Claim,
        handled: Handled,
        thread: ExecutingThread["Execution"],
        statements: ClaimStatements,
        timeouts: Timeouts,
    ) -> None:
        self.claim = claim
        self.max_attempts = claim.max_attempts or handled.max_attempts
        #: Seconds, extensions included.
        self.timeout = handled.timeout
        self.began_ns = time.monotonic_ns()
        self.began = self.began_ns / 1e9
        #: Monotonic time; includes extensions, and the time for which the process stalled.
        self.due = self.began + handled.timeout
        self._handled = handled
        self._thread = thread
        #: For the transaction, which other threads of the handler may open or limit.
        self._opening = Lock()
        self._statements = statements
        self._timeouts = timeouts

    def run(self) -> Finished | None:
        """Returns the outcome to settle; None if it is settled already, or the lease is lost."""
        claim = self.claim
        outcome = None
        if claim.attempts or claim.losses:
            outcome = not_to_be_run(claim.attempts, self.max_attempts, claim.losses)
        if outcome is None:
            data = decode(claim.data)
            if isinstance(data, Undecodable):
                outcome = troubled("UNDECODABLE", data.reason)
            else:
                outcome = self._execute(data)
        return None if outcome is None else self._finished(outcome)

    def timed_out(self, stack: str, activity: Mapping[str, object]) -> Finished:
        """Returns the outcome of a hung thread, with its stack and its session's activity."""
        error = TransientCommandError(
            "TIMEOUT",
            f"gave up after {self.timeout:g} s: its thread did not return",
            {**activity, "stack": stack},
        )
        for call in list((self._calls or {}).values()):
            call.timed_out()
        return self._finished(self._fate(error))

    def _execute(self, data: Any) -> Outcome | None:
        claim = self.claim
        command = command_of(claim, data)
        context = Context(command, self, claim.attempts + 1, self.max_attempts)
        try:
            try:
                failpoint(BEFORE_EFFECT)
                try:
                    # A copy, so that the values that it sets for itself end with it.
                    run = self._handled.run
                    if command.headers is NO_HEADERS:
                        result = copy_context().run(run, command, context)
                    else:
                        forward = context._forward_headers
                        result = copy_context().run(run_after, forward, run, command, context)
                finally:
                    if os.getpid() != self._thread.pid:
                        leave_fork()
                    with self._opening:
                        self._over = True
                transaction = self._transaction
                outcome = self._outcome(result)
                if transaction is None:
                    failpoint(AFTER_RETURN)
                    return outcome
                transaction.complete(self._finished(outcome))
                failpoint(AFTER_COMMIT)
                self.committed = self._finished(outcome)
                return None
            finally:
                if self._used_session is not None:
                    self._used_session.end()
        except LeaseLostError:
            return None
        except BaseException as error:
            context.outcome = None  # It refers to the error, and that to the context.
            return self._reported(error)

    def _outcome(self, result: object) -> Outcome:
        if self.again_in is None:
            return storable(result, self._handled.handler.encoder)
        further = "checkpoints" in vars(self) and self.checkpoints.has_saved
        if not further and self._transaction is not None:
            further = self._transaction.has_written()
        return given_back(self.again_in, got_further=further)

    @property
    def _transaction(self) -> HandlerTransaction | None:
        return None if self._used_session is None else self._used_session.transaction

    def _finished(self, outcome: Outcome) -> Finished:
        now = time.monotonic()
        headers = None if self._forwarded is None else self._reply_headers()
        ended = self.claim, outcome, self.max_attempts, now, now - self.began, headers
        return _new(Finished, ended)

    def _reported(self, error: BaseException) -> Outcome | None:
        """While it is being handled, and what the handler has written is rolled back."""
        try:
            return self._failed(error)
        except BaseException as second:
            names = f"{class_name(error)} could not be reported: {class_name(second)}"
            message = f"{names} while it was looked at"
            return self._fate(TransientCommandError("UNREPORTABLE", message))

    def _failed(self, error: BaseException) -> Outcome:
        if isinstance(error, SettlementBlockedError):  # Also if its session has ended since.
            return interrupted(error.code, str(error), AFTER_OUTAGE, lost=False)
        if isinstance(error, BreakerOpenError):
            self.was_kept = error.name == self.bound_to and not self.has_called
            return deferred("BREAKER_OPEN", str(error), error.retry_after)
        if isinstance(error, NotHereError):
            age = datetime.now(UTC) - self.claim.created_at
            return interrupted(error.code, str(error), elsewhere_in(age), lost=False)
        used = self._used_session
        if used is not None and (interruption := used.interruption(error, self.claim)):
            return interruption
        return self._fate(error, traceback_of(error))

    def _fate(self, error: BaseException, trace: str = "") -> Outcome:
        return failed(
            error,
            trace,
            attempt=self.claim.attempts + 1,
            max_attempts=self.max_attempts,
            policy=self._handled.handler.policy,
            retry_after=self.retry_delay,
            rand=self._rand,
            encoder=self._handled.handler.encoder,
        )

    # Called by the context, in any thread of the handler.

    def open(self) -> HandlerConnection:
        return self.transaction().connection

    def transaction(self) -> HandlerTransaction:
        """Opens it at the first call."""
        if os.getpid() != self._thread.pid:
            raise InvalidOperationError(USED_AFTER_FORK)
        with self._opening:
            if self._over:
                raise InvalidOperationError(USED_AFTER_RETURN)
            used = self._session()
            if used.transaction is None:
                used.transaction = used.run(self._begin)
            return used.transaction

    def _session(self) -> UsedSession:
        if self._used_session is None:
            self._used_session = UsedSession(self._thread)
        return self._used_session

    @cached_property
    def checkpoints(self) -> Checkpoints:
        encoder = self._handled.handler.encoder
        return Checkpoints(self._statements, self.claim, self._run_statement, encoder)

    def _run_statement(self, name: str, work: Callable[[Connection, bool], Result]) -> Result:
        """In the transaction if that is open, else by itself."""
        with self._while_running(name, "use it"):
            used = self._session()
            if used.transaction is not None:
                return work(used.transaction.connection, True)
            return used.run(lambda session: work(session, False))

    def orm_session(self) -> "Session":
        transaction = self.transaction()
        with self._opening:
            if self._over:
                raise InvalidOperationError(USED_AFTER_RETURN)
            return transaction.orm_session()

    def breaker(self, name: str) -> AbstractContextManager[None]:
        with self._while_running("context.breaker()", "make all calls"):
            if self._calls is None:
                self._calls = {}
        return GuardedCall(self._thread.breakers, name, self, self._calls)

    @contextmanager
    def _while_running(self, name: str, what: str) -> Iterator[None]:
        """For calls of which the handler must not be at its end."""
        self._check_process(name)
        with self._opening:
            if self._over:
                raise InvalidOperationError(
                    f"{name} was used after the handler returned: {what} before you return"
                )
            yield

    def _check_process(self, name: str) -> None:
        if os.getpid() != self._thread.pid:
            raise InvalidOperationError(
                f"{name} was used in a forked process: use it in the handler's own"
            )

    def is_cut_off(self, error: BaseException) -> bool:
        """Whether this error is about the handler's session, or means that it must run elsewhere;
        see `_failed`."""
        if isinstance(error, NotHereError):
            return True
        return self._used_session is not None and self._used_session.is_cause_of(error)

    def batch(self) -> HandlerBatch | None:
        batch_id = self.claim.batch_id
        if batch_id is None:
            return None
        return HandlerBatch(batch_id, self._statements, self.open, self._handled.handler.encoder)

    def extend(self, seconds: float) -> None:
        """The lock: a transaction that opens meanwhile gets the new limits."""
        self._check_process("context.extend()")
        timeout = check_seconds("the timeout after extend", self.timeout + seconds)
        self._thread.extend(self, seconds)
        self.timeout = timeout
        with self._opening:
            if (transaction := self._transaction) is not None and not self._over:
                transaction.limit(**self._limits())

    def _limits(self) -> dict[str, float]:
        allowed = self.due - self.began
        own = self._handled.handler.statement_timeout
        statement = own or self._timeouts.statement_for(allowed)
        return {"statement": statement, "idle": self._timeouts.idle_for(allowed)}

    def _begin(self, session: Connection) -> HandlerTransaction:
        return HandlerTransaction(self._statements, session, self._marker, **self._limits())

    @property
    def _marker(self) -> str:
        return f"{self.claim.id}:{self.claim.token}"
