"""Errors as answers: a status, and a sentence for the page. Pure."""

from http import HTTPStatus
from typing import Any

from cmdbus.errors import (
    BatchNotFoundError,
    CmdbusError,
    CommandNotFoundError,
    DatabaseUnavailableError,
    InvalidOperationError,
    MissingRightError,
    ProcessNotFoundError,
    SendRefusedError,
)
from cmdbus.printable import joined, with_notes
from cmdbus.web.query import NotFound

#: The first match applies.
_STATUSES: tuple[tuple[type[BaseException], HTTPStatus], ...] = (
    (DatabaseUnavailableError, HTTPStatus.SERVICE_UNAVAILABLE),
    (MissingRightError, HTTPStatus.FORBIDDEN),
    (CommandNotFoundError, HTTPStatus.NOT_FOUND),
    (BatchNotFoundError, HTTPStatus.NOT_FOUND),
    (ProcessNotFoundError, HTTPStatus.NOT_FOUND),
    (NotFound, HTTPStatus.NOT_FOUND),
    (InvalidOperationError, HTTPStatus.CONFLICT),
    (SendRefusedError, HTTPStatus.CONFLICT),
    (ValueError, HTTPStatus.BAD_REQUEST),
)
#: SQLSTATEs of statements that the server canceled, and classes of those of a server that is away.
_CANCELED = "57014"
_AWAY = ("08", "53", "57")
#: Errors that the driver raises by itself where a session has ended.
_LOST = {"InterfaceError", "OperationalError"}


def failure(error: Exception) -> tuple[HTTPStatus, dict[str, Any]] | None:
    """None for an unexpected error, which belongs in the log and not on the page."""
    found = _failure(error)
    return found and (found[0], {**found[1], "error": with_notes(error, found[1]["error"])})


def _failure(error: Exception) -> tuple[HTTPStatus, dict[str, Any]] | None:
    if hasattr(error, "sqlstate"):  # of the driver
        return _of_driver(error, error.sqlstate)
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            away = {"away": True} if kind is DatabaseUnavailableError else {}
            return status, {"error": joined(str(error)), **away}
    if isinstance(error, CmdbusError):
        return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": joined(str(error))}
    return None


def _of_driver(error: Exception, sqlstate: str | None) -> tuple[HTTPStatus, dict[str, Any]] | None:
    if sqlstate == _CANCELED:
        return HTTPStatus.GATEWAY_TIMEOUT, {
            "error": "the database did not answer in time: narrow the question, or try again"
        }
    if sqlstate is None and not _LOST & {kind.__name__ for kind in type(error).__mro__}:
        return None
    # Without its details, which may be data.
    message = getattr(getattr(error, "diag", None), "message_primary", None)
    text = message or joined(str(error).partition("\n")[0]) or type(error).__name__
    if sqlstate is None or sqlstate.startswith(_AWAY):
        return HTTPStatus.SERVICE_UNAVAILABLE, {"error": text, "away": True}
    return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"the database answered: {text}"}
