"""The bridges of a run, with a queue on each side, and what runs the commands between them."""

from collections.abc import Callable

import psycopg
from lab.pgmq_schema import has_pgmq, install_pgmq

from cmdbus import CommandBus, HandlerRegistry, RetryPolicy

BRIDGED, BRIDGED_TYPE, BRIDGED_REPLIES = "bridged", "Bridged", "bridged.replies"
#: Queues of PGMQ: what producers write, and what they read.
QUEUE_IN, QUEUE_OUT = "chaos_in", "chaos_out"
#: The way of calls that write messages.
MESSAGES = "pgmq"
#: What the data of a message says that its command does, where it cannot become one that runs.
REFUSED = "Refused"
#: Small, so that a move is often a part of what waits.
_BATCH_SIZE = 7


#: What waits in the queue for the bridge, as a term of a sum.
_WAITING = f" + (SELECT count(*) FROM pgmq.q_{QUEUE_IN})"
#: As an application's own trigger refuses a row.
_REFUSES = f"""
CREATE FUNCTION chaos.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the application takes no such command' USING ERRCODE = 'check_violation';
END
$$;
CREATE TRIGGER chaos_refuse BEFORE INSERT ON cmdbus.ready FOR EACH ROW
    WHEN (NEW.domain = '{BRIDGED}' AND NEW.data ->> 'does' = '{REFUSED}')
    EXECUTE FUNCTION chaos.refuse();
"""


#: Without its package there is no SQL of PGMQ, and no bridge in a run.
HAS_PGMQ = has_pgmq()
QUEUED = _WAITING if HAS_PGMQ else ""


def register_bridged(
    registry: HandlerRegistry, retry: RetryPolicy, function: Callable[..., object]
) -> None:
    registry.register(BRIDGED, BRIDGED_TYPE, function, retry=retry)


def add_bridges(connection: psycopg.Connection, dsn: str) -> None:
    install_pgmq(connection)
    connection.execute(_REFUSES.encode())
    for queue in (QUEUE_IN, QUEUE_OUT):
        connection.execute("SELECT pgmq.create(%s)", (queue,))
    with CommandBus(dsn) as bus:
        bus.bridges.add(
            QUEUE_IN,
            BRIDGED,
            BRIDGED_TYPE,
            direction="in",
            reply_to=BRIDGED_REPLIES,
            batch_size=_BATCH_SIZE,
        )
        bus.bridges.add(QUEUE_OUT, BRIDGED_REPLIES, direction="out", batch_size=_BATCH_SIZE)
