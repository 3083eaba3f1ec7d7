"""The transaction in which a handler's effects and its command's completion commit."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import psycopg

from cmdbus.errors import CmdbusError, PermanentCommandError, TransientCommandError
from cmdbus.failpoints import BEFORE_COMMIT, failpoint
from cmdbus.worker.claims.claim import Claim, Connection, Finished
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.rejections import (
    Cause,
    cause_of,
    lacks_a_right,
    lacks_partition,
    lacks_schema,
    lacks_storage,
    reason,
)
from cmdbus.worker.claims.sessions import end_session
from cmdbus.worker.claims.settlement import make_partitions
from cmdbus.worker.claims.transactions import begin, commit, limits, roll_back
from cmdbus.worker.execution.handler_connection import (
    HandlerConnection,
    handler_connection,
    second_connection,
)
from cmdbus.worker.execution.session_errors import is_outdated_plan

if TYPE_CHECKING:
    from cmdbus.worker.integrations.sqlalchemy_session import HandlerSession

PLAN_CHANGED = "PLAN_CHANGED"
#: Executions of a command that may end with it. After a migration each session fails once, and a
#: retry may meet another one.
_MAX_PLAN_CHANGES = 5
#: SQLSTATEs of a server that has crashed, or is starting.
_SERVER_WENT = ("57P02", "57P03")
#: The server is shut down, or this session alone was ended, perhaps by the command itself.
_SESSION_ENDED = "57P01"
_BLOCKED, _ROLE_CHANGED = "SETTLEMENT_BLOCKED", "ROLE_CHANGED"
#: The server's function that announces the end of all sessions.
_ENDS_ALL = "quickdie"
_IDLE = psycopg.pq.TransactionStatus.IDLE
_INERROR = psycopg.pq.TransactionStatus.INERROR
_INTRANS = psycopg.pq.TransactionStatus.INTRANS


class LeaseLostError(CmdbusError):
    """Another claim has the command now: nothing of this execution may be committed."""


class SettlementBlockedError(CmdbusError):
    """The settlement failed without a fault of the handler's: another session has locked its rows,
    the worker's role lacks a right, or the server has no space."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def is_blocked(error: psycopg.Error, schema: str) -> bool:
    """Not by what the same outcome would meet again: a limit of temporary files, or something
    that a trigger of the handler's tables misses."""
    if isinstance(error, psycopg.errors.ConfigurationLimitExceeded):
        return False
    if lacks_schema(error):
        return lacks_schema(error, schema)
    return cause_of(error) in (Cause.TIMEOUT, Cause.CONTENTION) or lacks_storage(error)


def may_be_own_end(error: psycopg.Error, transaction: "HandlerTransaction | None") -> bool | None:
    """Whether the very command that used the session may have ended it; see `lost` of Outcome."""
    if transaction is not None and transaction.server_ended:
        return False
    return None if error.sqlstate == _SESSION_ENDED else error.sqlstate not in _SERVER_WENT


class HandlerTransaction:
    """The transaction of one execution on its thread's connection."""

    #: SQLAlchemy's.
    _orm_session: "HandlerSession | None" = None

    def __init__(
        self,
        statements: ClaimStatements,
        connection: Connection,
        marker: str,
        *,
        statement: float,
        idle: float,
    ) -> None:
        self._statements = statements
        self._session = connection
        self._marker = marker
        #: It was committed or rolled back.
        self._clean = False
        #: Whether nothing still used the session when the handler returned.
        self._at_rest: bool | None = None
        #: A statement had failed when it was rolled back.
        self.aborted = False
        #: Its session was closed here, because it was still in use.
        self.dropped = False
        #: The server has announced the end of all sessions.
        self.server_ended = False
        self._begin(statement, idle)
        connection.add_notice_handler(self._noticed)
        self.connection = handler_connection(connection, self._noticed)

    def limit(self, *, statement: float, idle: float) -> None:
        """Sets new limits, in seconds. Called by any thread."""
        self.connection.limit(limits(self._statements, statement=statement, idle=idle))

    def second_connection(self) -> HandlerConnection:
        return second_connection(self._session, self.connection)

    def orm_session(self) -> "HandlerSession":
        """Opens it at the first call. Called by one thread at a time."""
        if self._orm_session is None:
            from cmdbus.worker.integrations import open_session

            self._orm_session = open_session(self.second_connection())
        return self._orm_session

    def has_written(self) -> bool:
        """Asked when the handler has returned: with it the transaction is at its end."""
        self._finish()
        return bool(self._statements.value(self._session, "has_written"))

    def complete(self, *done: Finished) -> None:
        """Settles and commits. The COMMIT is sent only once the settlement has found its row: else
        the effects could be committed without the completion."""
        self._finish()
        try:
            lost, prepared = self._statements.settle_within(self._session, done, self._marker)
        except psycopg.Error as error:
            if lacks_a_right(error):
                raise self._refusal(error, done[0].claim) from error
            if lacks_partition(error):
                self._make_partitions()
            elif not is_blocked(error, self._statements.schema):
                raise
            raise SettlementBlockedError(_BLOCKED, reason(error)) from error
        if lost is None:
            raise PermanentCommandError(
                "TRANSACTION_ENDED",
                "the handler ended the transaction of context.connection by itself, or changed "
                "its isolation level: it commits with the command, so what it wrote may be "
                "there twice if it runs again; an operator must decide",
            )
        if lost:
            raise self._missing(lost[0])
        failpoint(BEFORE_COMMIT)
        self._commit(prepared)
        self._clean = True

    def end(self) -> None:
        """Leaves the session clean for the next command, or closed."""
        self._retire()
        try:
            self._clean_up()
            if self._session.closed and not self.dropped:
                with suppress(psycopg.Error):
                    self._session.pgconn.is_busy()  # Reads notices that came before its end.
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
            self._roll_back()
        except psycopg.Error:
            self._session.close()

    def met_new_plan(self, error: BaseException, claim: Claim) -> bool:
        """Whether a migration has invalidated a statement that the driver had prepared in this
        session; the driver forgets those at the rollback. A handler that meets one again and
        again changes the table itself. Asked after the end."""
        return (
            is_outdated_plan(error)
            and self.aborted
            and self.failures(claim, PLAN_CHANGED) < _MAX_PLAN_CHANGES
        )

    def failures(self, claim: Claim, code: str) -> int:
        """The number of the command's executions with this error; asked after the end."""
        values = {"domain": claim.domain, "command_id": claim.command_id, "code": code}
        return int(self._statements.value(self._session, "count_failures", **values))

    def _refusal(self, error: psycopg.Error, claim: Claim) -> CmdbusError:
        """The error for a missing right. If the worker's role has all rights, the handler has
        changed the role, or the right was granted at this moment: then a retry succeeds."""
        self._roll_back()
        self._clean = True
        if self._statements.rows(self._session, "read_missing_rights"):
            return SettlementBlockedError(_BLOCKED, reason(error))
        message = (
            f"the command cannot be settled in the transaction of context.connection "
            f"({reason(error)}): a handler that changes its role (SET ROLE) must change it back "
            f"before it returns (RESET ROLE)"
        )
        if not self.failures(claim, _ROLE_CHANGED):
            return SettlementBlockedError(_ROLE_CHANGED, message)
        return TransientCommandError(_ROLE_CHANGED, message)

    def _missing(self, claim: Claim) -> CmdbusError:
        """The error for a command that the settlement did not find."""
        self._roll_back()
        self._clean = True
        if not self._statements.still_held(self._session, [claim]):
            return LeaseLostError()
        return TransientCommandError(
            "COMMAND_CHANGED",
            "the handler canceled or deleted its own command in the transaction of "
            "context.connection, which commits with the command's completion: raise an error "
            "to end the command in another way",
        )

    def _make_partitions(self) -> None:
        self._roll_back()
        self._clean = True
        make_partitions(self._statements, self._session)

    def _begin(self, statement: float, idle: float) -> None:
        begin(self._statements, self._session, statement=statement, idle=idle, marker=self._marker)

    def _commit(self, prepared: Sequence[str]) -> None:
        commit(self._statements, self._session, prepared)

    def _roll_back(self) -> None:
        roll_back(self._statements, self._session)

    def _noticed(self, notice: psycopg.errors.Diagnostic) -> None:
        """The notice of an immediate shutdown, or of a crash; no command can cause it."""
        if notice.source_function == _ENDS_ALL:
            self.server_ended = True

    def _retire(self) -> None:
        if self._at_rest is None:
            if self._orm_session is not None:
                self._orm_session.end()
            self._at_rest = self.connection.retire()
            del self.connection  # It refers to this object.

    def _finish(self) -> None:
        """What the handler did is sent, and nothing more comes."""
        if self._orm_session is not None and self._at_rest is None:
            self._orm_session.finish()
        self._retire()
        self._check_finished()

    def _check_finished(self) -> None:
        if not self._at_rest:
            raise TransientCommandError(
                "CONNECTION_IN_USE",
                "the handler returned while context.connection was still in use, by another "
                "thread or by a COPY, a stream or a pipeline that was not finished: finish all "
                "database work before you return",
            )
        if self._session.closed:
            raise psycopg.OperationalError(
                "the session was lost while the handler ran, which went on without it"
            )
        if self._session.info.transaction_status not in (_INTRANS, _IDLE):
            raise TransientCommandError(
                "TRANSACTION_ABORTED",
                "the handler returned after an error had aborted the transaction of "
                "context.connection: let the error out, or use a savepoint "
                "(with context.connection.transaction())",
            )
