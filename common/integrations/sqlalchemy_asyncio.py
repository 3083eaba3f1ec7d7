"""Sessions and connections of SQLAlchemy for asyncio. What they run sees an ordinary session, with
a driver whose calls wait without holding up the event loop."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

T = TypeVar("T")


def run_sync_of(given: object) -> Callable[[Callable[[Any], T]], Awaitable[T]] | None:
    if isinstance(given, async_scoped_session):
        given = given()
    if isinstance(given, AsyncSession | AsyncConnection):
        return given.run_sync
    return None
