"""PGMQ itself, as the tests of the client and of the bridges install it."""

import psycopg
from pgmq_queues import create_queues, install_pgmq
from queries import scalar


def test_installs_pgmq_in_a_database_and_leaves_one_that_is_there(
    pgmq_dsn: str, connection: psycopg.Connection
) -> None:
    create_queues(connection, "orders")
    connection.execute("SELECT pgmq.send('orders', '{}')")

    install_pgmq(connection)

    assert scalar(connection, "SELECT queue_length FROM pgmq.metrics('orders')") == 1


def test_installs_pgmq_in_a_transaction_of_the_callers(sender: psycopg.Connection) -> None:
    install_pgmq(sender)
    create_queues(sender, "orders")
    sender.rollback()

    assert scalar(sender, "SELECT to_regnamespace('pgmq')") is None
