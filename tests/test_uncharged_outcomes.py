"""What charges no attempt is no failure for middleware, as soon as that can be known."""

import psycopg
from eventually import eventually
from handlers import ONCE, handling, running
from middleware import Outcomes
from sentries import sentry

from cmdbus import Command, CommandBus, Context


def test_a_lost_lease_and_an_outdated_plan_are_deferred(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    def read(command: Command, context: Context) -> None:
        context.connection.execute("SELECT * FROM effect", prepare=True)

    def save(command: Command, context: Context) -> None:
        bus.cancel("payments", command.command_id, running=True)
        context.checkpoint(1)

    registry, outcomes = handling(read, retry=ONCE), Outcomes()
    registry.register("payments", "Save", save, retry=ONCE)
    registry.around(outcomes)
    with sentry() as taken, running(dsn, registry, concurrency=1):
        bus.wait("payments", bus.send("payments", "Debit"), 10)
        connection.execute("ALTER TABLE effect ADD more int")
        bus.send("payments", "Debit")
        bus.wait("payments", bus.send("payments", "Save"), 10)
        eventually(lambda: len(outcomes.seen["Debit"]) == 2)
    statuses = {type: [each.status for each in seen] for type, seen in outcomes.seen.items()}
    assert statuses == {"Debit": ["COMPLETED", "DEFERRED"], "Save": ["DEFERRED"]}
    assert taken.events == []
