"""Queues of PGMQ in a test's database."""

from collections.abc import Iterator

import psycopg
import pytest
from databases import Databases, freeze_catalogs
from lab.pgmq_schema import install_pgmq as install_pgmq


def create_queues(connection: psycopg.Connection, *names: str) -> None:
    for name in names:
        connection.execute("SELECT pgmq.create(%s)", (name,))


@pytest.fixture(scope="session")
def pgmq_template(databases: Databases, template: str) -> Iterator[str]:
    """The name of a database to be copied, with cmdbus's schema and PGMQ: installing that takes as
    long as a copy."""
    with databases.fresh(template) as name:
        with psycopg.connect(databases.dsn_of(name), autocommit=True) as connection:
            install_pgmq(connection)
        freeze_catalogs(databases.dsn_of(name))
        psycopg.connect(databases.dsn_of(name)).close()  # leaves a file of the catalog's cache
        yield name


@pytest.fixture(scope="session")
def queues_template(databases: Databases, pgmq_template: str) -> Iterator[str]:
    """One more, with queues: a test that creates queues changes the schema of its database, which
    no other test gets then."""
    with databases.fresh(pgmq_template) as name:
        with psycopg.connect(databases.dsn_of(name), autocommit=True) as connection:
            create_queues(connection, "orders", "answers", "other")
        yield name


@pytest.fixture
def pgmq_dsn(dsn: str) -> str:
    """The test's database, which is a copy of `pgmq_template` for tests that ask for this."""
    return dsn


@pytest.fixture
def queues_dsn(dsn: str) -> str:
    """The test's database, with the queues orders, answers and other."""
    return dsn
