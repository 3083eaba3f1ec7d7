"""What a producer's role may write into the tables harms nothing."""

from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from guarded import Guarded
from handlers import handling, running
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from queries import insert, rows
from roles import role

from cmdbus import Command, CommandBus, Context, PermanentCommandError, SendRequest
from cmdbus.producer.ids import new_id

ROW: dict[str, Any] = {
    "domain": "payments",
    "priority": 5,
    "type": "Debit",
    "data": "{}",
    "reply_to": None,
    "max_attempts": None,
}


def put(connection: psycopg.Connection, table: str = "ready", **changed: Any) -> Any:
    """As a bulk send writes it, but with any values; returns the id."""
    id_ = uuid4()
    row = {**ROW, "command_id": id_, "correlation_id": id_, **changed}
    insert(connection, f"cmdbus.{table}", **row)
    return row["command_id"]


#: Column, and values that no command may have there.
WRONG = [
    *[
        (column, value)
        for column in ("domain", "type", "reply_to")
        for value in ("", "1st", "a\nb", "pay ments", "a" * 101, "payé", "\x1b[31m")
    ],
    *[("priority", value) for value in (-1, 11, 32767)],
    *[("max_attempts", value) for value in (0, -1, 32768)],
    *[("due_at", value) for value in ("infinity", "-infinity", "10000-01-02", "0044-03-15 BC")],
    *[("data", value) for value in ("", "{", '"' + "a" * (17 * 1024 * 1024) + '"')],
    *[(column, None) for column in ("domain", "type", "priority", "data", "command_id")],
]


def test_a_producer_cannot_write_what_no_command_may_hold(dsn: str) -> None:
    with role(dsn, "producer") as producer:
        for column, value in WRONG:
            for table in ("ready", "scheduled"):
                changed = {} if table == "ready" else {"due_at": "2040-01-01"}
                if column == "due_at" and table == "ready":
                    continue
                with pytest.raises((psycopg.IntegrityError, psycopg.DataError)):
                    put(producer, table, **{**changed, column: value})
        with pytest.raises(psycopg.errors.CheckViolation):
            copy(producer, f"payments\\n\t5\tDebit\t{{}}\t\\N\t\\N\t{uuid4()}\t{uuid4()}\n")
    assert rows(dsn, "SELECT count(*) FROM cmdbus.command") == [(0,)]


def copy(connection: psycopg.Connection, line: str) -> None:
    columns = ", ".join([*ROW, "command_id", "correlation_id"])
    with connection.cursor().copy(f"COPY cmdbus.ready ({columns}) FROM STDIN".encode()) as copy:
        copy.write(line)


def test_a_large_compressed_payload_counts_as_it_is_read(dsn: str) -> None:
    """A row that takes 0.2 MB in its table, and 17 MB in the memory of its readers."""
    with role(dsn, "producer") as producer:
        producer.execute("CREATE TEMP TABLE oversized (data json)")
        producer.execute("""INSERT INTO oversized SELECT to_json(repeat('a', 17 * 1024 * 1024))""")
        with pytest.raises(psycopg.errors.CheckViolation):
            producer.execute(
                "INSERT INTO cmdbus.ready (domain, priority, command_id, type, data,"
                " correlation_id) SELECT 'payments', 5, gen_random_uuid(), 'Debit', data,"
                " gen_random_uuid() FROM oversized"
            )


@pytest.mark.parametrize("max_bytes", [16 * 1024 * 1024 + 1, 0])
def test_a_bus_cannot_allow_more_than_the_tables_hold(max_bytes: int) -> None:
    with pytest.raises(ValueError, match="max_bytes must be"):
        CommandBus("dbname=x", max_bytes=max_bytes)


def test_the_largest_payload_is_sent_in_either_way(dsn: str) -> None:
    request = SendRequest("payments", "Debit", "a" * (16 * 1024 * 1024 - 2))
    with CommandBus(dsn, max_bytes=16 * 1024 * 1024) as bus:
        bus.send(request.domain, request.type, request.data)
        bus.send_many([request])
        assert bus.snapshot("payments")["ready"] == 2


def test_the_functions_of_a_producer_take_no_more_than_the_tables(dsn: str) -> None:
    with CommandBus(dsn) as bus, role(dsn, "producer") as producer:
        id_ = bus.send("payments", "Debit")
        long = "repeat('a', 12001)"
        for call in (
            f"cmdbus.cancel('payments', '{id_}', {long}, true, NULL)",
            f"cmdbus.cancel('payments', '{id_}', NULL, true, {long})",
            "cmdbus.enqueue('payments', 'Debit', '1', gen_random_uuid(), false, 5, NULL,"
            " 'infinity', gen_random_uuid(), NULL, NULL, 1, false)",
            "cmdbus.enqueue('pay ments', 'Debit', '1', gen_random_uuid(), true, 5, NULL, NULL,"
            " gen_random_uuid(), NULL, NULL, 1, false)",
            "cmdbus.identify(ARRAY[E'a\\nb'], ARRAY[gen_random_uuid()], 1, true)",
        ):
            with pytest.raises(psycopg.errors.CheckViolation):
                producer.execute(f"SELECT {call}".encode())
        assert [record.command_id for record in bus.query()] == [id_]


def oddities(producer: psycopg.Connection, taken: Iterable[UUID]) -> Iterator[UUID]:
    """Commands that no CommandBus would send, and that the tables take."""
    for id_ in (*taken, new_id()):
        yield put(producer, command_id=id_)
    yield put(producer, data="[" * 3000 + "]" * 3000)
    yield put(producer, data='{"a": "\\u0000"}')
    yield put(producer, data='{"a": "\\ud800"}')
    yield put(producer, data="1" * 5000)
    yield put(producer, data="1e999")
    yield put(producer, max_attempts=32767)
    yield put(producer, command_id=UUID(int=0), correlation_id=UUID(int=2**128 - 1))
    yield put(producer, "scheduled", due_at="0001-01-01 00:00:00+00", type="Trouble")
    yield put(producer, "scheduled", due_at="9999-12-31 23:59:59+00")
    for type_ in ("Debit", "Trouble"):  # rows of one id
        id_ = put(producer, type=type_)
        put(producer, type=type_, command_id=id_)
        put(producer, "scheduled", type=type_, command_id=id_, due_at="2000-01-01")
        yield id_


def test_whatever_a_producer_can_write_stops_no_other_command(guarded: Guarded) -> None:
    def fail(command: Command, context: Context) -> None:
        raise PermanentCommandError("NO", "never")

    registry = handling()
    registry.register("payments", "Trouble", fail)
    with guarded.role("worker") as own:
        admin = make_conninfo(guarded.embedded.dsn, dbname=conninfo_to_dict(own)["dbname"])
        with role(admin, "producer") as producer, CommandBus(admin) as bus:
            finished = bus.send("payments", "Debit")
            bus.cancel("payments", finished)
            taken = [finished, bus.send("payments", "Debit", command_id=uuid4())]
            ids = list(oddities(producer, taken))
            producer.execute("SELECT pg_notify('cmdbus_due', 'x'), cmdbus.wake('no such domain')")
            with running(own, registry) as worker:
                good = bus.send_many([SendRequest("payments", "Debit", priority="low")] * 20)
                for id_ in good:
                    assert bus.wait("payments", id_).status == "COMPLETED"
                assert int(str(worker.metrics()["cmdbus_claim_failures_total"])) == 0
            found = {id_: bus.get("payments", id_) for id_ in ids}
            assert None not in found.values()
            assert bus.query("payments") and bus.snapshot("payments") and bus.domains()
            assert bus.troubleshooting.list("payments")
