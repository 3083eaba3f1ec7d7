"""What the web server runs."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Annotated
from uuid import UUID, uuid4

from fastapi import Depends, FastAPI, HTTPException
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from cmdbus import AsyncCommandBus, CommandNotFoundError
from fastapi_app.models import Account, Base, MakeTransfer, Transfer

url = os.environ["DATABASE_URL"]
engine = create_async_engine(url.replace("postgresql:", "postgresql+psycopg:", 1))
open_session = async_sessionmaker(engine)
bus = AsyncCommandBus(url)
make_transfer = bus.sender("bank", "MakeTransfer", MakeTransfer)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await bus.close()
    await engine.dispose()


async def session_of_request() -> AsyncGenerator[AsyncSession, None]:
    async with open_session() as session:
        yield session


app = FastAPI(lifespan=lifespan)
Session = Annotated[AsyncSession, Depends(session_of_request)]


@app.post("/accounts", status_code=201)
async def open_account(balance: Decimal, session: Session) -> int:
    session.add(account := Account(balance=balance))
    await session.flush()
    account_id = account.id
    await session.commit()
    return account_id


@app.post("/transfers", status_code=202)
async def ask_for_transfer(asked: MakeTransfer, session: Session) -> UUID:
    transfer_id = uuid4()
    session.add(Transfer(id=transfer_id, **asked.model_dump()))
    command = make_transfer.options(command_id=transfer_id, connection=session)
    await command.send(source=asked.source, target=asked.target, amount=asked.amount)
    try:
        await session.commit()  # the transfer and its command, or neither
    except IntegrityError:
        raise HTTPException(404, "there is no such account") from None
    return transfer_id


@app.get("/transfers/{transfer_id}")
async def show_transfer(transfer_id: UUID) -> str:
    """Its status, once it has ended or after ten seconds."""
    try:
        return (await bus.wait("bank", transfer_id, timeout=10)).status
    except CommandNotFoundError:
        raise HTTPException(404, "there is no such transfer") from None
    except TimeoutError:
        return "PENDING"
