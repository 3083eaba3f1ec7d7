"""Commands and contexts for tests that call a handler as a function."""

from dataclasses import dataclass
from datetime import date
from uuid import uuid4

import psycopg
import pytest

from cmdbus import Command, Context, InvalidOperationError, SendRequest
from cmdbus.testing import make_command, make_context


@dataclass
class Debit:
    amount: int
    on: date


def test_data_passes_through_json() -> None:
    command = make_command("d", "T", {"day": date(2026, 1, 2), "pair": (1, 2)}, priority="high")
    assert command.data == command.payload == {"day": "2026-01-02", "pair": [1, 2]}
    assert (command.priority, command.correlation_id) == (0, command.command_id)
    with pytest.raises(ValueError, match=r"data.x is nan"):
        make_command("d", "T", {"x": float("nan")})


def test_the_payload_has_the_type_of_the_data_or_the_one_that_is_named() -> None:
    debit = Debit(5, date(2026, 1, 2))
    command = make_command("d", "T", debit)
    assert (command.payload, command.data) == (debit, {"amount": 5, "on": "2026-01-02"})
    assert make_command("d", "T", command.data, payload_type=Debit).payload == debit


def test_a_context_remembers_what_the_handler_asked_for() -> None:
    batch_id = uuid4()
    context = make_context(make_command("d", "T"), attempt=2, timeout=10, batch_id=batch_id)
    request = SendRequest("d", "Next")

    def handle(command: Command, context: Context) -> None:
        context.log.info("attempt %s", context.attempt)
        context.retry_after(30)
        context.extend(5)
        with context.breaker("shop"):
            assert context.batch is not None and context.batch.batch_id == batch_id
            context.batch.add([request])

    handle(make_command("d", "T"), context)
    assert (context.retry_delay, context.extended, context.guarded) == (30, 5, ["shop"])
    assert context.added == [request]
    assert 10 < context.remaining() <= 15
    assert (context.canceled, context.stopping, context.attempt) == (False, False, 2)


def test_a_context_goes_on_from_a_checkpoint_and_remembers_the_next_ones() -> None:
    context = make_context(resumed={"day": date(2026, 1, 2)})
    assert context.resumed == {"day": "2026-01-02"}
    assert (context.checkpoints, context.again_in) == ([], None)
    context.checkpoint((1, 2))
    context.again(delay=5)
    assert (context.checkpoints, context.resumed, context.again_in) == ([[1, 2]], [1, 2], 5)
    with pytest.raises(ValueError, match=r"checkpoint.x is nan"):
        context.checkpoint({"x": float("nan")})
    encoding = make_context(resumed=1j, encoder=str)
    encoding.checkpoint(2j)
    assert (encoding.checkpoints, make_context(resumed=1j, encoder=str).resumed) == (["2j"], "1j")


def test_a_connection_is_given_or_refused_by_a_sentence(dsn: str) -> None:
    with pytest.raises(InvalidOperationError, match=r"make_context\(connection=\.\.\.\)"):
        make_context().connection  # noqa: B018
    with pytest.raises(InvalidOperationError, match=r"make_context\(session=\.\.\.\)"):
        make_context().session  # noqa: B018
    with psycopg.connect(dsn) as connection:
        context = make_context(connection=connection)
        context.connection.execute("INSERT INTO effect VALUES (NULL, 1)")
        with pytest.raises(InvalidOperationError, match="would end the command's transaction"):
            context.connection.commit()
        assert connection.execute("SELECT attempt FROM effect").fetchall() == [(1,)]
        connection.rollback()
        assert connection.execute("SELECT attempt FROM effect").fetchall() == []
