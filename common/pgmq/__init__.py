"""Queues of PGMQ: a client for programs that have them beside the bus.

Calls the functions of the extension, in the caller's transaction if there is one. Knows nothing of
the bus's schema, which need not be in the database. Start reading at client.py.
"""

from cmdbus.errors import OutcomeUnknownError, QueueNotFoundError
from cmdbus.pgmq.client import PgmqClient
from cmdbus.pgmq.values import Message, Queue, QueueMetrics

__all__ = [
    "Message",
    "OutcomeUnknownError",
    "PgmqClient",
    "Queue",
    "QueueMetrics",
    "QueueNotFoundError",
]
