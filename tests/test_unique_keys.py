"""Commands with a unique key, as a bus sends them."""

from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from eventually import eventually
from handlers import beside, connect, found
from proxy import Proxy
from queries import await_lock_waits, claim_by_hand, count, scalar
from senders import counts

from cmdbus import (
    CommandBus,
    CommandFailedError,
    DuplicateCommandError,
    SendRequest,
    Status,
)
from cmdbus.producer.bulk_send import BulkSend
from cmdbus.producer.ids import new_call, new_id
from cmdbus.producer.requests import Outgoing, SendRules
from cmdbus.producer.sending import SendAttempt, Sender
from cmdbus.producer.store import Store

STORE = Store("cmdbus")


def request(unique: str | None = "report", **more: Any) -> SendRequest:
    return SendRequest("payments", "Debit", unique=unique, **more)


def existing(unique: str = "report", **more: Any) -> SendRequest:
    return request(unique, on_conflict="existing", **more)


def test_a_conflict_is_rejected_answered_or_resolved(bus: CommandBus, dsn: str) -> None:
    first = bus.send("payments", "Debit", unique="report", key="tenant", expires=60)
    before = counts(dsn)
    with pytest.raises(DuplicateCommandError, match="'report': --on-conflict existing") as refused:
        bus.send("payments", "Debit", unique="report")
    assert (refused.value.command_id, refused.value.unique) == (first, "report")
    assert bus.send("payments", "Debit", unique="report", on_conflict="existing") == first
    assert counts(dsn) == before
    second = bus.send("payments", "Debit", unique="report", on_conflict="replace", delay=60)
    record = found(bus, first)
    assert (record.status, record.error_code) == (Status.CANCELED, "REPLACED")
    assert (record.key, record.unique_key) == ("tenant", "report")
    assert record.expires_at is not None
    claim_by_hand(dsn, bus.send("payments", "Debit", unique="report", on_conflict="replace"))
    begun = (
        r"'report' and has begun, so it is not replaced: .*\(on_conflict='existing'\) returns its"
    )
    with pytest.raises(DuplicateCommandError, match=begun):
        bus.send("payments", "Debit", unique="report", on_conflict="replace")
    with pytest.raises(DuplicateCommandError, match=begun):
        bus.send_many([request(on_conflict="replace")])
    assert found(bus, second).error_code == "REPLACED"
    assert bus.send("orders", "Ship", unique="report") not in (first, second)


@pytest.mark.parametrize("until", [0.001, 1, timedelta(days=2), "finished", "started"])
def test_a_key_is_held_as_long_as_its_sender_says(
    bus: CommandBus, connection: psycopg.Connection, until: Any
) -> None:
    query = "SELECT until_started, round(extract(epoch FROM held_until - clock_timestamp()))::int"
    bus.send("payments", "Debit", unique="report", unique_until=until)
    held = connection.execute(f"{query} FROM cmdbus.unique_command".encode()).fetchone()
    seconds = until.total_seconds() if isinstance(until, timedelta) else until
    assert held == (until == "started", None if isinstance(until, str) else round(seconds))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"unique": ""}, "unique must be text of 1 to 200 characters without NUL"),
        ({"unique": "x" * 201}, "unique must be text of 1 to 200 characters"),
        ({"unique": "a\0"}, "unique must be text"),
        ({"unique": 5}, "unique must be text"),
        ({"on_conflict": "ignore"}, "on_conflict must be 'reject', 'existing' or 'replace'"),
        ({"on_conflict": None}, "on_conflict must be 'reject'"),
        *(
            ({"unique_until": until}, "unique_until must be 'finished', 'started', or from 0.001")
            for until in ("ended", 0, -1, float("nan"), 1e10, True, None, timedelta(0))
        ),
        ({"unique": None, "on_conflict": "replace"}, "on_conflict and unique_until go with unique"),
        ({"unique": None, "unique_until": 60}, "on_conflict and unique_until go with unique"),
    ],
)
def test_a_wrong_argument_of_a_unique_send_is_named(
    bus: CommandBus, dsn: str, options: dict[str, Any], sentence: str
) -> None:
    before = counts(dsn)
    given = {"unique": "report", **options}
    for send in (
        lambda: bus.send("payments", "Debit", **given),
        lambda: bus.send_many([SendRequest("payments", "Debit", **given)]),
    ):
        with pytest.raises(ValueError, match=sentence):
            send()
    assert counts(dsn) == before


def test_many_are_sent_or_none(bus: CommandBus, dsn: str) -> None:
    first = bus.send("payments", "Debit", unique="b")
    before = counts(dsn)
    with pytest.raises(DuplicateCommandError, match="has the unique key 'b'") as refused:
        bus.send_many([request("a"), request("b"), request(None)])
    assert refused.value.command_ids == (first,)
    assert counts(dsn) == before
    other = SendRequest("orders", "Ship", unique="a", delay=60)
    ids = bus.send_many([request("a"), existing("b"), request(None), other])
    assert ids[1] == first and len(set(ids)) == 4
    assert bus.snapshot("payments")["depth"] == 3
    assert found(bus, ids[3], "orders").unique_key == "a"
    replaced = bus.send_many([request("a", on_conflict="replace"), existing("b")])
    assert found(bus, ids[0]).error_code == "REPLACED"
    assert bus.send_many([existing("b"), existing("a")]) == replaced[::-1]


def test_a_domain_is_asked_only_for_what_is_sent(bus: CommandBus) -> None:
    first = bus.send("payments", "Debit", unique="a")
    bus.configure("payments", max_depth=2)
    ids = bus.send_many([existing("a"), request(None)])
    assert ids[0] == first and bus.snapshot("payments")["depth"] == 2
    bus.configure("payments", accepting=False)
    assert bus.send_many([existing("a")]) == [first]


def test_two_requests_of_a_call_with_one_key_are_refused(bus: CommandBus) -> None:
    bus.send_many([request("a"), SendRequest("orders", "Ship", unique="a")])
    with pytest.raises(ValueError, match="have the unique key 'b' in domain 'payments': give each"):
        bus.send_many([request("b"), existing("b")])


def test_commands_of_batches_are_only_rejected(bus: CommandBus) -> None:
    bus.create_batch("payments", [request("a"), request(None)])
    with pytest.raises(DuplicateCommandError, match="'a': the batch was not created"):
        bus.create_batch("payments", [request(None), request("a")])
    assert len(bus.list_batches()) == 1
    for on_conflict in ("existing", "replace"):
        with pytest.raises(ValueError, match="takes no on_conflict but 'reject'"):
            bus.create_batch("payments", [request("b", on_conflict=on_conflict)])
    for after in ("on_complete", "on_cancel"):
        with pytest.raises(ValueError, match="on_complete and on_cancel take no unique key"):
            bus.create_batch("payments", [request(None)], **{after: request()})  # type: ignore[arg-type]


def test_a_hook_may_make_a_called_command_unique(dsn: str) -> None:
    with CommandBus(dsn) as bus:
        bus.send("payments", "Debit", unique="report")
    for on_conflict, error in (
        ("reject", DuplicateCommandError),
        ("existing", ValueError),
    ):

        def make_unique(sent: SendRequest, on_conflict: str = on_conflict) -> SendRequest:
            sent.unique, sent.on_conflict = "report", on_conflict
            return sent

        with CommandBus(dsn, on_send=make_unique) as bus, pytest.raises(error):
            bus.call("payments", "Debit", timeout=5)


def test_a_call_learns_that_its_command_was_replaced(dsn: str) -> None:
    def make_unique(sent: SendRequest) -> SendRequest:
        sent.unique = "report"
        return sent

    failures: list[CommandFailedError] = []
    with CommandBus(dsn) as bus, CommandBus(dsn, on_send=make_unique) as calling:

        def call() -> None:
            with pytest.raises(CommandFailedError) as failed:
                calling.call("payments", "Debit", timeout=10)
            failures.append(failed.value)

        with beside(call):
            eventually(lambda: bus.snapshot("payments")["depth"] == 1)
            bus.send("payments", "Debit", unique="report", on_conflict="replace")
    assert [(error.code, error.status) for error in failures] == [("REPLACED", "CANCELED")]


def outgoing(own: UUID | None, **more: Any) -> Outgoing:
    return SendRules.of(None, 1000).check(request(**{"command_id": own, **more}), new_id())


def send(
    connection: psycopg.Connection, command: Outgoing, call: int, *, again: bool
) -> UUID | str:
    try:
        return Sender(STORE).send(connection, command, SendAttempt(call, again))
    except DuplicateCommandError as error:
        return f"held by {error.command_id}"


@pytest.mark.parametrize("own", [None, uuid4()], ids=["id of the bus", "own id"])
@pytest.mark.parametrize("on_conflict", ["reject", "existing", "replace"])
def test_a_repetition_is_not_refused_by_its_own_first_try(
    bus: CommandBus, connection: psycopg.Connection, own: UUID | None, on_conflict: str
) -> None:
    """Nor by a later command, if its own has ended meanwhile."""
    command, call = outgoing(own, on_conflict=on_conflict), new_call()
    assert send(connection, command, call, again=False) == command.command_id
    assert send(connection, command, call, again=True) == command.command_id
    bus.cancel("payments", command.command_id)
    later = bus.send("payments", "Debit", unique="report")
    assert send(connection, command, call, again=True) == command.command_id
    assert [record.command_id for record in bus.query(status="PENDING")] == [later]


@pytest.mark.parametrize("own", [None, uuid4()], ids=["id of the bus", "own id"])
def test_a_first_try_that_arrives_after_its_repetition_does_nothing(
    bus: CommandBus, connection: psycopg.Connection, own: UUID | None
) -> None:
    command, call = outgoing(own), new_call()
    for again in (True, False, True):
        assert send(connection, command, call, again=again) == command.command_id
    bus.cancel("payments", command.command_id)
    assert send(connection, command, call, again=False) == command.command_id
    assert bus.snapshot("payments")["depth"] == 0


def test_a_first_try_that_arrives_after_its_repetition_was_refused_does_nothing(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    held = bus.send("payments", "Debit", unique="report")
    command, call = outgoing(None), new_call()
    assert send(connection, command, call, again=True) == f"held by {held}"
    bus.cancel("payments", held)
    STORE.enqueue(connection, command, call=call, again=False)
    assert bus.snapshot("payments")["depth"] == 0


@pytest.mark.parametrize("own", [False, True], ids=["id of the bus", "own id"])
@pytest.mark.parametrize("lands", [True, False], ids=["committed", "rolled back"])
def test_a_repetition_waits_for_its_first_try(
    dsn: str, connection: psycopg.Connection, own: bool, lands: bool
) -> None:
    command, call = outgoing(uuid4() if own else None), new_call()
    answers: list[object] = []
    with psycopg.connect(dsn) as first:
        STORE.enqueue(first, command, call=call, again=False)
        repeat = partial(send, connection, command, call, again=True)
        with beside(lambda: answers.append(repeat())):
            await_lock_waits(dsn)
            first.commit() if lands else first.rollback()
    assert answers == [command.command_id]
    assert count(connection, "cmdbus.ready") == 1


@pytest.mark.parametrize("own", [False, True], ids=["id of the bus", "own id"])
def test_a_repetition_waits_for_a_first_try_that_waits_for_another_sender(
    dsn: str, own: bool
) -> None:
    """Who gets the key first does not matter."""
    for n in range(5):
        command = outgoing(uuid4() if own else None, unique=f"report {n}")
        call, answers = new_call(), list[object]()
        with psycopg.connect(dsn) as other, psycopg.connect(dsn) as first:
            scalar(other, "SELECT cmdbus.send('payments', 'Debit', p_unique => %s)", f"report {n}")
            with (
                connect(dsn) as connection,
                beside(partial(send, first, command, call, again=False)),
            ):
                await_lock_waits(dsn)
                repeat = partial(send, connection, command, call, again=True)
                with beside(lambda: answers.append(repeat())):  # noqa: B023
                    await_lock_waits(dsn, 2)
                    other.rollback()
                    first.commit()
        assert answers == [command.command_id]


@pytest.mark.parametrize("own", [False, True], ids=["ids of the bus", "own ids"])
def test_many_are_repeated_although_some_were_there(dsn: str, own: bool) -> None:
    """The connection dies at the first commit, which lands."""

    def cut_at_commit(data: bytes) -> bytes:
        if b"COMMIT" in data and not cut:
            cut.append(data)
            proxy.cut()
        return data

    for first in (existing("b"), request(None)):
        cut: list[bytes] = []
        with CommandBus(dsn) as direct, Proxy(dsn, cut_at_commit) as proxy:
            there = direct.send("payments", "Debit", unique="b")
            before = direct.snapshot("payments")["depth"]
            with CommandBus(proxy.dsn) as bus:
                others = [request("a", command_id=uuid4() if own else None), existing("b")]
                if first.unique is None:
                    others.insert(0, first)
                ids = bus.send_many(others)
            assert cut and ids[-1] == there
            assert direct.snapshot("payments")["depth"] == before + len(ids) - 1
            direct.cancel_all("payments", operator="ann")


def test_many_that_landed_are_not_sent_again(bus: CommandBus, dsn: str) -> None:
    """The repetition returns the ids that the first try has found."""
    there = bus.send("payments", "Debit", unique="b")
    bulk, call = BulkSend([existing("b"), request("a"), existing("c")]), new_call()
    check = SendRules.of(None, 1000).check
    with psycopg.connect(dsn, autocommit=True) as connection:
        for again in (False, True, True):
            Sender(STORE).send_all(connection, bulk, check, SendAttempt(call, again))
            assert bulk.ids[0] == there
            bus.cancel_all("payments", operator="ann")
    assert len(bus.query("payments")) == 3
