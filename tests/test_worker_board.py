"""What a worker shows on the board, for the rescue of its claims."""

from typing import Any
from uuid import UUID

import psycopg
import pytest
from eventually import eventually
from handlers import ONCE, Gate, await_drained, beside, connect, handling, running, seat_of
from queries import SESSIONS, end_sessions, rows

from cmdbus import (
    BusinessRuleError,
    Command,
    CommandBus,
    Context,
    RetryPolicy,
    SendRequest,
    Timeouts,
)
from cmdbus.board.records import ClaimState, Phase
from cmdbus.worker import Worker
from cmdbus.worker.pipeline import local_queue


def claims(dsn: str, where: str) -> set[Any]:
    return set(rows(dsn, f"SELECT id, token FROM cmdbus.ready WHERE {where}"))


def test_the_board_shows_what_runs_what_waits_for_it_and_what_waits_for_its_settlement(
    dsn: str, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing of it once all is settled or released."""
    # What waits goes back only after it was seen.
    monkeypatch.setattr(local_queue, "_STARTED_WITHIN", 30.0)
    gate, started = Gate(), list[UUID]()

    def debit(command: Command, context: Context) -> None:
        if command.data == "held":  # its outcome waits for the session that has its row
            row = "SELECT FROM cmdbus.ready WHERE command_id = %s FOR UPDATE"
            stranger.execute(row, (command.command_id,))
        # The last one of a claim has none behind it.
        if command.data == "runs" and not started and shown(ClaimState.CLAIMED):
            started.append(command.command_id)
            gate(command, context)

    def shown(state: ClaimState) -> set[Any]:
        return {(k.id, k.token) for k in seat_of(worker).claims if k.state is state}

    def agrees() -> bool:
        claimed = f"claimer IS NOT NULL AND priority = 5 AND command_id <> '{started[0]}'"
        return (
            shown(ClaimState.FINISHED) == claims(dsn, "priority = 3")
            and shown(ClaimState.STARTED) == claims(dsn, f"command_id = '{started[0]}'")
            and shown(ClaimState.CLAIMED) == claims(dsn, claimed)
        )

    with psycopg.connect(dsn) as stranger, running(dsn, handling(debit), concurrency=1) as worker:
        bus.send_many([SendRequest("payments", "Debit")] * 500)
        eventually(lambda: bus.snapshot("payments")["depth"] == 0)
        held = [SendRequest("payments", "Debit", "held", priority=3)]
        busy = [SendRequest("payments", "Debit", priority=2)] * 200
        bus.send_many([*busy, *held, *[SendRequest("payments", "Debit", "runs")] * 300])
        gate.wait_for(1)
        eventually(lambda: agrees() and shown(ClaimState.CLAIMED))
        [running_one] = [s.command for s in seat_of(worker).slots if s.phase is Phase.RUNNING]
        assert running_one is not None
        assert {(running_one.id, running_one.token)} == shown(ClaimState.STARTED)
        monkeypatch.setattr(local_queue, "_STARTED_WITHIN", 0.0)
        eventually(lambda: agrees() and not shown(ClaimState.CLAIMED))
        stranger.rollback()
        gate.open.set()
        eventually(lambda: not claims(dsn, "true") and seat_of(worker).claims == ())
        assert seat_of(worker).complete


def test_nothing_is_claimed_before_the_process_is_ready(dsn: str, bus: CommandBus) -> None:
    """Before, its exit codes mean that it could not start, and would end a fleet."""
    workers, was_ready = list[Worker](), list[bool]()

    def debit(command: Command, context: Context) -> None:
        was_ready.append(workers[0]._telemetry.seat._process.ready is not None)

    for _ in range(5):
        sent = bus.send("payments", "Debit")
        workers[:] = [Worker(dsn, handling(debit), concurrency=20)]
        with beside(workers[0].run):
            assert bus.wait("payments", sent).status == "COMPLETED"
            workers[0].stop()
    assert was_ready == [True] * 5


def test_no_key_is_left_however_a_command_ends(dsn: str, bus: CommandBus) -> None:
    """Done, failed, again, lost, stuck, given up by a person, in its transaction."""
    gate = Gate()

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

    registry = handling(debit, retry=RetryPolicy(max_attempts=2, backoff=(0.01,)))
    registry.register("payments", "Hang", gate, timeout=0.2, retry=ONCE)
    timeouts = Timeouts(statement=0.4, pool=0.5, lease=0.5, thread=1, watchdog=2)
    with running(dsn, registry, concurrency=4, timeouts=timeouts) as worker:
        requests = [SendRequest("payments", "Debit", number) for number in range(1, 601)]
        bus.send_many([*requests, *[SendRequest("payments", "Hang")] * 2])
        await_drained(bus, 20)
        eventually(lambda: seat_of(worker).claims == ())
        assert seat_of(worker).complete
        assert worker.metrics()["cmdbus_lost_leases_total"] != 0
        gate.open.set()
    assert seat_of(worker).claims == ()


def test_a_slot_shows_its_session_and_the_one_that_comes_after_it(
    dsn: str, bus: CommandBus
) -> None:
    """By pid and start, a session is ended and no later one of its pid."""
    sessions = f"SELECT pid, (extract(epoch FROM backend_start) * 1000000)::bigint {SESSIONS}"
    # Of several threads, one that has nothing to do keeps a session that was ended.
    with running(dsn, handling(), concurrency=1) as worker:
        for _ in range(2):
            bus.wait("payments", bus.send("payments", "Debit"))

            def shows() -> bool:
                slots = seat_of(worker).slots
                shown = {
                    (slot.backend_pid, slot.backend_start) for slot in slots if slot.backend_pid
                }
                return shown != set() and shown <= set(rows(dsn, sessions))

            eventually(shows)
            end_sessions(dsn)


def test_an_extended_deadline_is_shown(dsn: str, bus: CommandBus) -> None:
    gate = Gate(lambda command, context: context.extend(500))
    with running(dsn, handling(gate, timeout=30)) as worker:
        bus.send("payments", "Debit")
        gate.wait_for(1)
        [slot] = [slot for slot in seat_of(worker).slots if slot.phase is Phase.RUNNING]
        assert slot.due is not None and slot.since is not None
        assert slot.due - slot.since > 400e9
        gate.open.set()
