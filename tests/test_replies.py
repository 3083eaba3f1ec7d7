"""Replies that a program reads itself."""

import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event
from typing import Any
from uuid import UUID

import psycopg
import pytest
from claiming import Claimer, ended, want
from eventually import eventually, stays
from fleet import Fleet, kill
from forks import forked, result_of_child
from handlers import beside, connect, do_nothing, running
from proxy import Proxy
from psycopg.conninfo import make_conninfo
from queries import await_lock_waits, rows
from roles import role
from test_fence import FAILED

from cmdbus import CommandBus, HandlerRegistry, InvalidOperationError, ReceivedReply, Status
from cmdbus.board.records import Role
from cmdbus.errors import MissingRightError
from cmdbus.worker.claims.outcomes import completed

SESSIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND application_name ~ '^cmdbus:[0-9a-z]{13}$'"
)
#: Those that have looked for a reply.
LOOKED = SESSIONS + " AND state = 'idle' AND query ~ '[.]claim[(]'"


def answer(bus: CommandBus, claimer: Claimer, count: int = 1) -> list[UUID]:
    """Commands that are completed, each with its reply to `orders`."""
    ids = [bus.send("payments", "Debit", reply_to="orders") for _ in range(count)]
    for claim in claimer.settle_and_claim([], want(count)):
        claimer.settle(ended(claim, completed({"n": ids.index(claim.command_id)})))
    return ids


def states(bus: CommandBus) -> list[str]:
    """Of the replies, the first one first."""
    return [record.status for record in reversed(bus.query("orders"))]


@contextmanager
def node(dsn: str, domain: str, type: str) -> Iterator[None]:
    """Workers with a handler for this type."""
    registry = HandlerRegistry()
    registry.register(domain, type, do_nothing)
    with running(dsn, registry):
        query = "SELECT count(*) FROM cmdbus.waiter"
        eventually(lambda: rows(dsn, query) != [(0,)])
        yield


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
    dsn: str, bus: CommandBus, claimer: Claimer, connection: psycopg.Connection
) -> None:
    answer(bus, claimer)
    for _ in bus.replies("orders", timeout=0.1, lease=0.3):
        stays(lambda: states(bus) == ["IN_PROGRESS"], 1.0)
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


def test_replies_are_not_taken_from_workers_that_handle_them(dsn: str, bus: CommandBus) -> None:
    """Also from idle ones."""
    with node(dsn, "orders", "Reply"):
        with pytest.raises(InvalidOperationError, match="workers handle the replies of domain"):
            next(bus.replies("orders", timeout=5))
        assert list(bus.replies("orders", timeout=0.1, shared=True)) == []
    assert list(bus.replies("orders", timeout=0.1)) == []


def test_workers_that_come_later_end_the_reading(dsn: str, bus: CommandBus) -> None:
    with bus.replies("orders") as replies:
        errors: list[BaseException] = []

        def read() -> None:
            try:
                next(replies)
            except BaseException as error:
                errors.append(error)

        with beside(read), node(dsn, "orders", "Reply"):
            eventually(lambda: errors)
    assert isinstance(errors[0], InvalidOperationError)


def test_workers_that_handle_other_types_of_the_domain_do_not_matter(
    dsn: str, bus: CommandBus, claimer: Claimer
) -> None:
    with node(dsn, "orders", "Ship"):
        answer(bus, claimer)
        assert len(list(bus.replies("orders", timeout=0.1))) == 1


def test_what_an_idle_node_handles_is_known_however_long_it_waits(
    dsn: str, bus: CommandBus, claimer: Claimer
) -> None:
    """Although another one, which is busy, removes the records of nodes that are gone."""
    with node(dsn, "orders", "Ship"), connect(dsn) as connection:
        [[idle]] = rows(dsn, "SELECT node FROM cmdbus.waiter")
        old = "UPDATE cmdbus.node SET renewed_at = renewed_at - interval '1 hour' WHERE id = %s"
        claimer.statements.renew(connection, {})
        connection.execute(old, (idle,))
        claimer.statements.renew(connection, {})
        assert list(bus.replies("orders", timeout=0.1)) == []


@pytest.mark.fleet(procs=3, threads=1)
def test_what_an_idle_fleet_handles_is_known_after_its_steward_was_replaced(
    fleet: Fleet, dsn: str, bus: CommandBus
) -> None:
    def armed() -> list[Any]:
        return rows(dsn, "SELECT node FROM cmdbus.waiter")

    eventually(lambda: all(seat.parked for seat in fleet.look().with_role(Role.WORKER)))
    eventually(armed)
    before = fleet.steward()
    assert before is not None
    kill(before)
    eventually(lambda: len(armed()) == 2)
    assert list(bus.replies("shop", timeout=0.1)) == []


@pytest.mark.fleet(procs=1, threads=1, wake="poll")
def test_what_an_idle_fleet_handles_that_polls_is_known(fleet: Fleet, dsn: str) -> None:
    """Nothing is armed for it."""
    eventually(lambda: all(seat.parked for seat in fleet.look().with_role(Role.WORKER)))
    seen: set[Any] = set()

    def renewals() -> int:
        seen.update(rows(dsn, "SELECT renewed_at FROM cmdbus.node"))
        return len(seen)

    eventually(lambda: renewals() == 4)


def test_a_reader_waits_while_the_server_is_away(
    dsn: str, bus: CommandBus, claimer: Claimer, caplog: pytest.LogCaptureFixture
) -> None:
    with Proxy(dsn) as proxy, CommandBus(proxy.dsn) as reader:
        seen: list[ReceivedReply] = []

        def read() -> None:
            seen.append(next(reader.replies("orders", timeout=60)))

        with beside(read):
            eventually(lambda: rows(dsn, LOOKED) == [(1,)])
            with proxy.away():
                eventually(lambda: "replies cannot be read" in caplog.text)
            answer(bus, claimer)
        assert len(seen) == 1
        assert caplog.text.count("replies cannot be read") == 1


def test_a_reply_is_acknowledged_once_the_server_is_back(
    dsn: str, bus: CommandBus, claimer: Claimer, caplog: pytest.LogCaptureFixture
) -> None:
    [first] = answer(bus, claimer)
    seen: list[UUID] = []
    with Proxy(dsn) as proxy, CommandBus(proxy.dsn) as reader:

        def read() -> None:
            for reply in reader.replies("orders", timeout=60):
                seen.append(reply.command_id)
                gate.wait(10)
                if len(seen) == 2:
                    break

        gate = Event()
        with beside(read):
            eventually(lambda: seen)
            with proxy.away():
                gate.set()
                eventually(lambda: "cannot be read" in caplog.text)
            [second] = answer(bus, claimer)
    assert seen == [first, second]
    assert states(bus)[0] == "COMPLETED"
    assert "comes again" not in caplog.text


def test_a_claim_whose_answer_was_lost_is_not_left_claimed(
    dsn: str, bus: CommandBus, claimer: Claimer
) -> None:
    """It is claimed again by the same reader, without a loss."""
    [id_] = answer(bus, claimer)
    muted: list[bytes] = []

    def mute_a_claim(data: bytes) -> bytes:
        if b".claim(" in data and not muted:
            muted.append(data)
            proxy.mute()
        return data

    with Proxy(dsn, mute_a_claim) as proxy, CommandBus(proxy.dsn) as reader:
        seen: list[ReceivedReply] = []
        with beside(lambda: seen.extend(reader.replies("orders", timeout=0.5))):
            eventually(lambda: states(bus) == ["IN_PROGRESS"])
            proxy.cut()
        assert [reply.command_id for reply in seen] == [id_]
    [record] = bus.query("orders")
    assert (record.status, record.attempts) == (Status.COMPLETED, 1)
    assert "LOST" not in [event.kind for event in bus.audit("orders", record.command_id)]


def is_armed(dsn: str) -> bool:
    return rows(dsn, "SELECT last_value <> 0 FROM cmdbus.armed") == [(True,)]


def test_a_reader_that_waits_is_woken_by_a_reply(
    dsn: str, bus: CommandBus, claimer: Claimer
) -> None:
    """Without further attempts to claim; senders notify only while it waits."""
    assert not is_armed(dsn)
    with bus.replies("orders", timeout=20) as replies:
        for number in range(3):
            times: list[float] = []

            def read() -> None:
                next(replies)
                times.append(time.monotonic())  # noqa: B023

            with beside(read):
                eventually(lambda: is_armed(dsn) and replies._waiter._hears)
                # By then, two attempts are a second or more apart.
                stays(lambda: not times, 1.3)  # noqa: B023
                answer(bus, claimer)
                sent = time.monotonic()
            assert times[0] < sent + 0.25, number
            assert not is_armed(dsn)
            assert next(iter(replies)) is not None  # what was released comes again


def test_a_reader_that_has_lost_its_session_listens_again(
    dsn: str, bus: CommandBus, claimer: Claimer
) -> None:
    seen: list[ReceivedReply] = []
    with bus.replies("orders", timeout=5) as replies:
        with beside(lambda: seen.append(next(replies))):
            for _ in range(2):
                eventually(lambda: is_armed(dsn) and replies._waiter._hears)
                end = SESSIONS.replace("count(*)", "count(pg_terminate_backend(pid, 5000))")
                assert rows(dsn, end)[0][0] >= 1
                eventually(lambda: not replies._waiter._hears)
            answer(bus, claimer)
        assert len(seen) == 1


def test_readers_share_the_replies_of_a_domain(dsn: str, bus: CommandBus, claimer: Claimer) -> None:
    """Each reply is read by one of them."""
    ids = answer(bus, claimer, 30)
    seen: list[UUID] = []

    def read() -> None:
        seen.extend(reply.command_id for reply in bus.replies("orders", timeout=0.5))

    with beside(read), beside(read), beside(read):
        pass
    assert sorted(seen) == sorted(ids)


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
