"""Claims are bounded by the bytes of their payloads, as the worker receives them."""

import gc
import os
from collections import Counter
from typing import Any

import psycopg
import pytest
from claiming import Claimer, want
from eventually import eventually
from handlers import ONCE, connect, handling, running
from queries import scalar

from cmdbus import Command, CommandBus, Context, SendRequest
from cmdbus.board.board import Board
from cmdbus.supervisor.cli.values import payload_size
from cmdbus.worker import Worker
from cmdbus.worker.claims.claim import Claim, fence_of
from cmdbus.worker.claims.connections import ThreadConnection
from cmdbus.worker.execution.handler_connection import EndedConnection
from cmdbus.worker.pipeline.in_flight import InFlight

pytestmark = pytest.mark.new_database

KB = 1024


def plain(size: int) -> str:
    """As JSON it has `size` bytes, which no packing makes much smaller."""
    return os.urandom(size).hex()[: size - 2]


def packed(size: int) -> str:
    """The same, and a hundredth of it where it is stored."""
    return "x" * (size - 2)


def send(bus: CommandBus, *payloads: str, type: str = "Debit") -> None:
    bus.send_many([SendRequest("payments", type, payload) for payload in payloads])


def claimed(claimer: Claimer, bytes: int, free: int = 100, **more: Any) -> list[Claim]:
    return claimer.settle_and_claim([], want(free, bytes=bytes, **more))


@pytest.mark.parametrize("made", [plain, packed], ids=["plain", "packed"])
@pytest.mark.parametrize("size", [200, 4 * KB, 600 * KB], ids=["tiny", "small", "large"])
def test_a_claim_takes_the_first_that_fit_in_its_bytes(
    bus: CommandBus, made: object, size: int, claimer: Claimer
) -> None:
    """However they are stored: counted is what is received."""
    assert callable(made)
    send(bus, *[made(size) for _ in range(7)])
    # The server counts up to 4 more for each.
    first = claimed(claimer, 3 * size + 50)
    assert [len(claim.data) for claim in first] == [size] * 3
    second = claimed(claimer, 4 * size - 1)
    assert len(second) == 3 and second[0].id > first[-1].id
    assert len(claimed(claimer, 100 * size)) == 1


def test_a_command_with_more_bytes_than_a_claim_may_take_is_claimed_alone(
    bus: CommandBus, claimer: Claimer
) -> None:
    send(bus, "small", packed(900 * KB), plain(50 * KB), "small")
    sizes = [[len(claim.data) for claim in claimed(claimer, 10 * KB)] for _ in range(4)]
    assert sizes == [[7], [900 * KB], [50 * KB], [7]]


def test_what_is_claimed_ahead_of_free_slots_must_fit(bus: CommandBus, claimer: Claimer) -> None:
    """Each of a round trip's two claims may take half of the bytes; only the first one takes a
    command that has more."""
    send(bus, plain(40 * KB))
    send(bus, plain(40 * KB), type="Ship")
    quick = ("payments Ship",)
    first = claimed(claimer, 60 * KB, free=1, prefetch=5, quick_types=quick)
    assert [claim.type for claim in first] == ["Debit"]
    second = claimed(claimer, 80 * KB, free=1, prefetch=5, quick_types=quick)
    assert [claim.type for claim in second] == ["Ship"]


def test_payload_counts_as_ahead_until_a_thread_starts_with_it(
    bus: CommandBus, connection: psycopg.Connection, claimer: Claimer
) -> None:
    in_flight = InFlight(claimer.statements, Board.in_memory(1, 8).seat(0))
    send(bus, "ä" * 10_000, plain(5 * KB), plain(5 * KB), plain(5 * KB))
    one, two, three, four = claimed(claimer, 100 * KB)
    first = in_flight.take([one, two, three, four], lambda: False)[0]
    assert in_flight.prefetched_bytes == 20_002 + 15 * KB
    in_flight.start(first)
    assert in_flight.prefetched_bytes == 15 * KB
    in_flight.free([two])
    in_flight.mark_released([three])
    assert in_flight.prefetched_bytes == 5 * KB
    assert fence_of(three) in in_flight.known(), "until it is given back, it is not adopted"
    assert in_flight.release(ThreadConnection(lambda: connection))
    assert fence_of(three) not in in_flight.known()


def test_a_claim_is_held_until_its_row_is_not_locked(
    dsn: str, bus: CommandBus, connection: psycopg.Connection, claimer: Claimer
) -> None:
    """The claim of another worker whose snapshot is older locks rows that were just claimed."""
    in_flight = InFlight(claimer.statements, Board.in_memory(1, 8).seat(0))
    send(bus, "one", "two")
    one, two = claimed(claimer, 10 * KB)
    in_flight.take([one, two], lambda: False)
    in_flight.mark_released([one, two])
    with psycopg.connect(dsn) as stranger:
        query = b"SELECT FROM cmdbus.ready WHERE id = %s FOR UPDATE"
        assert stranger.execute(query, (one.id,)).rowcount == 1
        assert not in_flight.release(ThreadConnection(lambda: connection))
        assert in_flight.known() == {fence_of(one)}
    assert in_flight.release(ThreadConnection(lambda: connection))
    assert in_flight.known() == set()
    assert bus.snapshot("payments")["in_progress"] == 0


def test_an_orphan_that_is_released_unread_does_not_wait_for_the_next_claim(
    bus: CommandBus, claimer: Claimer
) -> None:
    """Housekeeping releases it, if the leader cannot."""
    in_flight = InFlight(claimer.statements, Board.in_memory(1, 8).seat(0))
    send(bus, "one")
    assert not in_flight.filled.is_set()
    in_flight.mark_released(claimed(claimer, 10 * KB))
    assert in_flight.filled.is_set()


def test_a_worker_holds_no_more_payload_than_it_may_and_one_command(
    dsn: str, bus: CommandBus
) -> None:
    """At full speed, when the type is known to be quick."""
    running_worker, seen = list[Worker](), list[int]()

    def debit(command: Command, context: Context) -> None:
        threads = running_worker[0]._concurrency.threads
        assert threads is not None
        seen.append(threads.in_flight.prefetched_bytes)

    send(bus, *["warm"] * 100)
    with running(dsn, handling(debit), concurrency=2, claim_bytes=100 * KB) as worker:
        running_worker.append(worker)
        eventually(lambda: len(seen) == 100)
        send(bus, *[plain(20 * KB) for _ in range(100)])
        eventually(lambda: len(seen) == 200)
    assert 20 * KB <= max(seen) <= 100 * KB


def toast_pages(connection: psycopg.Connection) -> int:
    """Pages of large payloads that this transaction's session has read so far."""
    query = "SELECT pg_stat_get_xact_blocks_fetched(reltoastrelid) FROM pg_class WHERE oid = %s"
    return int(scalar(connection, f"{query}::regclass", "cmdbus.ready"))


def test_payloads_of_finished_commands_are_freed_without_the_garbage_collector(
    dsn: str, bus: CommandBus
) -> None:
    threads = 2

    def fail(command: Command, context: Context) -> None:
        raise RuntimeError(command.type)

    def query(command: Command, context: Context) -> None:
        context.connection.execute("SELECT")

    registry = handling(lambda command, context: context.extend(1))
    registry.register("payments", "Query", query)
    registry.register("payments", "Ship", fail, retry=ONCE)
    gc.collect()
    gc.disable()
    try:
        with running(dsn, registry, concurrency=threads):
            for type in ("Debit", "Ship", "Query"):
                send(bus, *[packed(64 * KB)] * 20, type=type)
            eventually(lambda: bus.snapshot("payments")["depth"] == 0)
            # Each thread has its latest one, and the leader what it claimed last.
            eventually(lambda: held_payloads() <= 2 * threads)
            eventually(lambda: held_connections() <= threads)
    finally:
        gc.enable()


def held_payloads() -> int:
    claims = [o for o in gc.get_objects() if type(o) is Claim]
    return sum(len(claim.data) >= 64 * KB - 2 for claim in claims)


def held_connections() -> int:
    return sum(type(o) is EndedConnection for o in gc.get_objects())


def test_what_a_worker_has_claimed_is_found_and_given_back_without_its_payload(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    """A rescue must not run out of memory by it."""
    dead, steward = Claimer(connection), Claimer(connection)
    send(bus, plain(900 * KB), packed(900 * KB))
    assert len(claimed(dead, 10_000 * KB)) == 2
    with connection.transaction():
        before = toast_pages(connection)
        rescue = steward.statements.of(dead.incarnation)
        found = rescue.claimed(connection)
        assert [claim.data for claim in found] == ["", ""]
        given = rescue.release(connection, found, [None, 1], "gone")
        assert len(given) == 2
        assert toast_pages(connection) == before
    assert len(claimed(steward, 10_000 * KB)) == 2


def test_what_a_lost_reply_had_claimed_is_adopted_as_far_as_it_fits(
    dsn: str, bus: CommandBus
) -> None:
    """The rest goes back, and each runs once."""
    ran = Counter[int]()

    def debit(command: Command, context: Context) -> None:
        ran[len(str(command.data))] += 1

    sizes = [10_000 + number for number in range(9)]
    registry = handling(debit)
    with running(dsn, registry, concurrency=1, claim_bytes=35_000) as worker, connect(dsn) as other:
        eventually(lambda: worker._concurrency.threads is not None)
        threads, claimer = worker._concurrency.threads, Claimer(other)
        assert threads is not None
        claimer.statements.incarnation = worker._statements.incarnation
        with other.transaction():
            requests = [SendRequest("payments", "Debit", "x" * size) for size in sizes]
            bus.send_many(requests, connection=other)
            assert len(claimed(claimer, 10_000 * KB)) == 9
        threads.pipeline.leader.adoption.mark_in_doubt((0, 0))
        send(bus, "wake")
        eventually(lambda: sum(ran.values()) == 10)
    assert set(ran.values()) == {1}


def test_the_bytes_of_a_claim_are_checked() -> None:
    assert payload_size("1K") == KB and payload_size("8M") == 8 * KB * KB
    for text in ("8", "2G", "1023"):
        with pytest.raises(ValueError, match=f"from 1K to 1G, not {text}"):
            payload_size(text)
    with pytest.raises(ValueError, match="claim_bytes must be a whole number from 1"):
        Worker("host=nowhere", handling(), claim_bytes=0)
