"""Settings that libpq reads besides the DSN apply, and break nothing that the bus relies on."""

import os
from pathlib import Path

import pytest
from handlers import ONCE, SOON, connect, handling, running
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier, Literal
from queries import count, rows, scalar

from cmdbus import Command, CommandBus, Context
from cmdbus.database import dsn as dsns
from cmdbus.database import libpq
from cmdbus.readiness import Finding
from cmdbus.worker.boot.trial import try_claim

SERVICE = "[tenant]\nconnect_timeout=3\ntarget_session_attrs=any\noptions=-c search_path=tenant\n"


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "services"
    file.write_text(SERVICE)
    monkeypatch.setenv("PGSERVICEFILE", str(file))


@pytest.mark.parametrize("dsn", ["service=tenant", "postgresql:///?service=tenant", "port=7"])
def test_a_service_applies_where_the_dsn_says_nothing(
    service: None, monkeypatch: pytest.MonkeyPatch, dsn: str
) -> None:
    if "service" not in dsn:
        monkeypatch.setenv("PGSERVICE", "tenant")
    monkeypatch.setenv("PGOPTIONS", "-c work_mem=1MB")
    monkeypatch.setenv("PGTCP_USER_TIMEOUT", "1")  # which libpq does not know
    parts = dsns.complete_producers(dsns.parse(dsn))
    assert "-c search_path=tenant" in parts["options"] and "work_mem" not in parts["options"]
    assert (parts["connect_timeout"], parts["tcp_user_timeout"]) == ("3", "5000")
    assert parts["target_session_attrs"] == "read-write", "any is what libpq does by itself"


def test_the_environment_applies_and_the_dsn_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PGOPTIONS": "-c work_mem=1MB",
        "PGAPPNAME": "mine",
        "PGCONNECT_TIMEOUT": "4",
        "PGTARGETSESSIONATTRS": "prefer-standby",
        "PGHOSTADDR": "192.0.2.1",
        "PGPORT": "1,2",
    }.items():
        monkeypatch.setenv(name, value)
    parts = dsns.complete_producers(dsns.parse("host=db"))
    settings = "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"
    assert f"{settings} -c work_mem=1MB" in parts["options"], "which may set others"
    assert (parts["application_name"], parts["connect_timeout"]) == ("mine", "4")
    assert parts["target_session_attrs"] == "prefer-standby"
    own = dsns.complete_producers(dsns.parse("connect_timeout=9 options='-c work_mem=2MB'"))
    assert own["connect_timeout"] == "9" and "work_mem=1MB" not in own["options"]
    node = dsns.complete(
        dsns.parse(
            "application_name=other options='-c statement_timeout=9s -c application_name=o'"
        ),
        application_name="cmdbus:1",
        settings={"statement_timeout": "5s"},
    )
    assert node["application_name"] == "cmdbus:1"
    assert node["options"].index("=9s") < node["options"].index("=5s"), "the last one wins"


def test_what_libpq_cannot_read_is_left_to_the_connection() -> None:
    assert libpq.resolved({"service": "nowhere"}) == {}
    assert libpq.resolved({"port": "1,2", "host": "a,b"}).keys() >= {"user"}


def open_dsn(dsn: str) -> str:
    """To the same database, and the environment may add to it."""
    parts = dsns.parse(dsn)
    return make_conninfo(**{key: parts[key] for key in ("host", "user", "dbname")})


@pytest.mark.parametrize("by", ["service", "PGSERVICE", "PGOPTIONS"])
def test_a_handler_writes_where_psql_does(
    dsn: str, bus: CommandBus, service: None, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    with connect(dsn) as connection:
        connection.execute("CREATE SCHEMA tenant")
        connection.execute("CREATE TABLE tenant.effect (command_id uuid, attempt int)")
    where = open_dsn(dsn)
    if by == "service":
        where = make_conninfo(where, service="tenant")
    elif by == "PGSERVICE":
        monkeypatch.setenv("PGSERVICE", "tenant")
    else:
        monkeypatch.setenv("PGOPTIONS", "-c search_path=tenant")

    def debit(command: Command, context: Context) -> None:
        context.connection.execute("INSERT INTO effect VALUES (gen_random_uuid(), 1)")

    with CommandBus(where) as tenant, running(where, handling(debit, retry=ONCE), concurrency=1):
        record = tenant.wait("payments", tenant.send("payments", "Debit"))
        assert record.status == "COMPLETED", record
    assert rows(dsn, "SELECT count(*) FROM tenant.effect") == [(1,)]


POISON = {
    "PGPORT": "1",
    "PGHOSTADDR": "192.0.2.1",
    "PGOPTIONS": "-c nonsense=1",
    "PGSSLMODE": "verify-full",
    "PGREQUIREPEER": "another",
    "PGREQUIREAUTH": "gss",
    "PGGSSENCMODE": "require",
    "PGCHANNELBINDING": "require",
    "PGSSLCERTMODE": "require",
    "PGSSLNEGOTIATION": "direct",
    "PGTARGETSESSIONATTRS": "standby",
    "PGCONNECT_TIMEOUT": "soon",
    "PGCLIENTENCODING": "nonsense",
    "PGUSER": "another",
    "PGDATABASE": "another",
    "PGLOADBALANCEHOSTS": "random",
}


def test_an_embedded_servers_dsn_heeds_nothing_of_the_environment(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "hostaddr=''" not in dsn:
        pytest.skip("CMDBUS_TEST_DSN names another server")
    for name, value in POISON.items():
        monkeypatch.setenv(name, value)
    with CommandBus(dsn) as bus:
        bus.send("payments", "Debit")
    assert {name: os.environ.get(name) for name in POISON} == POISON


def test_a_service_that_is_defined_nowhere_gets_one_sentence_and_stays_in_the_environment(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "hostaddr=''" not in dsn:
        pytest.skip("CMDBUS_TEST_DSN names another server")
    monkeypatch.setenv("PGSERVICE", "nowhere")
    with pytest.raises(ValueError, match="PGSERVICE names a service that no service file defines"):
        CommandBus(dsn)
    assert os.environ["PGSERVICE"] == "nowhere"


ODD = {
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "iso_8601",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "array_nulls": "off",
    "standard_conforming_strings": "off",
    "TimeZone": "Asia/Kathmandu",
    "client_encoding": "LATIN1",
    "quote_all_identifiers": "on",
    "default_transaction_isolation": "serializable",
    "search_path": "",
    "xmlbinary": "hex",
    "row_security": "off",
    "transform_null_equals": "on",
    "statement_timeout": "1h",
}


def test_settings_of_the_database_break_no_command(dsn: str, bus: CommandBus) -> None:
    with connect(dsn) as connection:
        for name, setting in ODD.items():
            alter = SQL("ALTER DATABASE {} SET {} = {}")
            database = Identifier(connection.info.dbname)
            connection.execute(alter.format(database, Identifier(name), Literal(setting)))

    def debit(command: Command, context: Context) -> object:
        if context.attempt == 1:
            raise ValueError("once")
        return scalar(context.connection, "SELECT '03.04.2026'::date::text")

    with (
        CommandBus(dsn) as later,
        running(dsn, handling(debit, retry=SOON), concurrency=2),
    ):
        sent = later.send("payments", "Debit", {"text": "a\\b'\"ä"}, delay=0.01)
        record = later.wait("payments", sent)
        assert (record.status, record.attempts) == ("COMPLETED", 2), record
        assert record.result == "2026-04-03", "an ambiguous date is read as the database says"
        assert record.data == {"text": "a\\b'\"ä"}
        assert len(later.audit("payments", sent)) >= 4
        assert [found.command_id for found in later.query("payments")] == [sent]


def test_a_command_is_tried_before_the_first_start(dsn: str, bus: CommandBus) -> None:
    with dsns.connect(dsns.complete_producers(dsns.parse(dsn))) as connection:
        assert try_claim(connection, dsn, "cmdbus").finding is Finding.OK
        connection.execute("ALTER TABLE cmdbus.finished ADD CHECK (type <> 'Check')")
        found = try_claim(connection, dsn, "cmdbus")
        assert found.finding is Finding.FATAL and "violates check constraint" in found.sentence
        assert "\n" not in str(found)
        assert count(connection, "cmdbus.command") == 0


def test_a_table_that_a_stranger_has_locked_for_a_while_is_waited_for(
    dsn: str, bus: CommandBus
) -> None:
    with (
        dsns.connect(dsns.complete_producers(dsns.parse(dsn))) as connection,
        dsns.connect(dsns.parse(dsn)) as stranger,
    ):
        connection.execute("SET lock_timeout = '50ms'")
        with stranger.transaction():
            stranger.execute("LOCK TABLE cmdbus.ready IN EXCLUSIVE MODE")
            found = try_claim(connection, dsn, "cmdbus")
        assert found.finding is Finding.AWAY and "lock timeout" in found.sentence
        assert try_claim(connection, dsn, "cmdbus").finding is Finding.OK


def test_a_date_style_of_the_environment_breaks_no_timestamp(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGDATESTYLE", "German, DMY")
    with dsns.connect(dsns.complete_producers(dsns.parse(dsn))) as connection:
        assert connection.execute("SHOW DateStyle").fetchone() == ("ISO, DMY",)
