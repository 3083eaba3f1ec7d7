"""Rounds of stewards that move over bridges, in the place of whole nodes; and what is in queues."""

from typing import Any

import psycopg
from eventually import eventually
from psycopg.types.json import Jsonb
from queries import rows

from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.steward.bridge_round import BridgeRound
from cmdbus.worker.waiting.bridge_wakes import BridgeWakes
from cmdbus.worker.waiting.timers import Timers


def bridge_round(wakes: BridgeWakes | None = None) -> BridgeRound:
    """A node's, which knows that there are bridges."""
    statements = ClaimStatements("cmdbus", 30)
    timers = Timers(statements, [], [])
    timers.bridges = 1.0
    wakes = wakes or BridgeWakes(lambda _: None)
    return BridgeRound(statements, timers, lambda: 60.0, lambda: None, wakes)


def move_all(each: BridgeRound, connection: psycopg.Connection) -> None:
    """Until nothing is left to move."""
    eventually(lambda: each.run(connection) > 0.05)


def messages(dsn: str, queue: str) -> list[tuple[Any, ...]]:
    """Body and headers of each, in their order."""
    return rows(dsn, f"SELECT message, headers FROM pgmq.q_{queue} ORDER BY msg_id")


def send_messages(connection: psycopg.Connection, queue: str, *bodies: object) -> list[int]:
    """As a producer that knows only PGMQ."""
    query = "SELECT pgmq.send_batch(%s, %s)"
    found = connection.execute(query, (queue, [Jsonb(each) for each in bodies]))
    return [msg_id for (msg_id,) in found]
