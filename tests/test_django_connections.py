"""Django's connections as what the calls of a bus take."""

import asyncio
import threading
from typing import Any

import pytest
from django_support import database_of, fresh_connections, set_up

from cmdbus import AsyncCommandBus, CommandBus


@pytest.fixture
def database(dsn: str) -> Any:
    """Django's default connection is to the database of the bus."""
    set_up()
    with database_of(dsn):
        yield


@pytest.mark.usefixtures("database")
def test_a_send_is_in_the_transaction_of_either_object(bus: CommandBus) -> None:
    from django.db import connection, connections, transaction

    with transaction.atomic():
        for each in (connection, connections["default"]):
            bus.send("payments", "Debit", connection=each)
        assert bus.snapshot("payments")["depth"] == 0
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        bus.send("payments", "Debit", connection=connection)
        raise ZeroDivisionError
    assert bus.snapshot("payments")["depth"] == 2
    bus.send("payments", "Debit", connection=connection)
    assert bus.snapshot("payments", connection=connection)["depth"] == 3


@pytest.mark.usefixtures("database")
def test_a_transaction_that_must_be_rolled_back_is_refused_as_by_django(bus: CommandBus) -> None:
    from django.db import connection, transaction

    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(transaction.TransactionManagementError, match="execute queries until"):
            bus.send("payments", "Debit", connection=connection)
    bus.send("payments", "Debit", connection=connection)
    assert bus.snapshot("payments")["depth"] == 1


@pytest.mark.usefixtures("database")
def test_a_connection_of_another_thread_is_refused_as_by_django(bus: CommandBus) -> None:
    from django.db import DatabaseError, connections

    given, errors = connections["default"], list[str]()

    def send() -> None:
        try:
            bus.send("payments", "Debit", connection=given)
        except DatabaseError as error:
            errors.append(str(error))

    thread = threading.Thread(target=send)
    thread.start()
    thread.join()
    given.close()
    assert "can only be used in that same thread" in errors[0]


def test_a_database_that_is_not_postgresql_is_refused(bus: CommandBus) -> None:
    set_up()
    from django.db import connections

    connections.settings["other"] = {
        **connections.settings["default"],
        **{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
    }
    try:
        with fresh_connections(), pytest.raises(ValueError) as refused:
            bus.send("payments", "Debit", connection=connections["other"])
    finally:
        del connections.settings["other"]
    assert str(refused.value) == (
        "connection is Django's for SQLite (DATABASES['other']): commands are sent in a "
        "transaction of the PostgreSQL database that has the schema"
    )


@pytest.mark.usefixtures("database")
def test_an_asynchronous_bus_refuses_it_and_says_how_to_send(dsn: str) -> None:
    """Django's connections belong to threads."""
    from django.db import connection

    async def send() -> None:
        async with AsyncCommandBus(dsn) as bus:
            with pytest.raises(ValueError, match="use a CommandBus in sync_to_async"):
                await bus.send("payments", "Debit", connection=connection)

    asyncio.run(send())
