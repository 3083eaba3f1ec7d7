"""Readers of replies: next to workers and other readers, waiting, on connections that are lost."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any
from uuid import UUID

import pytest
from claiming import Claimer
from eventually import eventually, stays
from fleet import Fleet, kill
from handlers import beside, connect, do_nothing, running
from proxy import Proxy
from queries import rows
from reading import SESSIONS, answer, states

from cmdbus import CommandBus, HandlerRegistry, InvalidOperationError, ReceivedReply, Status
from cmdbus.board.records import Role
from cmdbus.errors import DatabaseUnavailableError
from cmdbus.producer import reply_waiter

#: Those that have looked for a reply.
LOOKED = SESSIONS + " AND state = 'idle' AND query ~ '[.]claim[(]'"


@contextmanager
def node(dsn: str, domain: str, type: str) -> Iterator[None]:
    """Workers with a handler for this type."""
    registry = HandlerRegistry()
    registry.register(domain, type, do_nothing)
    with running(dsn, registry):
        query = "SELECT count(*) FROM cmdbus.waiter"
        eventually(lambda: rows(dsn, query) != [(0,)])
        yield


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


def test_a_reply_that_could_not_be_acknowledged_is_not_held_for_good(
    dsn: str, bus: CommandBus, claimer: Claimer
) -> None:
    """Its lease ends, even if the reader is still referred to."""
    [id_] = answer(bus, claimer)
    with Proxy(dsn) as proxy, CommandBus(proxy.dsn) as reader:
        replies = reader.replies("orders", timeout=0.2, lease=0.5)
        next(replies)
        with proxy.away(), pytest.raises(DatabaseUnavailableError):
            next(replies)
        with bus.replies("orders", timeout=20) as others:
            assert next(others).command_id == id_


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
    dsn: str, bus: CommandBus, claimer: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without further attempts to claim; senders notify only while it waits."""
    for name in ("_MIN_PAUSE_SECONDS", "_MAX_PAUSE_SECONDS"):  # between two attempts
        monkeypatch.setattr(reply_waiter, name, 60.0)
    monkeypatch.setattr(reply_waiter, "_RETRY_SECONDS", 0.0)
    assert not is_armed(dsn)
    with bus.replies("orders", timeout=20) as replies:
        for number in range(3):
            times: list[float] = []

            def read() -> None:
                next(replies)
                times.append(time.monotonic())  # noqa: B023

            with beside(read):
                eventually(lambda: is_armed(dsn) and replies._waiter._hears)
                # Until then, it attempts to claim once more.
                stays(lambda: not times, 0.6)  # noqa: B023
                answer(bus, claimer)
                sent = time.monotonic()
            assert times[0] < sent + 10, number
            assert not is_armed(dsn)
            assert next(iter(replies)) is not None  # what was released comes again


def test_a_reader_that_has_lost_its_session_listens_again(
    dsn: str, bus: CommandBus, claimer: Claimer
) -> None:
    seen: list[ReceivedReply] = []
    with bus.replies("orders", timeout=30) as replies:
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
