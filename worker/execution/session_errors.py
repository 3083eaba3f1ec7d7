"""Which errors of a handler are those of its session."""

import traceback

import psycopg

from cmdbus.errors import CommandError

#: Errors of a session that has ended. The server ends an idle transaction later than the worker
#: gives up its command: if it does, the whole process or machine was stopped.
SESSION_ERRORS = (psycopg.OperationalError, psycopg.errors.IdleInTransactionSessionTimeout)
#: The error of SQLAlchemy at each use of a session after one that has ended its transaction.
_AFTER_ERROR = ("sqlalchemy.exc", "PendingRollbackError")
#: Errors from one to the one it was made of, and so on: a chain may be a circle.
_MAX_CHAIN = 20


def session_error(error: BaseException) -> psycopg.Error | None:
    """The error of a session from which the handler made this one, or this one. A CommandError
    is the handler's own decision about its command. Asked only about a session that is gone."""
    chained: BaseException | None = None if isinstance(error, CommandError) else error
    for _ in range(_MAX_CHAIN):
        if (type(chained).__module__, type(chained).__name__) == _AFTER_ERROR:
            return psycopg.OperationalError(str(chained))
        if chained is None or (isinstance(chained, SESSION_ERRORS) and _ends_session(chained)):
            return chained
        chained = chained.__cause__ or chained.__context__
    return None


def _ends_session(error: psycopg.Error) -> bool:
    """A session survives a deadlock, for example: if it has ended nevertheless, that was at the
    rollback, and not the handler's error. Errors of a pooler lack the untranslated severity."""
    severity = error.diag.severity_nonlocalized or error.diag.severity
    return error.sqlstate is None or severity in ("FATAL", "PANIC")


def is_outdated_plan(error: BaseException) -> bool:
    """Whether a migration has invalidated a statement that the driver had prepared. SQLAlchemy and
    Django wrap the driver's errors."""
    if not isinstance(error, psycopg.Error):
        error = getattr(error, "orig", None) or error.__cause__ or error
    return (
        isinstance(error, psycopg.errors.FeatureNotSupported)
        and error.diag.source_function == "RevalidateCachedQuery"
    )


def is_of_driver(error: BaseException) -> bool:
    """Whether the driver could not wait for its session: the descriptor was closed, or the process
    has run out of resources."""
    if not isinstance(error, OSError):
        return False
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    module: str = frames[-1].f_globals.get("__name__", "")
    return module.startswith("psycopg")
