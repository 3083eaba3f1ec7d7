"""Commands that an operator lets run again with other data."""

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from cli import here
from eventually import eventually
from handlers import beside, connect, found, kinds, running
from proxy import Proxy
from queries import await_lock_waits, move_to_troubleshooting, scalar
from roles import role

from cmdbus import (
    Command,
    CommandBus,
    Context,
    HandlerRegistry,
    InvalidOperationError,
    Status,
)
from cmdbus.errors import MissingRightError

#: Markup, quotes, control and bidirectional characters, depth.
HOSTILE: dict[str, Any] = {
    "<script>": "</script>'\"\\ \u202e\u2028 \x01 \U0001f4a5",
    "deep": [[[[]]]],
    "": None,
}


def troubled(bus: CommandBus, dsn: str, data: Any = None, **options: Any) -> UUID:
    id_ = bus.send("payments", "Debit", data, **options)
    assert move_to_troubleshooting(dsn) == 1
    return id_


def test_a_command_retried_with_other_data_has_that_and_its_trail_has_both(
    dsn: str, bus: CommandBus
) -> None:
    before: Any = {"amount": -5, "text": "y" * 1_000_000}
    id_ = troubled(bus, dsn, before)
    for data in ({"amount": 5}, None, HOSTILE, "x" * 1_000_000):
        bus.troubleshooting.retry("payments", id_, operator="ann", reason="typo", data=data)
        record = found(bus, id_)
        assert (record.status, record.data, record.attempts) == (Status.PENDING, data, 0)
        *_, event = bus.audit("payments", id_)
        assert (event.kind, event.operator, event.message) == ("OPERATOR_RETRY", "ann", "typo")
        assert event.details == {"data": data, "data_before": before}
        assert move_to_troubleshooting(dsn) == 1
        before = data


def test_all_but_the_data_stays(dsn: str, bus: CommandBus) -> None:
    id_ = troubled(bus, dsn, 1, key="k", unique="u", reply_to="orders", priority="high")
    before = found(bus, id_)
    bus.troubleshooting.retry("payments", id_, operator="ann", data=2)
    after = found(bus, id_)
    for name in ("key", "unique_key", "correlation_id", "reply_to", "priority", "created_at"):
        assert getattr(after, name) == getattr(before, name)
    move_to_troubleshooting(dsn)
    bus.troubleshooting.retry("payments", id_, operator="ann")
    assert found(bus, id_).data == 2
    assert bus.audit("payments", id_)[-1].details is None


REFUSED: list[tuple[object, str]] = [
    (float("nan"), "data is nan: JSON has no such number"),
    ({"a": ["\0"]}, r"data.a\[0\] contains a NUL character"),
    ({1: 2}, "data has the key 1: JSON keys are strings"),
    (object(), "data is of type object: JSON has no such thing"),
    ("x" * 200, "data has 202 bytes as JSON: at most 100 are taken"),
]


def test_the_data_of_a_retry_is_checked_as_that_of_a_send(dsn: str) -> None:
    with CommandBus(dsn, max_bytes=100) as bus:
        id_ = troubled(bus, dsn, 1)
        for data, sentence in REFUSED:
            with pytest.raises(ValueError, match=sentence):
                bus.troubleshooting.retry("payments", id_, operator="ann", data=data)
        assert found(bus, id_).status is Status.IN_TROUBLESHOOTING_QUEUE
        assert kinds(bus, id_) == ["SENT", "MOVED_TO_TROUBLESHOOTING_QUEUE"]


def test_the_data_of_a_retry_takes_the_forms_that_a_send_gives(dsn: str) -> None:
    with CommandBus(dsn, encoder=lambda value: {"odd": value.real}) as bus:
        id_ = troubled(bus, dsn, 1)
        data = {"amount": Decimal("1.50"), "odd": 3 + 4j}
        bus.troubleshooting.retry("payments", id_, operator="ann", data=data)
        assert found(bus, id_).data == {"amount": "1.50", "odd": {"odd": 3.0}}


@dataclass
class Debit:
    amount: int


def test_data_that_the_handlers_type_refuses_comes_back_and_good_data_runs(
    dsn: str, bus: CommandBus
) -> None:
    registry, amounts = HandlerRegistry(), []

    @registry.handler("payments", "Debit")
    def debit(command: Command[Debit], context: Context) -> None:
        amounts.append(command.payload.amount)

    id_ = troubled(bus, dsn, {"amount": "none"})
    with running(dsn, registry):
        for data in ({"amount": [5]}, {"amount": 5}):
            bus.troubleshooting.retry("payments", id_, operator="ann", data=data)
            record = bus.wait("payments", id_)
            if data["amount"] == [5]:
                assert record.status is Status.IN_TROUBLESHOOTING_QUEUE
                assert (record.error_code, record.data) == ("PAYLOAD_INVALID", data)
    assert (record.status, amounts) == (Status.COMPLETED, [5])


def test_a_retry_with_data_whose_answer_is_lost_is_carried_out_once(
    dsn: str, bus: CommandBus
) -> None:
    """Although the command has failed again before the second try, with the new data."""
    id_ = troubled(bus, dsn, 1)
    with (
        Proxy(dsn) as proxy,
        CommandBus(proxy.dsn) as operator,
        connect(dsn) as watcher,
        psycopg.connect(dsn) as holder,
    ):
        operator.query()
        holder.execute("LOCK TABLE cmdbus.event IN EXCLUSIVE MODE")
        retry = operator.troubleshooting.retry
        with beside(lambda: retry("payments", id_, operator="ann", data=2)):
            await_lock_waits(dsn)
            proxy.mute()
            holder.rollback()
            done = "SELECT count(*) FROM cmdbus.event WHERE operator = 'ann'"
            eventually(lambda: scalar(watcher, done) > 0)
            move_to_troubleshooting(dsn)
            proxy.cut()
    assert found(bus, id_).status is Status.IN_TROUBLESHOOTING_QUEUE
    [event] = [each for each in bus.audit("payments", id_) if each.operator]
    assert event.details == {"data": 2, "data_before": 1}


def test_a_command_that_another_operator_has_moved_keeps_its_data(
    dsn: str, bus: CommandBus
) -> None:
    id_ = troubled(bus, dsn, 1)
    errors: list[Exception] = []

    def retry() -> None:
        with pytest.raises(InvalidOperationError) as raised:
            bus.troubleshooting.retry("payments", id_, operator="bob", data=2)
        errors.append(raised.value)

    with psycopg.connect(dsn) as ann:
        bus.troubleshooting.retry("payments", id_, operator="ann", connection=ann)
        with beside(retry):
            await_lock_waits(dsn)
            ann.commit()
    assert "cannot be retried: it is PENDING" in str(errors[0])
    assert found(bus, id_).data == 1


def test_only_an_operators_role_may_change_data(dsn: str, bus: CommandBus) -> None:
    id_ = troubled(bus, dsn, 1)
    retry = bus.troubleshooting.retry
    for kind in ("monitor", "producer"):
        with role(dsn, kind) as other, pytest.raises(MissingRightError, match="--operator"):
            retry("payments", id_, operator="eve", data=2, connection=other)
    with role(dsn, "operator") as connection:
        retry("payments", id_, operator="ann", data=2, connection=connection)
    assert found(bus, id_).data == 2


def test_the_operators_command_takes_data_as_it_stands_from_a_file_and_from_stdin(
    dsn: str, bus: CommandBus, tmp_path: Path
) -> None:
    id_ = troubled(bus, dsn, 1)
    (tmp_path / "data").write_text('{"a": 2}')
    typed: dict[str, tuple[str, Any]] = {
        '{"a": 1}': ("", {"a": 1}),
        f"@{tmp_path}/data": ("", {"a": 2}),
        "-": ("[3]", [3]),
        "null": ("", None),
    }
    for text, (stdin, data) in typed.items():
        arguments = ["tsq", "retry", "payments", str(id_), "--data", text, "--dsn", dsn]
        result = here(*arguments, stdin=stdin)
        assert (result.stdout, result.exit_code) == ("retried 1 command\n", 0)
        assert found(bus, id_).data == data
        assert move_to_troubleshooting(dsn) == 1
    shown = here("get", "payments", str(id_), "--dsn", dsn).stdout
    for data in ('{"a": 1}', '{"a": 2}', "[3]", "null"):
        assert f"    data: {data}\n" in shown
    assert "    data_before: [3]\n" in shown


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("--all", "--data goes with the ID of one command"),
        ("payments {} {}", "--data goes with the ID of one command"),
        ("payments", "--data goes with the ID of one command"),
        ("payments {} --data {{", "it is not JSON"),
    ],
)
def test_data_is_for_one_command(typed: str, sentence: str) -> None:
    arguments = typed.format(id_ := "01a1ef5a-0994-8c8f-a75a-06db62dbaa94", id_).split()
    result = here("tsq", "retry", "--data", "1", *arguments, CMDBUS_DSN="host=nowhere.invalid")
    assert (result.exit_code, result.stdout) == (2, "")
    assert sentence in result.stderr
