"""What a worker shows on the board, for whoever hands back what it leaves."""

import threading
from typing import Any

import psycopg
from eventually import eventually
from handlers import Gate, connect, running, seat_of

from cmdbus import (
    BusinessRuleError,
    Command,
    CommandBus,
    Context,
    HandlerRegistry,
    RetryPolicy,
    SendRequest,
    Timeouts,
)
from cmdbus.board.records import ClaimState, Phase
from cmdbus.board.views import SeatView
from cmdbus.worker import Worker


def shown(seat: SeatView, *states: ClaimState) -> set[tuple[int, int]]:
    return {(k.id, k.token) for k in seat.claims if k.state in states}


def test_the_board_shows_what_runs_what_waits_for_it_and_what_waits_for_its_settlement(
    dsn: str, bus: CommandBus
) -> None:
    """And nothing of it once all is settled or given back."""
    registry, gate = HandlerRegistry(), Gate()
    with connect(dsn) as watcher, psycopg.connect(dsn) as stranger:

        @registry.handler("payments", "Debit")
        def debit(command: Command, context: Context) -> None:
            if command.data == "held":  # its outcome waits for whoever has its row
                row = "SELECT FROM cmdbus.ready WHERE command_id = %s FOR UPDATE"
                stranger.execute(row, (command.command_id,))
            if command.data == "runs":
                gate(command, context)

        def rows(where: str) -> set[Any]:
            query = f"SELECT id, token FROM cmdbus.ready WHERE {where}"
            return set(watcher.execute(query.encode()).fetchall())

        with running(dsn, registry, concurrency=1) as worker:
            bus.send_many([SendRequest("payments", "Debit")] * 500)
            eventually(lambda: bus.snapshot("payments")["depth"] == 0)
            held = [SendRequest("payments", "Debit", "held", priority=3)]
            runs = [SendRequest("payments", "Debit", "runs", priority=4)]
            busy = [SendRequest("payments", "Debit", priority=2)] * 200
            bus.send_many([*busy, *held, *runs, *[SendRequest("payments", "Debit")] * 300])
            gate.wait_for(1)

            def agrees() -> bool:
                seat = seat_of(worker)
                return (
                    shown(seat, ClaimState.FINISHED) == rows("priority = 3")
                    and shown(seat, ClaimState.STARTED) == rows("priority = 4")
                    and shown(seat, ClaimState.CLAIMED)
                    == rows("priority = 5 AND claimer IS NOT NULL")
                )

            eventually(lambda: agrees() and shown(seat_of(worker), ClaimState.CLAIMED))
            [slot] = [slot for slot in seat_of(worker).slots if slot.phase is Phase.RUNNING]
            assert slot.command is not None
            started = shown(seat_of(worker), ClaimState.STARTED)
            assert {(slot.command.id, slot.command.token)} == started
            eventually(lambda: agrees() and not shown(seat_of(worker), ClaimState.CLAIMED))
            stranger.rollback()
            gate.open.set()
            eventually(lambda: rows("true") == set())
            eventually(lambda: seat_of(worker).claims == ())
            assert seat_of(worker).complete


def test_nothing_is_claimed_before_the_process_is_ready(dsn: str, bus: CommandBus) -> None:
    """Before, its exit codes mean that it could not start, and would end a fleet."""
    registry, workers, was_ready = HandlerRegistry(), list[Worker](), list[bool]()

    @registry.handler("payments", "Debit")
    def debit(command: Command, context: Context) -> None:
        was_ready.append(workers[0]._telemetry.seat._process.ready is not None)

    for _ in range(5):
        sent = bus.send("payments", "Debit")
        worker = Worker(dsn, registry, concurrency=20)
        workers[:] = [worker]
        thread = threading.Thread(target=worker.run)
        thread.start()
        assert bus.wait("payments", sent, 10).status == "COMPLETED"
        worker.stop()
        thread.join()
    assert was_ready == [True] * 5


def test_no_key_is_left_however_a_command_ends(dsn: str, bus: CommandBus) -> None:
    """Done, failed, again, lost, stuck, given up by a person, in its transaction."""
    registry, gate = HandlerRegistry(), Gate()

    @registry.handler("payments", "Debit", retry=RetryPolicy(max_attempts=2, backoff=(0.01,)))
    def debit(command: Command, context: Context) -> None:
        if command.data % 3 == 0:
            context.connection.execute("INSERT INTO effect VALUES (%s)", (command.command_id,))
        if command.data % 7 == 0:
            raise BusinessRuleError("NO", "rule")
        if command.data % 5 == 0:
            raise ValueError
        if command.data % 97 == 1:  # another node has it now
            with connect(dsn) as other:
                lost = "UPDATE cmdbus.ready SET token = token + 1 WHERE command_id = %s"
                other.execute(lost, (command.command_id,))

    registry.register("payments", "Hang", gate, timeout=0.2, retry=RetryPolicy(max_attempts=1))
    timeouts = Timeouts(statement=0.4, pool=0.5, lease=0.5, thread=1, watchdog=2)
    with running(dsn, registry, concurrency=4, timeouts=timeouts) as worker:
        requests = [SendRequest("payments", "Debit", number) for number in range(1, 601)]
        bus.send_many([*requests, *[SendRequest("payments", "Hang")] * 2])
        eventually(lambda: bus.snapshot("payments")["depth"] == 0, 20)
        eventually(lambda: bus.snapshot("payments")["in_progress"] == 0, 10)
        eventually(lambda: seat_of(worker).claims == ())
        assert seat_of(worker).complete
        assert worker.metrics()["cmdbus_lost_leases_total"] != 0
        gate.open.set()
    assert seat_of(worker).claims == ()


def test_a_slot_shows_its_session_and_the_one_that_comes_after_it(
    dsn: str, bus: CommandBus
) -> None:
    """By pid and start, a session is ended and no later one of its pid."""
    registry = HandlerRegistry()
    registry.register("payments", "Debit", lambda command, context: None)
    sessions = (
        "SELECT pid, (extract(epoch FROM backend_start) * 1000000)::bigint FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'cmdbus:%'"
        " AND application_name <> 'cmdbus:bus'"
    )
    # Of several threads, one that has nothing to do keeps a session that was ended.
    with running(dsn, registry, concurrency=1) as worker, connect(dsn) as watcher:
        for _ in range(2):
            bus.wait("payments", bus.send("payments", "Debit"), 5)

            def shows() -> bool:
                seat = seat_of(worker)
                theirs = set(watcher.execute(sessions.encode()).fetchall())
                ours = {(s.backend_pid, s.backend_start) for s in seat.slots if s.backend_pid}
                return ours != set() and ours <= theirs

            eventually(shows)
            watcher.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM ({sessions}) s".encode())


def test_an_extended_deadline_is_shown(dsn: str, bus: CommandBus) -> None:
    registry, gate = HandlerRegistry(), Gate()

    @registry.handler("payments", "Debit", timeout=30)
    def debit(command: Command, context: Context) -> None:
        context.extend(500)
        gate(command, context)

    with running(dsn, registry) as worker:
        bus.send("payments", "Debit")
        gate.wait_for(1)
        [slot] = [slot for slot in seat_of(worker).slots if slot.phase is Phase.RUNNING]
        assert slot.due is not None and slot.since is not None
        assert slot.due - slot.since > 400e9
        gate.open.set()
