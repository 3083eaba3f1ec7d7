"""Sending in a caller's transaction, whatever library that is of: all or nothing, together."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import psycopg
import psycopg2
import psycopg2.extras
import pytest
from handlers import connect, handling, running
from queries import rows, scalar
from roles import role
from transactions import KINDS, WAYS, Begin, Transaction, of_pooled_connection

from cmdbus import (
    BusinessRuleError,
    Command,
    CommandBus,
    Context,
    DuplicateCommandError,
    QueueFullError,
    SchemaError,
    SendRequest,
)
from cmdbus.errors import MissingRightError

LONG = {"pg8000", "Session of psycopg2", "scoped_session of pg8000"}


def marked(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in names]


kinds = pytest.mark.parametrize("kind", marked(KINDS))
ways = pytest.mark.parametrize("kind", marked(WAYS))


@pytest.fixture
def begin(kind: str, dsn: str) -> Iterator[Begin]:
    with connect(dsn) as connection:
        connection.execute("CREATE TABLE orders (id integer)")
    yield KINDS[kind]


@pytest.fixture
def own(begin: Begin, dsn: str) -> Iterator[Transaction]:
    with begin(dsn) as transaction:
        yield transaction


def send_all(bus: CommandBus, own: Transaction) -> int:
    """In each way that sends; the number of commands."""
    bus.send("payments", "Debit", connection=own.connection)
    bus.send_many(
        [SendRequest("payments", "Debit", delay=d) for d in (0, 60)], connection=own.connection
    )
    bus.create_batch("payments", [SendRequest("payments", "Debit")] * 2, connection=own.connection)
    return 5


def orders(dsn: str) -> int:
    return int(rows(dsn, "SELECT count(*) FROM orders")[0][0])


@kinds
def test_commands_are_there_when_the_callers_transaction_commits(
    own: Transaction, bus: CommandBus, dsn: str
) -> None:
    own.execute("INSERT INTO orders VALUES (1)")
    sent = send_all(bus, own)
    assert bus.snapshot("payments")["depth"] == 0
    assert bus.snapshot("payments", connection=own.connection)["depth"] == sent
    own.commit()
    assert (bus.snapshot("payments")["depth"], orders(dsn)) == (sent, 1)


@ways
def test_no_command_is_there_when_the_callers_transaction_rolls_back(
    own: Transaction, bus: CommandBus, dsn: str
) -> None:
    own.execute("INSERT INTO orders VALUES (1)")
    send_all(bus, own)
    own.rollback()
    own.commit()
    assert (bus.snapshot("payments")["depth"], orders(dsn)) == (0, 0)


@kinds
def test_a_send_that_begins_the_transaction_is_committed_with_it(
    own: Transaction, bus: CommandBus
) -> None:
    sent = bus.send("payments", "Debit", connection=own.connection)
    assert bus.get("payments", sent) is None
    own.commit()
    assert bus.get("payments", sent) is not None


@ways
def test_what_is_sent_in_a_savepoint_ends_with_that(own: Transaction, bus: CommandBus) -> None:
    own.execute("INSERT INTO orders VALUES (1)")
    with own.savepoint():
        kept = bus.send("payments", "Debit", connection=own.connection)
    with pytest.raises(ZeroDivisionError), own.savepoint():
        send_all(bus, own)
        raise ZeroDivisionError
    own.commit()
    assert [record.command_id for record in bus.query("payments")] == [kept]


@ways
def test_in_autocommit_mode_each_call_is_a_transaction(
    begin: Begin, bus: CommandBus, dsn: str
) -> None:
    with begin(dsn, autocommit=True) as own:
        sent = send_all(bus, own)
        assert bus.snapshot("payments")["depth"] == sent
        taken = bus.send("payments", "Debit", connection=own.connection)
        with pytest.raises(DuplicateCommandError):
            two = [SendRequest("payments", "Debit"), SendRequest("payments", "Debit", None, taken)]
            bus.send_many(two, connection=own.connection)
    assert bus.snapshot("payments")["depth"] == sent + 1


@pytest.mark.parametrize("autocommit", [False, True])
@ways
def test_a_bulk_that_is_refused_half_way_leaves_nothing(
    begin: Begin, bus: CommandBus, dsn: str, autocommit: bool
) -> None:
    """And the session as it was."""
    requests = [SendRequest("payments", "Debit")] * 1_001
    with begin(dsn, autocommit=autocommit) as own:
        own.execute("SET application_name = 'shop'")
        own.execute("CREATE TEMP TABLE basket (id integer)")
        with pytest.raises(ValueError, match="delay must be"):
            bad = SendRequest("payments", "Debit", delay=-1)
            bus.send_many([*requests, bad], connection=own.connection)
        bus.send("payments", "Debit", connection=own.connection)
        unchanged = "current_setting('application_name') = 'shop'"
        own.execute(f"INSERT INTO basket SELECT 1 / ({unchanged})::integer")
        own.commit()
    assert bus.snapshot("payments")["depth"] == 1


@pytest.mark.parametrize("kind", marked(["psycopg", "psycopg2", "pg8000"]))
def test_a_transaction_that_was_begun_by_sql_stays_the_callers(
    begin: Begin, bus: CommandBus, dsn: str
) -> None:
    with begin(dsn, autocommit=True) as own:
        own.execute("BEGIN")
        send_all(bus, own)
        own.execute("ROLLBACK")
    assert bus.snapshot("payments")["depth"] == 0


@ways
def test_in_an_aborted_transaction_a_send_fails_and_changes_nothing(
    own: Transaction, bus: CommandBus
) -> None:
    own.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(Exception, match="does_not_exist"):
        own.execute("SELECT does_not_exist")
    for send in (
        bus.send,
        lambda *request, **_: bus.create_batch("x", [SendRequest(*request)], **_),
    ):
        with pytest.raises(Exception, match="current transaction is aborted"):
            send("payments", "Debit", connection=own.connection)
    with pytest.raises(Exception, match="current transaction is aborted"):
        own.execute("SELECT 1")
    own.rollback()
    bus.send("payments", "Debit", connection=own.connection)
    own.commit()
    assert bus.snapshot("payments")["depth"] == 1


@ways
def test_a_refused_send_leaves_the_transaction_as_it_was(
    own: Transaction, bus: CommandBus, dsn: str
) -> None:
    taken = bus.send("payments", "Debit", unique="one")
    bus.configure("full", max_depth=1)
    bus.send("full", "Debit")
    own.execute("INSERT INTO orders VALUES (1)")
    for refused, domain, options in (
        (DuplicateCommandError, "payments", {"command_id": taken}),
        (DuplicateCommandError, "payments", {"unique": "one"}),
        (QueueFullError, "full", {}),
        (ValueError, "payments", {"expires": 1, "delay": 2}),
    ):
        with pytest.raises(refused):
            bus.send(domain, "Debit", connection=own.connection, **options)
        requests = [SendRequest("payments", "Debit"), SendRequest(domain, "Debit", **options)]
        with pytest.raises(refused):
            bus.send_many(requests, connection=own.connection)
        with pytest.raises(refused):
            bus.create_batch("payments", requests, connection=own.connection)
    own.execute("INSERT INTO orders VALUES (2)")
    own.commit()
    assert (bus.snapshot("payments")["depth"], orders(dsn)) == (1, 2)


@pytest.mark.parametrize("driver", marked(["psycopg", "psycopg2", "pg8000"]))
def test_a_connection_of_sqlalchemys_pool_is_the_drivers(
    driver: str, bus: CommandBus, dsn: str
) -> None:
    with of_pooled_connection(driver, dsn) as own:
        bus.send("payments", "Debit", connection=own.connection)
        assert bus.snapshot("payments")["depth"] == 0
        own.commit()
    assert bus.snapshot("payments")["depth"] == 1


def test_an_application_may_have_told_its_driver_to_return_dictionaries(
    bus: CommandBus, dsn: str
) -> None:
    with psycopg2.connect(dsn, cursor_factory=psycopg2.extras.RealDictCursor) as own:
        sent = bus.send("payments", "Debit", {"amount": 5}, connection=own)
        found = bus.get("payments", sent, connection=own)
        assert found is not None and found.data == {"amount": 5}
    own.close()


def test_an_application_may_have_told_psycopg2_to_read_values_its_own_way(
    bus: CommandBus, dsn: str
) -> None:
    sent = bus.send("payments", "Debit", unique="one", delay=60)
    with closing(psycopg2.connect(dsn)) as own:
        everything = psycopg2.extensions.new_type(
            (16, 20, 21, 23, 25, 701, 1009, 1184, 1186, 2950, 2951), "own", lambda *_: "own"
        )
        psycopg2.extensions.register_type(everything, own)
        with pytest.raises(DuplicateCommandError):
            bus.send("payments", "Debit", unique="one", connection=own)
        bus.send_many([SendRequest("payments", "Debit", delay=60)], connection=own)
        found = bus.get("payments", sent, connection=own)
        with own.cursor() as cursor:
            cursor.execute("SELECT now()")
            assert cursor.fetchone() == ("own",)
    assert found == bus.get("payments", sent)


@ways
def test_what_the_database_lacks_is_explained(own: Transaction, dsn: str) -> None:
    with (
        CommandBus(dsn, schema="other") as bus,
        pytest.raises(SchemaError, match=r"'other' is not installed .*run cmdbus init"),
    ):
        bus.send("payments", "Debit", connection=own.connection)


@ways
def test_a_right_that_the_role_lacks_is_named(own: Transaction, bus: CommandBus) -> None:
    own.execute("SET LOCAL ROLE pg_monitor")
    needed = "permission denied for .* cmdbus.* roles of the kind producer"
    with pytest.raises(MissingRightError, match=needed):
        bus.send("payments", "Debit", connection=own.connection)


@ways
def test_a_driver_reports_its_own_errors(
    kind: str, own: Transaction, bus: CommandBus, dsn: str
) -> None:
    taken = uuid4()
    with psycopg.connect(dsn) as other:
        bus.send("payments", "Debit", command_id=taken, connection=other)
        own.execute("SET LOCAL lock_timeout = 1")
        with pytest.raises(Exception, match="lock timeout") as caught:
            bus.send("payments", "Debit", command_id=taken, connection=own.connection)
    assert type(caught.value).__module__.split(".")[0] == kind.split()[-1]


def test_what_a_handler_sends_with_its_session_is_a_part_of_its_transaction(
    dsn: str, bus: CommandBus
) -> None:
    def pay(command: Command, context: Context) -> None:
        bus.send("mail", "Receipt", command.data, connection=context.session)
        if command.data == "bad":
            raise BusinessRuleError("BAD", "it is bad")

    with running(dsn, handling(pay)):
        for data in ("bad", "good"):
            bus.wait("payments", bus.send("payments", "Debit", data))
    assert [record.data for record in bus.query("mail")] == ["good"]


@ways
def test_a_producers_rights_suffice_to_send(own: Transaction, bus: CommandBus, dsn: str) -> None:
    """Also for those that some commands have only."""
    with role(dsn, "producer") as connection:
        name = scalar(connection, "SELECT current_user")
        own.execute(f'SET LOCAL ROLE "{name}"')
        sent = send_all(bus, own)
        more = SendRequest("payments", "Debit", key="k", unique="u", expires=60, delay=5)
        bus.send_many([more], connection=own.connection)
        own.commit()
    assert bus.snapshot("payments")["depth"] == sent + 1
