"""Buses as programs on asyncio make them: with a DSN, or with a pool."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from psycopg_pool import AsyncConnectionPool

from cmdbus import AsyncCommandBus


@asynccontextmanager
async def with_dsn(dsn: str, **options: Any) -> AsyncIterator[AsyncCommandBus]:
    async with AsyncCommandBus(dsn, **options) as bus:
        yield bus


@asynccontextmanager
async def with_pool(dsn: str, **options: Any) -> AsyncIterator[AsyncCommandBus]:
    pool = AsyncConnectionPool(dsn, min_size=1, max_size=4, open=False)
    async with pool, AsyncCommandBus(pool=pool, **options) as bus:
        yield bus


Make = Callable[..., AbstractAsyncContextManager[AsyncCommandBus]]
makes = pytest.mark.parametrize("make", [with_dsn, with_pool])
