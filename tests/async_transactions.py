"""Transactions as programs on asyncio have them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import asyncpg
import psycopg
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import NullPool, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine


@dataclass
class AsyncTransaction:
    #: What is passed as `connection=`.
    connection: Any
    execute: Callable[[str], Awaitable[object]]
    savepoint: Callable[[], AbstractAsyncContextManager[object]]

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()


Begin = Callable[..., AbstractAsyncContextManager[AsyncTransaction]]


async def connect_asyncpg(dsn: str) -> Any:
    given = conninfo_to_dict(dsn)
    keywords = {name: given.get(name) for name in ("host", "port", "user", "password")}
    return await asyncpg.connect(database=given["dbname"], **keywords)


@asynccontextmanager
async def of_psycopg(dsn: str, autocommit: bool = False) -> AsyncIterator[AsyncTransaction]:
    made = await psycopg.AsyncConnection.connect(dsn, autocommit=autocommit)
    async with made as connection:
        execute = partial(connection.execute)
        yield AsyncTransaction(connection, execute, connection.transaction)


@asynccontextmanager
async def engine(driver: str, dsn: str, autocommit: bool) -> AsyncIterator[AsyncEngine]:
    connect = connect_asyncpg if driver == "asyncpg" else psycopg.AsyncConnection.connect
    made = create_async_engine(
        f"postgresql+{driver}://",
        async_creator=partial(connect, dsn),
        poolclass=NullPool,
        **({"isolation_level": "AUTOCOMMIT"} if autocommit else {}),
    )
    try:
        yield made
    finally:
        await made.dispose()


def _of(session: Any) -> AsyncTransaction:
    return AsyncTransaction(session, lambda sql: session.execute(text(sql)), session.begin_nested)


@asynccontextmanager
async def of_session(
    driver: str, dsn: str, autocommit: bool = False
) -> AsyncIterator[AsyncTransaction]:
    async with engine(driver, dsn, autocommit) as made, AsyncSession(made) as session:
        yield _of(session)


@asynccontextmanager
async def of_connection(
    driver: str, dsn: str, autocommit: bool = False
) -> AsyncIterator[AsyncTransaction]:
    async with engine(driver, dsn, autocommit) as made, made.connect() as connection:
        yield _of(connection)


ASYNC_KINDS: dict[str, Begin] = {
    "psycopg": of_psycopg,
    "AsyncSession of asyncpg": partial(of_session, "asyncpg"),
    "AsyncSession of psycopg": partial(of_session, "psycopg"),
    "AsyncConnection of psycopg": partial(of_connection, "psycopg"),
}
