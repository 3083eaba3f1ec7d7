"""An execution whose handler has surroundings, which may use its session in more ways than the
handler, and may have something to do once its outcome is committed."""

import logging
import os
from collections.abc import Callable, Sequence
from contextvars import Context as Variables
from contextvars import copy_context
from typing import Any

from cmdbus.command import Command
from cmdbus.command_log import log_about
from cmdbus.context import Context
from cmdbus.errors import (
    BreakerOpenError,
    InvalidOperationError,
    NotHereError,
    TransientCommandError,
)
from cmdbus.execution_outcome import STATUSES, ExecutionOutcome
from cmdbus.surroundings import AfterSettlement
from cmdbus.worker.claims.claim import Claim, Connection, Finished
from cmdbus.worker.claims.outcomes import Outcome, within_middleware
from cmdbus.worker.claims.settlement import settle_one
from cmdbus.worker.execution.application_code import leave_fork, run_after, storable
from cmdbus.worker.execution.autocommit_session import AutocommitSession
from cmdbus.worker.execution.execution import Execution
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
from cmdbus.worker.execution.session_errors import is_outdated_plan

logger = logging.getLogger(__name__)

# What a NamedTuple's class does, in half the time.
_new = tuple.__new__

_IN_AUTOCOMMIT = (
    "context.connection was used by a handler in autocommit mode: it has no transaction that "
    "commits with its command; use the connection that it is given"
)
_IN_TRANSACTION = (
    "autocommit mode was asked for after context.connection was used: a command has either its "
    "transaction or autocommit mode"
)


class SurroundedExecution(Execution):
    """See SurroundedExecution in `cmdbus.surroundings`."""

    _has_failed = False
    #: What is called once the outcome is committed, with the context variables of its time.
    _afterwards: Sequence[tuple[Variables, AfterSettlement]] = ()
    #: They are being called.
    _is_afterwards = False
    #: The result of the handler, and the outcome with which it is stored.
    _returned: tuple[object, Outcome] | None = None
    #: An error that a middleware has raised, and the name of that.
    _middleware_error: tuple[BaseException, str] | None = None
    #: It runs by itself after an error.
    _is_in_group = False

    def returned(self, result: object) -> ExecutionOutcome:
        self._leave_if_forked()
        self._middleware_error = None
        if self.again_in is not None:
            return ExecutionOutcome("AGAIN", delay=self.again_in)
        # Before the surroundings are left: they see the error of a result that cannot be stored.
        self._returned = result, storable(result, self._handled.handler.encoder)
        return _new(ExecutionOutcome, ("COMPLETED", result, None, None, None))

    def raised(self, error: BaseException, middleware: str = "") -> ExecutionOutcome:
        self._leave_if_forked()
        if middleware:
            self._middleware_error = error, middleware
        try:
            return self._outcome_of(error)
        except BaseException:  # It has raised another one when it was looked at.
            found = self._outcome_of(TransientCommandError("UNREPORTABLE", ""))
            return found._replace(error=error)

    def _outcome_of(self, error: BaseException) -> ExecutionOutcome:
        if isinstance(error, BreakerOpenError):
            return ExecutionOutcome("DEFERRED", None, error, "BREAKER_OPEN", error.retry_after)
        if self._is_in_group or self._is_uncharged(error):
            code = error.code if isinstance(error, NotHereError) else None
            return ExecutionOutcome("DEFERRED", None, error, code)
        outcome = self._fate(error)
        name = outcome.kind.value
        status = STATUSES.get(name, name)
        return _new(ExecutionOutcome, (status, None, error, outcome.code, outcome.delay))

    def _is_uncharged(self, error: BaseException) -> bool:
        """As far as it is known before the end of the transaction."""
        if isinstance(error, LeaseLostError | SettlementBlockedError) or is_outdated_plan(error):
            return True
        return self.is_cut_off(error)

    def _leave_if_forked(self) -> None:
        """Nothing around the handler may see the end of another process."""
        if os.getpid() != self._thread.pid:
            leave_fork()

    @property
    def is_in_a_tests_transaction(self) -> bool:
        return False

    @property
    def is_first(self) -> bool:
        return self.claim.token == 1

    @property
    def worker(self) -> str:
        return self._statements.worker

    @property
    def waited(self) -> float:
        return self.claim.waited

    def after_settlement(self, function: AfterSettlement) -> None:
        with self._while_running("after_settlement()", "call it"):
            self._afterwards = (*self._afterwards, (copy_context(), function))

    def second_connection(self) -> HandlerConnection:
        transaction = self.transaction()
        with self._opening:
            if self._over:
                raise InvalidOperationError(USED_AFTER_RETURN)
            return transaction.second_connection()

    def autocommit(self) -> Connection:
        if os.getpid() != self._thread.pid:
            raise InvalidOperationError(USED_AFTER_FORK)
        with self._opening:
            if self._over and not self._is_afterwards:
                raise InvalidOperationError(USED_AFTER_RETURN)
            used = self._session()
            if used.transaction is not None:
                raise InvalidOperationError(_IN_TRANSACTION)
            if used.autocommit is None:
                used.autocommit = used.run(self._autocommit)
            return used.autocommit.connection

    def end_autocommit(self) -> None:
        with self._opening:
            used = self._used_session
            if used is not None and used.autocommit is not None:
                used.autocommit.end()
                used.autocommit = None

    def extend(self, seconds: float) -> None:
        super().extend(seconds)
        with self._opening:
            used = self._used_session
            if used is not None and used.autocommit is not None:
                used.autocommit.limit(**self._limits())

    def handle_within(
        self, first: Execution, handle: Callable[[Command], object], command: Command
    ) -> None:
        """Calls `handle` instead of the handler, in the transaction of the first one of a group."""
        self._used_session, self._is_in_group = first._used_session, True
        context = Context(command, self, self.claim.attempts + 1, self.max_attempts)
        surroundings = self._handled.surroundings
        assert surroundings is not None
        run = surroundings(lambda command, context: handle(command))
        copy_context().run(run_after, context._forward_headers, run, command, context)

    def call_afterwards(self, outcome: Outcome, error: BaseException | None = None) -> None:
        """What waits for this outcome to be committed."""
        if not self._afterwards:
            return
        self._used_session, self._over, self._is_afterwards = None, True, True
        try:
            for variables, function in self._afterwards:
                self._call(variables, function, outcome, error)
        finally:
            with self._opening:
                self._is_afterwards = False
            used: Any = self._used_session
            if used is not None:
                used.end()

    def _call(self, variables: Variables, function: AfterSettlement, *ended: Any) -> None:
        try:
            try:
                variables.run(function, *ended)
            finally:
                if os.getpid() != self._thread.pid:
                    leave_fork()
        except BaseException:
            message = "what follows the command's settlement failed: the command stays as it is"
            log_about(logger, logging.ERROR, self.claim.log_fields, message, exc_info=True)

    def _autocommit(self, session: Connection) -> AutocommitSession:
        return AutocommitSession(self._statements, session, **self._limits())

    def _begin(self, session: Connection) -> HandlerTransaction:
        if self._used_session is not None and self._used_session.autocommit is not None:
            raise InvalidOperationError(_IN_AUTOCOMMIT)
        return super()._begin(session)

    def _outcome(self, result: object) -> Outcome:
        stored = self._returned
        if self.again_in is None and stored is not None and stored[0] is result:
            return stored[1]
        return super()._outcome(result)

    def _failed(self, error: BaseException) -> Outcome:
        # Not kept: its frames refer to this execution.
        raised, self._middleware_error = self._middleware_error, None
        outcome = super()._failed(error)
        if raised is None or raised[0] is not error:
            return outcome
        return within_middleware(outcome, raised[1])

    def _execute(self, data: Any) -> Outcome | None:
        try:
            outcome = super()._execute(data)
        finally:
            self._middleware_error = None  # Its traceback has the execution.
        if self._has_failed or not self._afterwards:
            return outcome
        if self.committed is not None:
            self.call_afterwards(self.committed.outcome)
            return None
        return None if outcome is None else self._settled(outcome)

    def _reported(self, error: BaseException) -> Outcome | None:
        self._has_failed = True
        outcome = super()._reported(error)
        if outcome is None or not self._afterwards or self.was_kept or not outcome.charged:
            return outcome  # Nothing has ended: it runs again.
        return self._settled(outcome, error)

    def _settled(self, outcome: Outcome, error: BaseException | None = None) -> Outcome | None:
        """Settles it now. Returns it if that fails: then it is settled as any other, later."""
        try:
            settled, lost = self._settle(self._finished(outcome))
        except Exception as failure:
            message = "a command's outcome is settled later, and nothing follows that: %r"
            log_about(logger, logging.WARNING, self.claim.log_fields, message, failure)
            return outcome
        if not lost:
            self.committed = settled
            self.call_afterwards(settled.outcome, error)
        return None

    def _settle(self, finished: Finished) -> tuple[Finished, list[Claim]]:
        return settle_one(self._statements, self._thread.connect_once(), finished)
