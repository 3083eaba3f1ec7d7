"""The transaction in which a handler's effects and its command's completion commit."""

from contextlib import suppress

import psycopg

from cmdbus.errors import (
    CmdbusError,
    InvalidOperationError,
    PermanentCommandError,
    TransientCommandError,
)
from cmdbus.failpoints import BEFORE_COMMIT, failpoint
from cmdbus.worker.claims.claim import Claim, Connection, Finished
from cmdbus.worker.claims.claims import Claims
from cmdbus.worker.claims.rejections import (
    Cause,
    cause_of,
    lacks_a_right,
    lacks_partition,
    lacks_storage,
    reason,
)
from cmdbus.worker.claims.sessions import end_session
from cmdbus.worker.claims.settlement import make_partitions
from cmdbus.worker.claims.transactions import begin, commit, limits, roll_back
from cmdbus.worker.execution.handler_connection import (
    USED_AFTER_RETURN,
    HandlerConnection,
    handler_connection,
)

#: Codes of executions whose settlement was refused.
_BLOCKED, _ROLE_CHANGED = "SETTLEMENT_BLOCKED", "ROLE_CHANGED"

#: The server's function that says that all sessions end.
_ENDS_ALL = "quickdie"

_IDLE = psycopg.pq.TransactionStatus.IDLE
_INERROR = psycopg.pq.TransactionStatus.INERROR
_INTRANS = psycopg.pq.TransactionStatus.INTRANS


class LeaseLostError(CmdbusError):
    """Another claim has the command now: nothing of this execution may land."""


class SettlementBlockedError(CmdbusError):
    """Another session has locked what the settlement writes, the worker's role lacks a right, or
    the server has no space: no fault of the handler's, as far as is known."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class HandlerTransaction:
    """The transaction of one execution on its thread's connection."""

    def __init__(
        self, claims: Claims, connection: Connection, marker: str, *, statement: float, idle: float
    ) -> None:
        self._claims = claims
        self._session = connection
        self._marker = marker
        self._clean = False
        self._handlers: HandlerConnection | None = None
        #: False once the session was found to be in use after the handler had returned.
        self._at_rest = True
        #: A statement in it had failed, and was what ended it.
        self.aborted = False
        #: Its session was closed here, because it was still in use.
        self.dropped = False
        #: The server has said that it ends all sessions at once.
        self.server_ended = False
        begin(claims, connection, statement=statement, idle=idle, marker=marker)
        connection.add_notice_handler(self._noticed)
        self._handlers = handler_connection(connection, self._noticed)

    @property
    def connection(self) -> HandlerConnection:
        if self._handlers is None:
            raise InvalidOperationError(USED_AFTER_RETURN)
        return self._handlers

    def limit(self, *, statement: float, idle: float) -> None:
        """New limits, in seconds; from any thread."""
        handlers = self._handlers
        if handlers is not None:
            with suppress(InvalidOperationError):  # the handler has returned meanwhile
                handlers.limit(limits(self._claims, statement=statement, idle=idle))

    def complete(self, finished: Finished) -> None:
        """Settles and commits. The COMMIT is sent only after the settlement was seen to have
        found its row: sent together with it, the effects land without the completion."""
        self._retire()
        self._check_finished()
        try:
            settled, prepared = self._claims.settle_within(self._session, finished, self._marker)
        except psycopg.Error as error:
            if lacks_a_right(error):
                raise self._refusal(error, finished.claim) from error
            if lacks_partition(error):
                self._make_partitions()
                raise SettlementBlockedError(_BLOCKED, reason(error)) from error
            if cause_of(error) in (Cause.TIMEOUT, Cause.CONTENTION) or lacks_storage(error):
                raise SettlementBlockedError(_BLOCKED, reason(error)) from error
            raise
        if settled is None:
            raise PermanentCommandError(
                "TRANSACTION_ENDED",
                "the handler ended the transaction of context.connection by itself, or changed "
                "its isolation level: it commits with the command, so what it wrote may be "
                "there twice if it runs again; an operator must decide",
            )
        if not settled:
            raise LeaseLostError
        failpoint(BEFORE_COMMIT)
        commit(self._claims, self._session, prepared)
        self._clean = True

    def end(self) -> None:
        """Whatever happened, the session is clean for the next command, or closed."""
        self._retire()
        try:
            self._clean_up()
            if self._session.closed and not self.dropped:
                with suppress(psycopg.Error):
                    self._session.pgconn.is_busy()  # Reads what came before the end.
        finally:
            self._session.remove_notice_handler(self._noticed)

    def _clean_up(self) -> None:
        if self._clean or self._session.closed:
            return
        if not self._at_rest:
            self.dropped = True
            end_session(self._session)
            return
        self.aborted = self._session.info.transaction_status is _INERROR
        try:
            roll_back(self._claims, self._session)
        except psycopg.Error:
            self._session.close()

    def _refusal(self, error: psycopg.Error, claim: Claim) -> CmdbusError:
        """What a missing right means. If the worker's role has them all, the handler has changed
        the role, unless the right was granted in this moment: that happens but once."""
        roll_back(self._claims, self._session)
        self._clean = True
        if self._claims.rows(self._session, "read_missing_rights"):
            return SettlementBlockedError(_BLOCKED, reason(error))
        message = (
            f"the command cannot be settled in the transaction of context.connection "
            f"({reason(error)}): a handler that changes its role (SET ROLE) must change it back "
            f"before it returns (RESET ROLE)"
        )
        key = self._claims.key(claim)._asdict()
        latest = self._claims.row(self._session, "read_error_code", **key)
        if latest != (_ROLE_CHANGED,):
            return SettlementBlockedError(_ROLE_CHANGED, message)
        return TransientCommandError(_ROLE_CHANGED, message)

    def _make_partitions(self) -> None:
        roll_back(self._claims, self._session)
        self._clean = True
        make_partitions(self._claims, self._session)

    def _noticed(self, notice: psycopg.errors.Diagnostic) -> None:
        """The last word of an immediate shutdown, or after the crash of another session: no error,
        and nothing that a command can make the server say."""
        if notice.source_function == _ENDS_ALL:
            self.server_ended = True

    def _retire(self) -> None:
        handlers, self._handlers = self._handlers, None
        if handlers is not None:
            self._at_rest = handlers.retire()

    def _check_finished(self) -> None:
        if not self._at_rest:
            raise TransientCommandError(
                "CONNECTION_IN_USE",
                "the handler returned while context.connection was still in use, by another "
                "thread or by a COPY, a stream or a pipeline that was not finished: finish all "
                "database work before you return",
            )
        if self._session.info.transaction_status not in (_INTRANS, _IDLE):
            raise TransientCommandError(
                "TRANSACTION_ABORTED",
                "the handler returned after an error had aborted the transaction of "
                "context.connection: let the error out, or use a savepoint "
                "(with context.connection.transaction())",
            )
