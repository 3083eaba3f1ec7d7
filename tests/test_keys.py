"""The key of a command: it comes with every kind of send, and shows wherever commands are read."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
import pytest
from cli import done, here
from handlers import connect, found, handling, running
from queries import move_to_troubleshooting, rows
from roles import refused, role
from trips import Booking, Trip, await_end, booked, registry_of

from cmdbus import Command, CommandBus, Context, SendRequest

#: With all that COPY and SQL escape.
KEY = "tenant-42 ä𝄞 \\N\\.\t\r\n'\"{},"


def key_of(bus: CommandBus, command_id: UUID, domain: str = "payments") -> str | None:
    return found(bus, command_id, domain).key


def shell(dsn: str, *arguments: str) -> str:
    return done(here(*arguments, CMDBUS_DSN=dsn))


def test_a_key_comes_with_each_kind_of_send(bus: CommandBus) -> None:
    sends: dict[str, Callable[[str | None], UUID]] = {
        "send": lambda key: bus.send("payments", "Debit", key=key),
        "delayed": lambda key: bus.send("payments", "Debit", key=key, delay=60),
        "bulk": lambda key: bus.send_many([SendRequest("payments", "Debit", key=key)])[0],
        "delayed bulk": lambda key: bus.send_many(
            [SendRequest("payments", "Debit", key=key, delay=60)]
        )[0],
    }
    for name, send in sends.items():
        ids = {key: send(key) for key in (None, "a", KEY, "k" * 200)}
        assert {key_of(bus, id_) for id_ in ids.values()} == set(ids), name
        assert key_of(bus, ids[KEY]) == KEY, name


def test_commands_with_and_without_keys_are_sent_together(bus: CommandBus) -> None:
    keys = ["a", None, KEY, "b", None]
    for delay in (None, 60):
        requests = [SendRequest("payments", "Debit", key=key, delay=delay) for key in keys]
        assert [key_of(bus, id_) for id_ in bus.send_many(requests)] == keys
        batch_id = bus.create_batch("payments", requests)
        assert [record.key for record in bus.batch_commands(batch_id)] == [*reversed(keys)]


def test_what_a_batch_sends_at_its_end_has_its_key(dsn: str, bus: CommandBus) -> None:
    with running(dsn, handling()):
        for delay in (None, 3600):
            after = SendRequest("payments", "Sum", key=KEY, delay=delay)
            keyed = bus.create_batch(
                "payments", [SendRequest("payments", "Debit")], on_complete=after, on_cancel=after
            )
            bus.wait_batch(keyed)
            assert {r.key for r in bus.query(type="Sum") if r.correlation_id == keyed} == {KEY}


def test_a_handler_adds_commands_with_keys_to_its_batch(dsn: str, bus: CommandBus) -> None:
    def add(command: Command, context: Context) -> None:
        if context.batch is not None and command.data is None:
            context.batch.add([SendRequest("payments", "Debit", 1, key=KEY)])

    with running(dsn, handling(add)):
        batch_id = bus.create_batch("payments", [SendRequest("payments", "Debit", key="first")])
        bus.wait_batch(batch_id)
    keys = {record.data: record.key for record in bus.batch_commands(batch_id)}
    assert keys == {None: "first", 1: KEY}


@pytest.mark.parametrize("listed", [False, True], ids=["command", "batch"])
@pytest.mark.parametrize("delay", [None, 0.01], ids=["now", "later"])
def test_the_commands_of_a_process_have_keys(
    dsn: str, bus: CommandBus, listed: bool, delay: float | None
) -> None:
    class Keyed(Booking):
        def build_command(self, step: Any, state: Trip) -> SendRequest | list[SendRequest]:
            sent = super().build_command(step, state)
            assert isinstance(sent, SendRequest)
            sent.key, sent.delay = f"{step} {KEY}", delay
            return [sent] if listed else sent

    with running(dsn, registry_of(Keyed())):
        process_id = booked(bus)
        await_end(bus, process_id)
    found = {record.type: record.key for record in bus.query() if record.key is not None}
    assert found == {"Flight": f"FLIGHT {KEY}", "Hotel": f"HOTEL {KEY}", "Car": f"CAR {KEY}"}


def test_a_called_command_has_its_key(dsn: str, bus: CommandBus) -> None:
    with running(dsn, handling()):
        bus.call("payments", "Debit", key=KEY)
    [record] = bus.query(key=KEY)
    assert record.status == "COMPLETED"


def test_sql_and_the_shell_send_with_a_key(dsn: str, bus: CommandBus) -> None:
    with connect(dsn) as connection:
        for delay in ("NULL", "'1 hour'"):
            query = f"SELECT cmdbus.send('payments', 'Debit', p_delay => {delay}, p_key => %s)"
            [(id_,)] = connection.execute(query.encode(), (KEY,)).fetchall()
            assert key_of(bus, id_) == KEY
    id_ = UUID(shell(dsn, "send", "payments", "Debit", "--key", "tenant-42").strip())
    assert key_of(bus, id_) == "tenant-42"


@pytest.mark.parametrize("key", ["", "k" * 201, "a\0b", "\ud800", 7, b"k", True])
def test_what_is_no_key_gets_one_sentence(bus: CommandBus, key: Any) -> None:
    request = SendRequest("payments", "Debit", key=key)
    sentence = "key must be text of 1 to 200 characters without NUL, not "
    for number, call in (
        ("", lambda: bus.send("payments", "Debit", key=key)),
        ("request 2 of 2: ", lambda: bus.send_many([SendRequest("payments", "Debit"), request])),
        ("request 1 of 1: ", lambda: bus.create_batch("payments", [request])),
        ("", lambda: bus.create_batch("payments", [SendRequest("a", "B")], on_complete=request)),
        ("", lambda: bus.call("payments", "Debit", key=key)),
        ("", lambda: bus.query(key=key)),
        ("", lambda: bus.troubleshooting.list(key=key)),
    ):
        with pytest.raises(ValueError) as refused:
            call()
        assert str(refused.value).startswith(number + sentence)
        assert str(refused.value).endswith(", which has 201") == (key == "k" * 201)
    assert bus.query() == []


@pytest.mark.parametrize("key", ["", "k" * 201])
def test_what_is_no_key_in_sql_gets_one_sentence(dsn: str, key: str) -> None:
    sentence = f"p_key must be text of 1 to 200 characters, and has {len(key)}"
    invalid = pytest.raises(psycopg.errors.InvalidParameterValue, match=sentence)
    with connect(dsn) as connection, invalid:
        connection.execute("SELECT cmdbus.send('payments', 'Debit', p_key => %s)", (key,))


def test_a_hook_gives_a_key(dsn: str) -> None:
    def keyed(request: SendRequest) -> SendRequest:
        request.key = str(request.data)
        return request

    with CommandBus(dsn, on_send=keyed) as bus:
        one = bus.send("payments", "Debit", "a")
        [many] = bus.send_many([SendRequest("payments", "Debit", "b")])
        assert (key_of(bus, one), key_of(bus, many)) == ("a", "b")


def test_a_key_is_read_wherever_commands_are(dsn: str, bus: CommandBus) -> None:
    sent = [bus.send("payments", "Debit", key=key) for key in ("a", "b", None)]
    assert [record.command_id for record in bus.query("payments", key="a")] == sent[:1]
    assert bus.query("payments", key="c") == []
    details = [bus.audit("payments", id_)[0].details for id_ in sent]
    assert [each.get("key") for each in details] == ["a", "b", None]
    assert [*details[2]] == ["type", "priority", "correlation_id", "reply_to"]
    shown = shell(dsn, "get", "payments", str(sent[0]))
    assert "  key             a\n" in shown and "key" not in shell(
        dsn, "get", "payments", str(sent[2])
    )
    assert json.loads(shell(dsn, "get", "payments", str(sent[0]), "--json"))["key"] == "a"
    listed = json.loads(shell(dsn, "list", "--key", "b", "--json"))["commands"]
    assert [each["command_id"] for each in listed] == [str(sent[1])]


def test_troubles_are_read_and_resolved_by_key(dsn: str, bus: CommandBus) -> None:
    sent = [bus.send("payments", "Debit", key=key) for key in ("a", "a", "b", None)]
    move_to_troubleshooting(dsn)
    queue = bus.troubleshooting
    assert [record.key for record in queue.list()] == [None, "b", "a", "a"]
    assert {record.command_id for record in queue.list(key="a")} == {*sent[:2]}
    assert (queue.count(key="a"), queue.count()) == (2, 4)
    assert [each.count for each in queue.summary(key="b")] == [1]
    assert "3 of" not in shell(dsn, "tsq", "list", "--key", "a")
    assert queue.retry_all(key="a", limit=1, operator="ann") == 1
    assert queue.cancel_all("payments", key="a", operator="ann") == 1
    assert queue.complete_all(key="c", operator="ann") == 0
    assert "canceled 1 command" in shell(dsn, "tsq", "cancel", "--all", "--key", "b", "--yes")
    assert [record.key for record in queue.list()] == [None]
    assert {found(bus, id_).key for id_ in sent} == {"a", "b", None}


def test_a_key_stays_with_its_command_to_the_end(dsn: str, bus: CommandBus) -> None:
    ids = bus.send_many([SendRequest("payments", "Debit", key=KEY) for _ in range(3)])
    with running(dsn, handling()):
        assert {bus.wait("payments", id_, 10).key for id_ in ids} == {KEY}


def test_producers_write_keys_and_monitors_read_none(dsn: str, bus: CommandBus) -> None:
    with role(dsn, "producer") as producer:
        bus.send_many([SendRequest("payments", "Debit", key="a")], connection=producer)
        delayed = SendRequest("payments", "Debit", key="a", delay=60)
        bus.create_batch("payments", [delayed], connection=producer)
        bus.send("payments", "Debit", key="a", connection=producer)
    assert rows(dsn, "SELECT count(*) FROM cmdbus.command WHERE key = 'a'") == [(3,)]
    with role(dsn, "monitor") as monitor:
        assert refused(monitor, "SELECT key FROM cmdbus.command")
        assert not refused(monitor, "SELECT domain FROM cmdbus.command")
        bus.troubleshooting.summary(connection=monitor)


def test_a_key_goes_with_all_that_few_commands_have(bus: CommandBus) -> None:
    expires = datetime(2100, 1, 1, tzinfo=UTC)
    bus.configure("payments", max_waiting_per_key=100)
    for delay in (None, 60):
        for unique in (None, "u"):
            more: dict[str, Any] = {"key": KEY, "expires": expires, "delay": delay}
            more |= {"unique": unique and f"{unique} {delay}"}
            request = SendRequest("payments", "Debit", **more)
            ids = [bus.send("payments", "Debit", **more)]
            bus.cancel("payments", ids[0])
            ids += bus.send_many([request, SendRequest("payments", "Debit", delay=delay)])
            bus.cancel("payments", ids[1])
            batch_id = bus.create_batch("payments", [request])
            ids += [record.command_id for record in bus.batch_commands(batch_id)]
            records = [found(bus, id_) for id_ in ids]
            assert [record.key for record in records] == [KEY, KEY, None, KEY]
            assert [record.expires_at for record in records] == [expires, expires, None, expires]
            name = more["unique"]
            assert [record.unique_key for record in records] == [name, name, None, name]
