"""Transactions as programs have them, with the drivers and libraries that they use."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import pg8000.dbapi
import psycopg
import psycopg2
from django_support import database_of, set_up
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import Engine, NullPool, create_engine, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker


@dataclass
class Transaction:
    #: What is passed as `connection=`.
    connection: Any
    execute: Callable[[str], object]
    savepoint: Callable[[], AbstractContextManager[object]]

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()


Begin = Callable[..., AbstractContextManager[Transaction]]


def connect_pg8000(dsn: str) -> Any:
    given = conninfo_to_dict(dsn)
    host, port = given.get("host"), given.get("port", 5432)
    keywords = {"user": given.get("user"), "password": given.get("password")}
    if str(host).startswith("/"):
        keywords["unix_sock"] = f"{host}/.s.PGSQL.{port}"
    else:
        keywords |= {"host": host, "port": int(str(port))}
    return pg8000.dbapi.connect(database=given["dbname"], **keywords)


CONNECT: dict[str, Callable[[str], Any]] = {
    "psycopg": psycopg.connect,
    "psycopg2": psycopg2.connect,
    "pg8000": connect_pg8000,
}


@contextmanager
def of_driver(driver: str, dsn: str, autocommit: bool = False) -> Iterator[Transaction]:
    with closing(CONNECT[driver](dsn)) as connection:
        connection.autocommit = autocommit

        def execute(statement: str) -> object:
            with closing(connection.cursor()) as cursor:
                cursor.execute(statement)
                return cursor.fetchall() if cursor.description else None

        @contextmanager
        def savepoint() -> Iterator[None]:
            execute("SAVEPOINT own")
            try:
                yield
            except BaseException:
                execute("ROLLBACK TO SAVEPOINT own")
                raise
            execute("RELEASE SAVEPOINT own")

        yield Transaction(connection, execute, savepoint)


@contextmanager
def engine(driver: str, dsn: str, autocommit: bool = False) -> Iterator[Engine]:
    made = create_engine(
        f"postgresql+{driver}://",
        creator=partial(CONNECT[driver], dsn),
        poolclass=NullPool,
        **({"isolation_level": "AUTOCOMMIT"} if autocommit else {}),
    )
    try:
        yield made
    finally:
        made.dispose()


def _of(session: Any) -> Transaction:
    return Transaction(session, lambda sql: session.execute(text(sql)), session.begin_nested)


@contextmanager
def of_session(driver: str, dsn: str, autocommit: bool = False) -> Iterator[Transaction]:
    with engine(driver, dsn, autocommit) as made, Session(made) as session:
        yield _of(session)


@contextmanager
def of_scoped_session(driver: str, dsn: str, autocommit: bool = False) -> Iterator[Transaction]:
    with engine(driver, dsn, autocommit) as made:
        session = scoped_session(sessionmaker(made))
        yield _of(session)
        session.remove()


@contextmanager
def of_connection(driver: str, dsn: str, autocommit: bool = False) -> Iterator[Transaction]:
    with engine(driver, dsn, autocommit) as made, made.connect() as connection:
        yield _of(connection)


@contextmanager
def of_pooled_connection(driver: str, dsn: str) -> Iterator[Transaction]:
    """SQLAlchemy's pool, with the driver's API."""
    with engine(driver, dsn) as made, closing(made.raw_connection()) as pooled:
        transaction = Transaction(pooled, lambda sql: pooled.cursor().execute(sql), nullcontext)
        yield transaction


@contextmanager
def of_flask(driver: str, dsn: str, autocommit: bool = False) -> Iterator[Transaction]:
    app, db = Flask("shop"), SQLAlchemy()
    app.config["SQLALCHEMY_DATABASE_URI"] = f"postgresql+{driver}://"
    options: dict[str, Any] = {"creator": partial(CONNECT[driver], dsn), "poolclass": NullPool}
    if autocommit:
        options["isolation_level"] = "AUTOCOMMIT"
    app.config["SQLALCHEMY_ENGINE_OPTIONS"] = options
    db.init_app(app)
    with app.app_context():
        yield _of(db.session)
        db.session.remove()


@contextmanager
def of_django(dsn: str, autocommit: bool = False) -> Iterator[Transaction]:
    set_up()
    from django.db import connection, transaction

    def execute(statement: str) -> object:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else None

    with database_of(dsn):
        transaction.set_autocommit(autocommit)
        yield Transaction(connection, execute, transaction.atomic)


#: Each way of the bus into a transaction, and each kind of object.
KINDS: dict[str, Begin] = {
    "psycopg": partial(of_driver, "psycopg"),
    "psycopg2": partial(of_driver, "psycopg2"),
    "pg8000": partial(of_driver, "pg8000"),
    "Session of psycopg": partial(of_session, "psycopg"),
    "Session of psycopg2": partial(of_session, "psycopg2"),
    "scoped_session of pg8000": partial(of_scoped_session, "pg8000"),
    "Connection of psycopg": partial(of_connection, "psycopg"),
    "Flask's db.session": partial(of_flask, "psycopg"),
    "Django's connection of psycopg": of_django,
}
#: One of each way.
WAYS = {
    name: KINDS[name]
    for name in (
        "psycopg",
        "psycopg2",
        "pg8000",
        "Session of psycopg",
        "Django's connection of psycopg",
    )
}
