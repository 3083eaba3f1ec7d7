"""What a handler gets in the form of another library: SQLAlchemy's session.

Imported by executions, and only when a handler touches it: no worker loads such a library by
itself.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cmdbus.worker.integrations.sqlalchemy_session import HandlerSession


def open_session(driver: Any) -> "HandlerSession":
    """See `sqlalchemy_session`; an ImportError says what is missing."""
    try:
        from cmdbus.worker.integrations import sqlalchemy_session
    except ImportError as error:
        raise ImportError(
            "context.session needs SQLAlchemy 2: pip install 'sqlalchemy>=2'"
        ) from error
    return sqlalchemy_session.open_session(driver)
