"""What is passed as `connection=` and refused, and the sentences that say so."""

import re
import subprocess
import sys
from contextlib import closing
from typing import Any
from uuid import uuid4

import asyncpg
import psycopg
import psycopg2
import psycopg2.extras
import pytest
import sqlalchemy.ext.asyncio
import sqlalchemy.orm
from handlers import connect
from psycopg_pool import ConnectionPool

from cmdbus import (
    CommandBus,
    SendRequest,
)

ENGINE = sqlalchemy.create_engine("sqlite://")
HINT = ": AsyncCommandBus takes it"
REFUSED = [
    ({}, "dict"),
    ("host=/tmp", "str"),
    (ENGINE, "sqlalchemy.engine.base.Engine"),
    (sqlalchemy.orm.sessionmaker(ENGINE), "sqlalchemy.orm.session.sessionmaker"),
    (sqlalchemy.ext.asyncio.AsyncSession(), f"sqlalchemy.ext.asyncio.session.AsyncSession{HINT}"),
    (object.__new__(psycopg.AsyncConnection), f"psycopg.AsyncConnection{HINT}"),
    (object.__new__(asyncpg.Connection), "asyncpg.connection.Connection"),
    (ConnectionPool(open=False), "psycopg_pool.pool.ConnectionPool"),
]


@pytest.mark.parametrize(("other", "name"), REFUSED, ids=[name for _, name in REFUSED])
def test_anything_else_is_refused_in_one_sentence(other: Any, name: str) -> None:
    accepted = (
        "connection must be a psycopg.Connection (psycopg 3), an SQLAlchemy Session, "
        "scoped_session or Connection, one of Django's connections, or a DB-API connection to "
        "PostgreSQL, such as psycopg2's, "
        f"not {name}"
    )
    with CommandBus("host=/nowhere") as bus:
        with pytest.raises(ValueError, match=f"^{re.escape(accepted)}$"):
            bus.send("payments", "Debit", connection=other)
        with pytest.raises(ValueError, match=f"^{re.escape(accepted)}$"):
            bus.get("payments", uuid4(), connection=other)


def test_other_databases_are_refused(bus: CommandBus) -> None:
    with sqlalchemy.create_engine("sqlite://").connect() as own:
        for connection in (own, sqlalchemy.orm.Session(own)):
            with pytest.raises(ValueError, match=r"^connection is SQLAlchemy's for sqlite: "):
                bus.send("payments", "Debit", connection=connection)
        with pytest.raises(ValueError, match=r"to PostgreSQL.*, not sqlite3\.Connection$"):
            bus.send("payments", "Debit", connection=own.connection)


def test_a_connection_in_sql_ascii_is_refused_over_psycopg2(bus: CommandBus, dsn: str) -> None:
    with closing(psycopg2.connect(dsn)) as own:
        own.set_client_encoding("SQL_ASCII")
        with pytest.raises(ValueError, match="client_encoding is SQL_ASCII"):
            bus.send("payments", "Debit", connection=own)


def test_a_style_of_dates_that_psycopg2_does_not_read_is_refused(bus: CommandBus, dsn: str) -> None:
    with closing(psycopg2.connect(dsn)) as own:
        own.cursor().execute("SET datestyle = 'German'")
        for send in (bus.send, bus.get):
            with pytest.raises(ValueError, match=r"DateStyle is German, DMY, of .*: execute SET"):
                send("payments", "a" * 32, connection=own)
        own.cursor().execute("SET datestyle = 'ISO, DMY'")
        sent = bus.send("payments", "Debit", delay=60, connection=own)
        assert bus.get("payments", sent, connection=own) is not None


def test_no_library_is_loaded_before_one_of_its_objects_comes() -> None:
    code = """
import sys
import cmdbus.worker, cmdbus.supervisor.cli.supervise
bus = cmdbus.CommandBus("host=/none")
try:
    bus.send("payments", "Debit", connection={})
except ValueError:
    pass
print({name.split(".")[0] for name in sys.modules} & {"sqlalchemy", "psycopg2", "flask", "pg8000"})
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20
    )
    assert done.stdout.strip() == "set()"


def test_sessions_are_told_from_those_of_asyncio_without_greenlet() -> None:
    code = """
import sys
sys.modules["greenlet"] = None
import sqlalchemy.orm
from cmdbus.integrations.callers_connection import is_asynchronous
print(is_asynchronous(sqlalchemy.orm.Session()))
print("sqlalchemy.ext.asyncio" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20
    )
    assert done.stdout.split() == ["False", "False"]


def test_an_asynchronous_connection_of_psycopg2_is_refused(bus: CommandBus, dsn: str) -> None:
    with closing(psycopg2.connect(dsn, async_=True)) as own:
        psycopg2.extras.wait_select(own)
        with pytest.raises(ValueError, match=r"asynchronous ones .*: pass one that waits$"):
            bus.send("payments", "Debit", connection=own)
        assert not own.isexecuting()


def test_many_commands_in_a_pipeline_are_refused_and_undo_nothing(
    bus: CommandBus, dsn: str
) -> None:
    requests = [SendRequest("payments", "Debit")]
    with connect(dsn) as own, own.pipeline():
        bus.send("payments", "Debit", connection=own)
        for send in (bus.send_many, lambda *_, **own: bus.create_batch("x", *_, **own)):
            with pytest.raises(ValueError, match="pipeline mode: send many commands before or"):
                send(requests, connection=own)
    assert bus.snapshot("payments")["depth"] == 1
