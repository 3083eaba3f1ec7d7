"""A worker whose domain is paused: what it has claimed ahead of its threads does not start."""

import threading

from eventually import eventually
from handlers import Gate, await_drained, handling, running

from cmdbus import Command, CommandBus, Context, SendRequest


def test_nothing_starts_that_was_claimed_ahead_before_a_pause(dsn: str, bus: CommandBus) -> None:
    """Its type was quick, and has just become slow: both threads are busy, so that no step finds
    out. What is not paused goes on."""
    gate = Gate()
    ran = threading.Semaphore(0)

    def debit(command: Command, context: Context) -> None:
        if command.data == "slow":
            gate(command, context)

    registry = handling(debit)
    registry.register("orders", "Ship", lambda command, context: ran.release())
    with running(dsn, registry, concurrency=2) as worker:
        ids = bus.send_many([SendRequest("payments", "Debit")] * 300)
        bus.wait("payments", ids[-1])
        eventually(lambda: bus.snapshot("payments")["depth"] == 0)
        bus.send_many([SendRequest("payments", "Debit")] * 300 + slow(100))
        gate.wait_for(2)
        board = worker._telemetry.board
        heard = board.domain_pauses
        bus.pause("payments")
        eventually(lambda: board.domain_pauses > heard)
        gate.open.set()
        bus.send("orders", "Ship")
        assert ran.acquire(timeout=10)
        eventually(lambda: bus.snapshot("payments")["in_progress"] == 0)
        assert gate.entered.acquire(blocking=False) is False, "only the two that ran before"
        assert bus.snapshot("payments")["depth"] == 98
        bus.resume("payments")
        await_drained(bus)
        losses = {record.attempts for record in bus.query("payments", limit=1000)}
        assert losses == {1}


def slow(count: int) -> list[SendRequest]:
    return [SendRequest("payments", "Debit", "slow")] * count
