"""Databases whose encoding is not UTF-8."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from typing import Any

import psycopg
import psycopg2
import pytest
from claiming import Claimer
from databases import Databases
from handlers import LADDER, Gate, connect, handling, running

from cmdbus import (
    Command,
    CommandBus,
    Context,
    HandlerRegistry,
    RetryPolicy,
    SendRequest,
)
from cmdbus.board.board import Board
from cmdbus.database.schema import install
from cmdbus.errors import SchemaError
from cmdbus.worker.claims.claim import fence_of
from cmdbus.worker.claims.outcomes import Outcome, OutcomeKind, with_ascii_texts
from cmdbus.worker.pipeline.adoption import Adoption
from cmdbus.worker.pipeline.in_flight import RELEASED, InFlight

ONCE = RetryPolicy(max_attempts=1)


def test_the_texts_of_an_outcome_can_be_stored_in_any_encoding() -> None:
    text, escaped = "é ☃ 😀", "\\xe9 \\u2603 \\U0001f600"
    details = json.dumps({text: [f'"{text}\\']}, ensure_ascii=False)
    kind = OutcomeKind.RETRY
    outcome = with_ascii_texts(Outcome(kind=kind, code=text, message=text, details=details))
    assert (outcome.code, outcome.message) == (escaped, escaped)
    assert json.loads(outcome.details or "") == {escaped: [f'"{escaped}\\']}


@pytest.fixture
def latin(databases: Databases) -> Iterator[str]:
    with databases.fresh(encoding="LATIN1") as name:
        install(databases.dsn_of(name))
        yield databases.dsn_of(name)


@pytest.fixture
def unchecked(databases: Databases) -> Iterator[str]:
    """With the schema, as an earlier version or a dump may have left it."""
    change = "UPDATE pg_database SET encoding = pg_char_to_encoding(%s) WHERE datname = %s"
    with databases.fresh(encoding="SQL_ASCII") as name:
        databases.admin.execute(change, ("UTF8", name))
        install(databases.dsn_of(name))
        databases.admin.execute(change, ("SQL_ASCII", name))
        yield databases.dsn_of(name)


@pytest.mark.parametrize("connect", [None, psycopg.connect, psycopg2.connect])
@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1"])
def test_a_text_that_the_encoding_lacks_is_refused_in_one_sentence(
    latin: str, connect: Callable[[str], Any] | None, encoding: str
) -> None:
    sentence = (
        r"^a text has the character '☃' \(U\+2603\), which the encoding (LATIN1|iso8859-1|latin-1) "
        r"of the database or of the connection lacks: use UTF8 for both$"
    )
    requests = [SendRequest("payments", "Debit", each) for each in ("é", "☃")]
    with CommandBus(latin) as bus:
        dsn = f"{latin} client_encoding={encoding}"
        with nullcontext() if connect is None else closing(connect(dsn)) as own:
            with pytest.raises(ValueError, match=sentence):
                bus.send("payments", "Debit", ["☃"], connection=own)
            if own is not None:
                own.rollback()
            with pytest.raises(ValueError, match=sentence):
                bus.send_many(requests, connection=own)
        assert bus.query("payments") == []


def test_a_hang_in_a_line_that_the_encoding_lacks_is_charged(latin: str) -> None:
    registry, gate = HandlerRegistry(), Gate()

    @registry.handler("payments", "Hang", retry=ONCE)
    def hang(command: Command, context: Context) -> None:
        gate(command, context)  # ☃

    @registry.handler("payments", "Fail", retry=ONCE)
    def fail(command: Command, context: Context) -> None:
        raise ValueError("é ☃")

    with CommandBus(latin) as bus, running(latin, registry, concurrency=2, timeouts=LADDER):
        hung = [bus.send("payments", "Hang") for _ in range(2)]
        gate.wait_for(2)
        for command_id in hung:
            record = bus.wait("payments", command_id, 10)
            assert (record.error_code, record.attempts) == ("TIMEOUT", 1)
        failed = bus.wait("payments", bus.send("payments", "Fail"), 10)
        assert (failed.error_code, failed.error_message) == ("ValueError", "\\xe9 \\u2603")
        [event] = [e for e in bus.audit("payments", hung[0]) if e.code == "TIMEOUT"]
        assert "gate(command, context)  # \\u2603" in str(event)
        gate.open.set()


def test_a_result_that_the_encoding_lacks_goes_to_troubleshooting(latin: str) -> None:
    registry = handling(lambda command, context: "é" if command.data else "☃", "Echo")
    with CommandBus(latin) as bus, running(latin, registry):
        bad, good = bus.send("payments", "Echo", False), bus.send("payments", "Echo", True)
        assert bus.wait("payments", bad, 10).error_code == "OUTCOME_NOT_STORABLE"
        assert bus.wait("payments", good, 10).result == "é"


def test_bytes_that_are_no_text_stop_no_worker(unchecked: str) -> None:
    with CommandBus(unchecked) as bus, connect(unchecked) as admin:
        bad = bus.send("payments", "Good", priority="high")
        admin.execute("SET client_encoding = SQL_ASCII")
        admin.execute(
            "UPDATE cmdbus.ready SET data = convert_from('\\x22ff22', 'SQL_ASCII')::json"
            " WHERE command_id = %s",
            (bad,),
        )
        good = [bus.send("payments", "Good") for _ in range(5)]
        with running(unchecked, handling(type="Good")):
            for command_id in good:
                assert bus.wait("payments", command_id, 10).attempts == 1
            code = "SELECT error_code FROM cmdbus.troubleshooting WHERE command_id = %s"
            assert admin.execute(code, (bad,)).fetchall() == [(b"NOT_CLAIMABLE",)]


@pytest.mark.parametrize("column", ["data", "type"])
def test_one_unreadable_claim_of_a_lost_reply_keeps_no_other_from_being_adopted(
    unchecked: str, column: str
) -> None:
    """The payload is read apart from the rest of a claim: each may be what cannot be read."""
    with (
        CommandBus(unchecked) as bus,
        connect(unchecked) as admin,
        psycopg.connect(unchecked, autocommit=True, client_encoding="utf8") as session,
    ):
        sent = bus.send_many([SendRequest("payments", "Debit", "x" * 100)] * 5)
        claimer = Claimer(session)
        running, *_ = claimer.claim(5)
        admin.execute("ALTER DOMAIN cmdbus.name DROP CONSTRAINT name_check")
        admin.execute("SET client_encoding = SQL_ASCII")
        spoiled = "convert_from('\\x22ff22', 'SQL_ASCII')" + ("::json" if column == "data" else "")
        admin.execute(
            f"UPDATE cmdbus.ready SET {column} = {spoiled} WHERE command_id = %s".encode(),
            (sent[2],),
        )
        # So that it is read before the others.
        admin.execute("UPDATE cmdbus.ready SET losses = 0 WHERE command_id <> %s", (sent[2],))
        in_flight = InFlight(claimer.statements, Board.in_memory(1, 8).seat(0))
        adopted = Adoption(claimer.statements, in_flight, 250).adopt(session, {fence_of(running)})
        released = [entry.claim for entry in in_flight.in_state(RELEASED)]
        found = [claim.command_id for claim in adopted]
        assert found == [sent[1], sent[3]], "no more than 250 bytes"
        assert sent[4] in [claim.command_id for claim in released]
        assert {claim.data for claim in released} == {""}
        code = "SELECT command_id::text::bytea, error_code FROM cmdbus.troubleshooting"
        assert admin.execute(code).fetchall() == [(str(sent[2]).encode(), b"NOT_CLAIMABLE")]


def test_a_database_that_checks_no_text_is_refused(databases: Databases) -> None:
    with databases.fresh(encoding="SQL_ASCII") as name:
        dsn = databases.dsn_of(name)
        with pytest.raises(SchemaError, match=r"has the encoding SQL_ASCII.* ENCODING 'UTF8'"):
            install(dsn)
        with psycopg.connect(dsn) as connection:
            row = connection.execute("SELECT to_regnamespace('cmdbus')").fetchone()
            assert row == (None,), "nothing is half-written"
