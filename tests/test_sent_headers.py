"""Headers of commands, from the send to the handler and wherever the command goes meanwhile."""

import copy
import pickle
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from batches import RETRY, TROUBLE
from claiming import Claimer, ended, want
from handlers import found, handling, promote, running
from known_headers import HEADERS, HOSTILE
from lane_claimer import Limit, declare
from queries import rows
from roles import role

from cmdbus import Command, CommandBus, Context, SendRequest
from cmdbus.headers import NO_HEADERS
from cmdbus.testing import make_command
from cmdbus.worker.claims.claim import ClaimRequest, ClaimScope, LaneRequest

PLAIN = SendRequest("payments", "Debit")
DEBIT = SendRequest("payments", "Debit", headers=HEADERS)


def headers_of(bus: CommandBus, command_id: UUID, domain: str = "payments") -> dict[str, str]:
    return found(bus, command_id, domain).headers


def sent(bus: CommandBus, **options: Any) -> UUID:
    return bus.send("payments", "Debit", headers=HEADERS, **options)


def test_each_kind_of_send_stores_them(dsn: str) -> None:
    with CommandBus(dsn) as bus, psycopg.connect(dsn) as own:
        sender = bus.sender("payments", "Debit", dict).options(headers=HEADERS)
        ids = [
            sent(bus),
            sent(bus, delay=60, key="k", unique="u", expires=600),
            sent(bus, command_id=uuid4(), connection=own),
            *bus.send_many([DEBIT, DEBIT]),
            *bus.send_many([DEBIT], connection=own),
            sender.send(),
            *bus.send_many([sender.request()]),
        ]
        own.commit()
        assert [headers_of(bus, id_) for id_ in ids] == [HEADERS] * len(ids)
        batch_id = bus.create_batch("payments", [DEBIT])
        [command] = bus.batch_commands(batch_id)
        assert command.headers == HEADERS
        assert {each.headers["own"] for each in bus.query("payments")} == {HEADERS["own"]}


def test_one_bulk_has_commands_with_and_without_them(dsn: str) -> None:
    later = SendRequest("payments", "Debit", delay=60, headers={"tenant": "red"})
    requests = [PLAIN, DEBIT, SendRequest("payments", "Debit", headers={}), later, PLAIN]
    with CommandBus(dsn) as bus:
        ids = bus.send_many(requests)
        read = [headers_of(bus, id_) for id_ in ids]
    assert read == [{}, HEADERS, {}, {"tenant": "red"}, {}]
    stored = rows(dsn, "SELECT count(*) FROM cmdbus.command WHERE headers IS NULL")
    assert stored == [(3,)]


def test_a_wrong_header_sends_nothing(bus: CommandBus) -> None:
    wrong = SendRequest("payments", "Debit", headers={"a b": "x"})
    sends: Sequence[Callable[[], object]] = [
        lambda: bus.send("payments", "Debit", headers={"a b": "x"}),
        lambda: bus.send_many([DEBIT, wrong]),
        lambda: bus.create_batch("payments", [DEBIT, wrong]),
        lambda: bus.create_batch("payments", [DEBIT], on_complete=wrong),
        lambda: bus.call("payments", "Debit", headers={"a b": "x"}),
        lambda: bus.start_process("orders", "Order", headers={"a b": "x"}),
    ]
    for send in sends:
        with pytest.raises(ValueError, match="the name of a header must be a letter"):
            send()
    assert bus.query() == []


def test_a_hook_may_change_them_and_leaves_a_trace(dsn: str) -> None:
    def stamp(request: SendRequest) -> SendRequest:
        assert isinstance(request.headers, dict)
        request.headers["tenant"] = "red"
        return request

    given = {"tenant": "blue", "own": "stays"}
    with CommandBus(dsn, on_send=stamp) as bus:
        command_id = bus.send("payments", "Debit", headers=given)
        assert headers_of(bus, command_id) == {"tenant": "red", "own": "stays"}
        [_, changed] = bus.audit("payments", command_id)
    assert given["tenant"] == "blue"
    assert changed.details == {
        "headers": {"before": {"tenant": "blue"}, "after": {"tenant": "red"}}
    }


def test_a_handler_sees_them(dsn: str) -> None:
    seen: list[Command] = []

    def handle(command: Command, context: Context) -> None:
        seen.append(command)

    with CommandBus(dsn) as bus, running(dsn, handling(handle)):
        bus.call("payments", "Debit", headers=HEADERS)
        for reply_to, headers in ((None, None), ("replies", None), (None, dict[str, str]())):
            bus.wait(
                "payments", bus.send("payments", "Debit", reply_to=reply_to, headers=headers), 10
            )
        command_id = sent(bus, reply_to="replies")
        bus.wait("payments", command_id, 10)
        assert headers_of(bus, command_id) == HEADERS
        assert found(bus, command_id).reply_to == "replies"
    assert [each.headers for each in seen] == [HEADERS, {}, {}, {}, HEADERS]
    assert [each.reply_to for each in seen] == [None, None, "replies", None, "replies"]
    assert all(each.headers is NO_HEADERS for each in seen if not each.headers)


def test_a_command_without_headers_has_the_one_empty_mapping() -> None:
    command = make_command("payments", "Debit")
    assert command.headers is NO_HEADERS
    assert hash(command) == hash(copy.copy(command))
    made = make_command("payments", "Debit", headers={"tenant": "blue"})
    assert made.headers == {"tenant": "blue"}
    assert pickle.loads(pickle.dumps(made)) == made
    assert isinstance(made, Command)
    with pytest.raises(ValueError, match="the name of a header"):
        make_command("payments", "Debit", headers={"a b": ""})


def test_commands_with_headers_alone_are_settled_with_the_others(
    bus: CommandBus, claimer: Claimer
) -> None:
    bus.send_many([PLAIN, DEBIT, PLAIN])
    claims = claimer.claim(3)
    assert [claim.headers for claim in claims] == [{}, HEADERS, {}]
    assert [claim.reply_to for claim in claims] == [None] * 3
    assert claimer.settle_as_batch(*map(ended, claims)) == []
    finished = bus.query("payments", status="COMPLETED")
    assert sorted(len(each.headers) for each in finished) == [0, 0, 3]


def test_a_retry_a_promotion_and_a_rescheduling_keep_them(
    bus: CommandBus, connection: psycopg.Connection, claimer: Claimer
) -> None:
    command_id = sent(bus)
    claimer.settle(ended(claimer.claim_one(), RETRY))
    assert headers_of(bus, command_id) == HEADERS
    promote(claimer.statements, connection)
    bus.reschedule("payments", command_id, delay=600)
    bus.reschedule("payments", command_id, delay=0)
    promote(claimer.statements, connection)
    bus.reschedule("payments", command_id, priority="high")
    assert claimer.claim_one().headers == HEADERS


def test_troubleshooting_and_its_ends_keep_them(bus: CommandBus, claimer: Claimer) -> None:
    ids = bus.send_many([DEBIT] * 3)
    claimer.settle(*[ended(claim, TROUBLE) for claim in claimer.claim(3)])
    assert [each.headers for each in bus.troubleshooting.list()] == [HEADERS] * 3
    retried, canceled, completed = ids
    bus.troubleshooting.cancel("payments", canceled, operator="ann")
    bus.troubleshooting.complete("payments", completed, operator="ann")
    bus.troubleshooting.retry("payments", retried, operator="ann")
    assert [headers_of(bus, id_) for id_ in ids] == [HEADERS] * 3
    claim = claimer.claim_one()
    assert claim.headers == HEADERS
    claimer.settle(ended(claim, TROUBLE))
    bus.troubleshooting.retry("payments", retried, operator="ann", data={"amount": 1})
    assert claimer.claim_one().headers == HEADERS


def test_a_canceled_replaced_or_expired_command_keeps_them(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    replaced = sent(bus, unique="u")
    other = sent(bus, unique="u", on_conflict="replace")
    later, expired, delayed = sent(bus, delay=60), sent(bus, expires=60), sent(bus, delay=30)
    for table in ("ready", "scheduled"):
        connection.execute(
            f"UPDATE cmdbus.{table} SET expires_at = clock_timestamp()"
            " WHERE command_id = ANY (%s)".encode(),
            ([expired, delayed],),
        )
    connection.execute("SELECT cmdbus.expire(100, 1000000, '{}')")
    for command_id in (other, later):
        bus.cancel("payments", command_id)
    ended_ids = replaced, other, later, expired, delayed
    assert [found(bus, id_).status for id_ in ended_ids] == ["CANCELED"] * 5
    assert [headers_of(bus, id_) for id_ in ended_ids] == [HEADERS] * 5


def test_a_row_that_is_set_aside_keeps_them(bus: CommandBus, claimer: Claimer) -> None:
    command_id = sent(bus)
    claim = claimer.claim_one()
    key = claimer.statements.key(claim)
    assert claimer.statements.set_aside(claimer.connection, key, "NOT_CLAIMABLE", "why")
    assert headers_of(bus, command_id) == HEADERS


def test_a_suspect_and_a_lost_claim_keep_them(
    bus: CommandBus, connection: psycopg.Connection, claimer: Claimer
) -> None:
    sent(bus, reply_to="replies")
    statements = claimer.statements
    claim = claimer.claim_one()
    [again] = statements.claimed(connection)
    assert (again.reply_to, again.headers) == ("replies", HEADERS)
    statements.release(connection, [claim], [3], "why")
    suspects = Claimer(connection, scope=ClaimScope.SUSPECT, name="quarantine")
    [suspect] = suspects.settle_and_claim([], want(1))
    assert (suspect.reply_to, suspect.headers) == ("replies", HEADERS)


def test_commands_that_wait_at_a_limit_keep_them(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    declare(connection, Limit("payments Debit", concurrency=1))
    first, second = bus.send_many([DEBIT, DEBIT])
    assert headers_of(bus, second) == HEADERS
    bus.reschedule("payments", second, priority="high")
    claimer = Claimer(connection)
    lanes = LaneRequest(["payments Debit"], [], [], 1, 0, {}, below=True)
    request = ClaimRequest(1, 0, ["payments"], [], [], {}, lanes=lanes)
    [claim] = claimer.settle_and_claim([], request)
    assert (claim.command_id, claim.headers) == (second, HEADERS)
    claimer.release(claim)
    connection.execute(
        "UPDATE cmdbus.limited SET expires_at = clock_timestamp() WHERE command_id = %s", (first,)
    )
    connection.execute("SELECT cmdbus.expire(100, 1000000, '{}')")
    assert found(bus, first).status == "CANCELED"
    assert headers_of(bus, first) == headers_of(bus, second) == HEADERS


def test_what_a_batch_sends_at_its_end_has_them(bus: CommandBus, claimer: Claimer) -> None:
    done, delayed = (
        SendRequest("orders", "Close", {"month": 3}, headers=HEADERS, delay=delay)
        for delay in (None, 60)
    )
    for request in (done, delayed):
        bus.create_batch("payments", [PLAIN], on_complete=request, on_cancel=PLAIN)
    claims = claimer.claim(2)
    claimer.settle(*map(ended, claims))
    ids = [claim.batch_id.hex for claim in claims if claim.batch_id]
    claimer.statements.value(claimer.connection, "end_batches", batch_ids=ids)
    assert [each.headers for each in bus.query("orders")] == [HEADERS, HEADERS]


def test_a_process_starts_with_them(bus: CommandBus) -> None:
    bus.start_process("orders", "Order", headers=HEADERS)
    [start] = bus.query("orders")
    assert start.headers == HEADERS


def test_no_role_writes_other_headers_into_a_table(connection: psycopg.Connection) -> None:
    """With all rights that a role can have."""
    names = "domain, priority, command_id, type, data, correlation_id"
    row = "'payments', 5, gen_random_uuid(), 'Debit', '1', gen_random_uuid()"
    ended, how = f"{names}, token, created_at, attempts, losses", f"{row}, 1, now(), 1, 0"
    tables = {
        "ready": (names, row),
        "scheduled": (f"{names}, due_at", f"{row}, now()"),
        "limited": (names, row),
        "troubleshooting": (ended, how),
        "finished": (f"{ended}, status", f"{how}, 'COMPLETED'"),
    }
    refusal = psycopg.errors.CheckViolation, psycopg.DataError
    for text in HOSTILE:
        for table, (columns, values) in tables.items():
            query = f"INSERT INTO cmdbus.{table} ({columns}, headers) VALUES ({values}, %s)"
            with pytest.raises(refusal):
                connection.execute(query.encode(), (text,))
        with (
            pytest.raises(refusal),
            connection.cursor().copy(f"COPY cmdbus.ready ({names}, headers) FROM STDIN") as copy,
        ):
            copy.write_row(("payments", 5, uuid4(), "Debit", "1", uuid4(), text))


def test_a_producer_writes_headers_itself(dsn: str, bus: CommandBus, claimer: Claimer) -> None:
    with role(dsn, "producer") as producer:
        names = "domain, priority, command_id, type, data, correlation_id, headers"
        with producer.cursor().copy(f"COPY cmdbus.ready ({names}) FROM STDIN") as copy:
            text = '{"tenant" :\n "blue", "tenant": "red" }'
            copy.write_row(("payments", 5, uuid4(), "Debit", "1", uuid4(), text))
        with pytest.raises(psycopg.errors.CheckViolation):
            producer.execute(
                "SELECT * FROM cmdbus.enqueue('payments', 'Debit', '1', gen_random_uuid(), false,"
                " 5, NULL, NULL, gen_random_uuid(), NULL, NULL, NULL, false, p_headers => '[1]')"
            )
    claim = claimer.claim_one()
    assert (claim.reply_to, claim.headers) == (None, {"tenant": "red"})
    claimer.settle(ended(claim))
    assert headers_of(bus, claim.command_id) == {"tenant": "red"}
