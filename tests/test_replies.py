"""Replies that a program reads itself: acknowledged, released, claimed again."""

import gc
import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from threading import Event
from typing import Any
from uuid import UUID

import psycopg
import pytest
from claiming import Claimer, ended
from eventually import eventually
from forks import forked, result_of_child
from handlers import await_renewals, beside, connect
from psycopg.conninfo import make_conninfo
from queries import await_lock_waits, rows
from reading import SESSIONS, answer, states
from roles import role
from test_fence import FAILED

from cmdbus import CommandBus, InvalidOperationError, ReceivedReply
from cmdbus.errors import MissingRightError


def test_each_reply_is_acknowledged_when_the_body_is_through(
    bus: CommandBus, claimer: Claimer
) -> None:
    ids = answer(bus, claimer, 3)
    seen: list[ReceivedReply] = []
    for reply in bus.replies("orders", timeout=0.2):
        assert states(bus)[len(seen)] == "IN_PROGRESS"
        assert states(bus)[: len(seen)] == ["COMPLETED"] * len(seen)
        seen.append(reply)
    assert states(bus) == ["COMPLETED"] * 3
    assert [reply.command_id for reply in seen] == [reply.correlation_id for reply in seen] == ids
    assert [reply.result for reply in seen] == [{"n": n} for n in range(3)]
    assert {(reply.type, reply.outcome, reply.is_success) for reply in seen} == {
        ("Debit", "SUCCESS", True)
    }
    records = list(reversed(bus.query("orders")))
    assert [reply.reply_id for reply in seen] == [record.command_id for record in records]
    assert [reply.created_at for reply in seen] == [record.created_at for record in records]
    assert [(record.attempts, record.worker is not None) for record in records] == [(1, True)] * 3


def test_a_failure_comes_with_its_code_and_message(bus: CommandBus, claimer: Claimer) -> None:
    bus.send("payments", "Debit", reply_to="orders")
    claimer.settle(ended(claimer.claim_one(), FAILED))
    [reply] = bus.replies("orders", timeout=0.1)
    assert (reply.outcome, reply.is_success) == ("FAILED", False)
    assert reply.result == {"code": "NO", "message": "rule", "details": [1]}


def leave_by_break(bus: CommandBus) -> None:
    for _ in bus.replies("orders", timeout=5):
        break


def leave_by_an_exception(bus: CommandBus) -> None:
    with suppress(ZeroDivisionError):
        for _ in bus.replies("orders", timeout=5):
            raise ZeroDivisionError


def leave_by_close(bus: CommandBus) -> None:
    replies = bus.replies("orders", timeout=5)
    for _ in replies:
        replies.close()


def leave_by_the_end_of_a_block(bus: CommandBus) -> None:
    with bus.replies("orders") as replies:
        next(replies)


def leave_by_closing_the_bus(bus: CommandBus) -> None:
    replies = bus.replies("orders")
    next(replies)
    bus.close()
    assert list(replies) == []


@pytest.mark.parametrize(
    "leave",
    [
        leave_by_break,
        leave_by_an_exception,
        leave_by_close,
        leave_by_the_end_of_a_block,
        leave_by_closing_the_bus,
    ],
)
def test_a_loop_that_is_left_releases_what_it_held(
    dsn: str, bus: CommandBus, claimer: Claimer, leave: Callable[[CommandBus], None]
) -> None:
    answer(bus, claimer, 2)
    with CommandBus(dsn) as own:
        leave(own)
    gc.collect()
    assert states(bus) == ["PENDING", "PENDING"]
    [first, _] = reversed(bus.query("orders"))
    assert first.attempts == 0
    kinds = [event.kind for event in bus.audit("orders", first.command_id)]
    assert "LOST" not in kinds
    assert len(list(bus.replies("orders", timeout=0.1))) == 2


def is_released(dsn: str) -> bool:
    query = "SELECT claimer, losses FROM cmdbus.ready WHERE domain = 'orders'"
    return rows(dsn, query) == [(None, 0)]


def test_a_reply_is_released_although_its_lease_is_just_renewed(
    dsn: str, bus: CommandBus, claimer: Claimer
) -> None:
    answer(bus, claimer)
    replies = bus.replies("orders", lease=1)
    next(replies)
    with psycopg.connect(dsn) as other:
        other.execute("SELECT FROM cmdbus.lease FOR UPDATE")
        await_lock_waits(dsn)
        with beside(replies.close) as closing:
            closing.join(0.3)
            other.rollback()
    assert is_released(dsn)


def test_a_reader_that_a_signal_handler_closes_while_it_claims_holds_nothing(
    dsn: str, bus: CommandBus, claimer: Claimer
) -> None:
    answer(bus, claimer)
    replies, closed = bus.replies("orders"), Event()

    def close(number: int, frame: object) -> None:
        replies.close()
        closed.set()

    def interrupt() -> None:
        await_lock_waits(dsn)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        assert closed.wait(10)
        other.rollback()

    previous = signal.signal(signal.SIGUSR1, close)
    try:
        with psycopg.connect(dsn) as other:
            other.execute("LOCK cmdbus.ready")
            with beside(interrupt):
                assert list(replies) == []
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert is_released(dsn)


def test_a_reader_is_not_closed_before_it_has_acknowledged(
    dsn: str, bus: CommandBus, claimer: Claimer
) -> None:
    """Here its session is lost, and it opens another one."""
    answer(bus, claimer)
    replies, left = bus.replies("orders"), list[object]()
    next(replies)
    rows(dsn, f"SELECT pg_terminate_backend(pid, 5000) {SESSIONS.partition('count(*)')[2]}")
    with psycopg.connect(dsn) as other:
        other.execute("LOCK cmdbus.incarnation")
        with beside(lambda: left.append(next(replies, None))):
            await_lock_waits(dsn)
            with beside(replies.close) as closing:
                closing.join(0.3)
                other.rollback()
    assert (left, states(bus)) == ([None], ["COMPLETED"])


def test_a_second_loop_begins_with_what_the_first_one_left(
    bus: CommandBus, claimer: Claimer
) -> None:
    ids = answer(bus, claimer, 2)
    with bus.replies("orders", timeout=0.1) as replies:
        seen = []
        for reply in replies:
            seen.append(reply.command_id)
            break
        seen += [reply.command_id for reply in replies]
        assert seen == [ids[0], *ids]


@pytest.mark.process
def test_the_reply_of_a_killed_reader_comes_again(dsn: str, claimer: Claimer) -> None:
    with CommandBus(dsn) as bus:
        [id_] = answer(bus, claimer)

        def read() -> None:
            with CommandBus(dsn) as own:
                for _ in own.replies("orders", lease=0.5):
                    signal.pause()

        with forked(read) as pid:
            eventually(lambda: states(bus) == ["IN_PROGRESS"])
            os.kill(pid, signal.SIGKILL)
        [reply] = eventually(lambda: list(bus.replies("orders", timeout=0.1)))
        assert reply.command_id == id_
        kinds = [event.kind for event in bus.audit("orders", reply.reply_id)]
        assert kinds.count("LOST") == 1 and states(bus) == ["COMPLETED"]


@pytest.mark.process
def test_a_reply_whose_readers_die_goes_to_an_operator(dsn: str, claimer: Claimer) -> None:
    def read() -> None:
        with CommandBus(dsn) as own:
            for _ in own.replies("orders", lease=0.1):
                signal.pause()

    with CommandBus(dsn) as bus:
        answer(bus, claimer)
        for _ in range(3):
            with forked(read) as pid:
                eventually(lambda: states(bus) == ["IN_PROGRESS"])
                os.kill(pid, signal.SIGKILL)
            eventually(lambda: states(bus) == ["PENDING"])
        assert list(bus.replies("orders", timeout=0.1)) == []
        [record] = bus.troubleshooting.list("orders")
        assert (record.error_code, record.reason) == ("LOST", "LOST")
        assert record.error_message == "3 of its readers crashed while they had it"


def test_the_lease_is_renewed_while_the_body_runs(
    dsn: str, bus: CommandBus, claimer: Claimer
) -> None:
    answer(bus, claimer)
    for reply in bus.replies("orders", timeout=0.1, lease=2):
        await_renewals(dsn, reply.reply_id, times=2)
        assert states(bus) == ["IN_PROGRESS"]
        assert list(bus.replies("orders", timeout=0.1)) == []
    assert states(bus) == ["COMPLETED"]


def test_a_reply_that_was_lost_meanwhile_is_said_to_come_again(
    bus: CommandBus,
    claimer: Claimer,
    connection: psycopg.Connection,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As after a suspension of the machine."""
    answer(bus, claimer)
    replies = bus.replies("orders", timeout=0.1)
    first = next(replies)
    connection.execute("UPDATE cmdbus.ready SET lease_until = clock_timestamp() - interval '1 s'")
    with bus.replies("orders", timeout=5) as others:
        again = next(others)
        assert again.command_id == first.command_id
        with caplog.at_level(logging.WARNING):
            assert next(replies, None) is None
        sentence = f"reply {first.reply_id} of domain orders was lost before it was acknowledged"
        assert sentence in caplog.text
        assert states(bus) == ["IN_PROGRESS"]
    replies.close()


def test_what_is_not_a_reply_goes_to_an_operator(bus: CommandBus, claimer: Claimer) -> None:
    wrong: list[Any] = [None, [], {"command_id": 7}, {"command_id": str(UUID(int=1)), "type": "X"}]
    for data in wrong:
        bus.send("orders", "Reply", data)
    [id_] = answer(bus, claimer)
    assert [reply.command_id for reply in bus.replies("orders", timeout=0.1)] == [id_]
    troubled = bus.troubleshooting.list("orders")
    assert [(t.error_code, t.attempts) for t in troubled] == [("NOT_A_REPLY", 0)] * 4


def test_only_replies_of_the_domain_are_read(bus: CommandBus, claimer: Claimer) -> None:
    answer(bus, claimer)
    bus.send("orders", "Ship")
    assert list(bus.replies("elsewhere", timeout=0.1)) == []
    assert len(list(bus.replies("orders", timeout=0.1))) == 1
    bus.pause("orders")
    answer(bus, claimer)
    assert list(bus.replies("orders", timeout=0.1)) == []


def test_reading_needs_the_rights_of_a_worker(dsn: str, bus: CommandBus, claimer: Claimer) -> None:
    answer(bus, claimer)
    for kind in ("producer", "worker"):
        with role(dsn, kind) as connection:
            [[name]] = connection.execute("SELECT current_user").fetchall()
            with CommandBus(make_conninfo(dsn, options=f"-c role={name}")) as own:
                if kind == "worker":
                    assert len(list(own.replies("orders", timeout=0.1))) == 1
                else:
                    with pytest.raises(MissingRightError, match=f"--worker {name}"):
                        next(own.replies("orders", timeout=5))


@pytest.mark.process
def test_a_forked_child_neither_reads_on_nor_releases(bus: CommandBus, claimer: Claimer) -> None:
    answer(bus, claimer)
    replies = bus.replies("orders", timeout=0.1)
    next(replies)

    def child() -> str:
        replies.close()
        try:
            next(replies)
        except InvalidOperationError as error:
            return str(error)
        return "read on"

    assert "call bus.replies after the fork" in result_of_child(child)
    assert states(bus) == ["IN_PROGRESS"]
    replies.close()


def test_wrong_arguments_are_refused_at_once(bus: CommandBus) -> None:
    wrong: list[dict[str, Any]] = [{"timeout": -1}, {"lease": 0}, {"shared": 1}, {"domain": "a b"}]
    for values in wrong:
        with pytest.raises(ValueError, match=next(iter(values))):
            bus.replies(**{"domain": "orders", **values})


def test_a_closed_reader_leaves_no_session(dsn: str, bus: CommandBus, claimer: Claimer) -> None:
    answer(bus, claimer)
    with connect(dsn) as watcher:
        assert len(list(bus.replies("orders", timeout=0.1))) == 1
        gc.collect()
        eventually(lambda: watcher.execute(SESSIONS).fetchone() == (0,))
