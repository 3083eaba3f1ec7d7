"""Sending in SQL, and in sessions of other kinds than the bus makes."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from handlers import connect, found
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool
from senders import counts

from cmdbus import CommandBus, SendRequest
from cmdbus.database.schema import check


def test_sql_sends_in_its_own_transaction(dsn: str) -> None:
    with CommandBus(dsn) as bus, psycopg.connect(dsn) as connection:
        own, correlation = uuid4(), uuid4()
        sent = connection.execute(
            "SELECT cmdbus.send('payments', 'Debit', '{\"amount\": 5}', p_command_id => %s,"
            " p_priority => 0, p_delay => '1 hour', p_correlation_id => %s, p_reply_to => 'orders',"
            " p_max_attempts => 2)",
            (own, correlation),
        ).fetchone()
        assert sent == (own,)
        assert bus.get("payments", own) is None
        connection.commit()
        record = found(bus, own)
        assert record.data == {"amount": 5}
        assert (record.priority, record.max_attempts, record.reply_to) == (0, 2, "orders")
        assert record.correlation_id == correlation
        assert record.due_at - record.created_at > timedelta(minutes=59)


def test_sql_sends_headers(dsn: str) -> None:
    """As they are in all kinds of sends; none are NULL."""
    with CommandBus(dsn) as bus, connect(dsn) as connection:
        for more in ("", ", p_unique => 'u'", ", p_delay => '1 hour'"):
            query = f"SELECT cmdbus.send('payments', 'Debit', p_headers => %s{more})".encode()
            for given, stored in (('{"tenant" : "blue"}', {"tenant": "blue"}), (None, {})):
                row = connection.execute(query, (given,)).fetchone()
                assert row is not None
                assert found(bus, row[0]).headers == stored
                bus.cancel("payments", row[0])


def test_wrong_headers_in_sql_get_one_sentence(connection: psycopg.Connection) -> None:
    for given, sentence in (
        ("'[]'", "p_headers must be an object of names and texts, not an array"),
        ("'5'", "p_headers must be an object of names and texts, not a number"),
        (
            """'{"a b": ""}'""",
            "the name of a header in p_headers must be a letter and up to 99 more",
        ),
        ("""'{"a": 1}'""", "header a in p_headers must be text of at most 4000 characters"),
        ("json_build_object('a', repeat('x', 4001))", "header a in p_headers must be text of at "),
        ("json_build_object('a', repeat('x', 9000))", "p_headers has 9010 bytes: at most 8192 "),
        (
            "(SELECT json_object_agg('h' || n, '') FROM generate_series(1, 33) n)",
            "p_headers has 33 headers: at most 32 are taken",
        ),
    ):
        query = f"SELECT cmdbus.send('payments', 'Debit', p_headers => {given})".encode()
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=sentence):
            connection.execute(query)


def test_a_trigger_sends(dsn: str) -> None:
    with CommandBus(dsn) as bus, connect(dsn) as connection:
        connection.execute(
            "CREATE TABLE account (id int);"
            "CREATE FUNCTION opened() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " PERFORM cmdbus.send('accounts', 'Opened', jsonb_build_object('id', NEW.id));"
            " RETURN NEW; END $$;"
            "CREATE TRIGGER opened AFTER INSERT ON account FOR EACH ROW EXECUTE FUNCTION opened();"
            "INSERT INTO account VALUES (1), (2)"
        )
        assert [record.data for record in bus.query("accounts")] == [{"id": 2}, {"id": 1}]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("'no spaces', 'Debit'", "p_domain must be a letter"),
        ("NULL, 'Debit'", "p_domain must be a letter"),
        ("'payments', E'a\\nb'", "p_type must be a letter"),
        ("'payments', 'Debit', p_priority => 11", "p_priority must be from 0"),
        ("'payments', 'Debit', p_delay => '-1 s'", "p_delay must be from 0"),
        ("'payments', 'Debit', p_max_attempts => 0", "p_max_attempts must be from 1"),
        ("'payments', 'Debit', p_reply_to => ''", "p_reply_to must be a letter"),
        ("'payments', 'Debit', to_jsonb(repeat('x', 1048576))", "p_data has 1048578 bytes"),
    ],
)
def test_a_wrong_argument_in_sql_is_named(dsn: str, arguments: str, sentence: str) -> None:
    before = counts(dsn)
    invalid = pytest.raises(psycopg.errors.InvalidParameterValue, match=sentence)
    with connect(dsn) as connection, invalid:
        connection.execute(f"SELECT cmdbus.send({arguments})".encode())
    assert counts(dsn) == before


def test_sql_and_python_state_the_same_rule_for_names(bus: CommandBus, dsn: str) -> None:
    with pytest.raises(ValueError, match="domain must be") as in_python:
        bus.send("no spaces", "Debit")
    rule, _, _ = str(in_python.value).partition(", not ")
    with (
        connect(dsn) as connection,
        pytest.raises(psycopg.errors.InvalidParameterValue) as in_sql,
    ):
        connection.execute("SELECT cmdbus.send('no spaces', 'Debit')")
    assert in_sql.value.diag.message_primary == f"p_{rule}"


def test_a_send_in_sql_is_refused_like_any_other(dsn: str) -> None:
    with CommandBus(dsn) as bus, connect(dsn) as connection:
        id_ = bus.send("payments", "Debit")
        with pytest.raises(psycopg.errors.UniqueViolation, match=f"command {id_} was sent"):
            connection.execute("SELECT cmdbus.send('payments', 'D', p_command_id => %s)", (id_,))
        bus.configure("payments", max_depth=1)
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded, match="payments is full"):
            connection.execute("SELECT cmdbus.send('payments', 'Debit')")
        bus.configure("payments", accepting=False)
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="does not accept"):
            connection.execute("SELECT cmdbus.send('payments', 'Debit')")


@pytest.mark.parametrize(
    "setting", ["DateStyle = 'SQL, DMY'", "IntervalStyle = 'sql_standard'", "bytea_output = escape"]
)
def test_a_callers_session_may_write_values_in_another_way(dsn: str, setting: str) -> None:
    at = datetime(2031, 2, 3, 4, 5, 6, 7, tzinfo=UTC)
    with CommandBus(dsn) as bus, connect(dsn) as connection:
        connection.execute(f"SET {setting}".encode())
        bus.configure("payments", keep=timedelta(days=3), connection=connection)
        ids = bus.send_many(
            [SendRequest("payments", "Debit", {"n": 1.5}, run_at=at), SendRequest("payments", "D")],
            connection=connection,
        )
        record = bus.get("payments", ids[0], connection=connection)
        assert record is not None and (record.due_at, record.data) == (at, {"n": 1.5})
        assert record == bus.get("payments", ids[0])
        assert [domain.keep for domain in bus.domains(connection=connection)] == [timedelta(days=3)]
        for inside, outside in (
            (bus.audit("payments", ids[1], connection=connection), bus.audit("payments", ids[1])),
            (bus.query(connection=connection), bus.query()),
            (bus.domain_audit("payments", connection=connection), bus.domain_audit("payments")),
        ):
            assert inside == outside
        assert bus.snapshot("payments", connection=connection)["depth"] == 2
        assert bus.cancel_all("payments", connection=connection) == 2
        assert bus.troubleshooting.list(connection=connection) == []


@pytest.mark.parametrize("cursors", [psycopg.RawCursor, psycopg.ClientCursor])
def test_a_callers_connection_may_make_other_cursors_and_rows(
    dsn: str, cursors: type[psycopg.Cursor[Any]]
) -> None:
    pool = ConnectionPool(
        dsn,
        kwargs={"autocommit": True, "cursor_factory": cursors, "row_factory": dict_row},
        min_size=1,
        max_size=2,
        open=True,
    )
    with pool, CommandBus(pool=pool) as bus, pool.connection() as connection:
        id_ = bus.send("payments", "DebitAccount", {"n": 1}, connection=connection)
        bus.send_many([SendRequest("payments", "DebitAccount")], connection=connection)
        assert found(bus, id_).data == {"n": 1}
        check(connection, "cmdbus")
