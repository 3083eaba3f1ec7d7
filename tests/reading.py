"""What readers of replies find in tests, and leave."""

from uuid import UUID

from claiming import Claimer, ended, want

from cmdbus import CommandBus
from cmdbus.worker.claims.outcomes import completed

SESSIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND application_name ~ '^cmdbus:[0-9a-z]{13}$'"
)


def answer(bus: CommandBus, claimer: Claimer, count: int = 1) -> list[UUID]:
    """Commands that are completed, each with its reply to `orders`."""
    ids = [bus.send("payments", "Debit", reply_to="orders") for _ in range(count)]
    for claim in claimer.settle_and_claim([], want(count)):
        claimer.settle(ended(claim, completed({"n": ids.index(claim.command_id)})))
    return ids


def states(bus: CommandBus) -> list[str]:
    """Of the replies, the first one first."""
    return [record.status for record in reversed(bus.query("orders"))]
