"""The families of metrics: their names, types and descriptions. Pure.

The page of metrics and the collector for prometheus_client have the same ones.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

#: A suffix of the family's name, the labels, and the value.
Sample = tuple[str, Mapping[str, str], float]


class Family(NamedTuple):
    name: str
    type: Literal["counter", "gauge", "histogram"]
    description: str
    #: Its samples are read from the database; those of others from a board.
    of_database: bool = False


def _counter(name: str, description: str) -> Family:
    return Family(f"cmdbus_{name}_total", "counter", description)


def _histogram(name: str, description: str) -> Family:
    return Family(f"cmdbus_{name}", "histogram", description)


def _gauge(name: str, description: str) -> Family:
    return Family(f"cmdbus_{name}", "gauge", description)


def _database_counter(name: str, description: str) -> Family:
    return Family(f"cmdbus_{name}_total", "counter", description, of_database=True)


def _database_gauge(name: str, description: str) -> Family:
    return Family(f"cmdbus_{name}", "gauge", description, of_database=True)


#: In the order in which they are shown.
FAMILIES = (
    _counter("commands", "Executions of commands that have ended, by outcome."),
    _counter("batches_processed", "Claims that found commands."),
    _counter("empty_receives", "Claims that found no commands."),
    _counter("notification_wakeups", "Notifications received from the database."),
    _counter("claim_failures", "Claims that ended with an error."),
    _counter("lost_leases", "Executions whose lease was lost before they ended."),
    _counter("wakeups", "Wake-ups of a waiting leader, by source."),
    _histogram(
        "dequeue_latency_seconds", "Seconds from when a command could be claimed until it was."
    ),
    _histogram("handler_duration_seconds", "Seconds that handlers took, for all outcomes."),
    _database_gauge(
        "database_up", "1 if the database answered when its rows were last counted, else 0."
    ),
    _database_gauge(
        "queue_depth", "Commands in the database, by state; no samples while it is away."
    ),
    _database_gauge(
        "queue_oldest_seconds",
        "Seconds for which the oldest command that is ready or limited has waited, or 0; no "
        "samples while the database is away.",
    ),
    _database_gauge(
        "unreachable_commands",
        "Commands that wait and that no living node claims because of tags or priority; no samples "
        "while the database is away.",
    ),
    _database_gauge(
        "batches", "Batches that are kept, by status; no samples while the database is away."
    ),
    _gauge("slots", "Threads that run commands, by phase."),
    _gauge("threads", "Threads that a worker is to have now."),
    _gauge(
        "threads_bound", "The least and the most of these threads; equal where the number is fixed."
    ),
    _gauge(
        "threads_reason",
        "1 for the reason of the latest change of the number, where it is not fixed, else 0.",
    ),
    _counter("process_restarts", "Processes that replaced another one, by reason."),
    _gauge(
        "health",
        "Health of a worker process: 0 healthy, 1 degraded, 2 critical, 3 its database is away, "
        "4 no process is ready.",
    ),
    _gauge("process_rss_bytes", "Resident memory of a worker process, measured once a second."),
    _gauge("undead_processes", "Processes that survived SIGKILL; others have replaced them."),
    _database_gauge(
        "oldest_snapshot_seconds",
        "Age of the oldest transaction that keeps the database from removing dead rows; no "
        "sample while it is away.",
    ),
    _database_gauge(
        "managed_processes",
        "Processes of managers that are not over, by status; no samples while the database is "
        "away.",
    ),
    _database_gauge(
        "breaker_state",
        "State of a circuit breaker: 0 closed, 1 half-open, 2 open; no samples while the database "
        "is away.",
    ),
    _counter(
        "breaker_denied",
        "Claimed commands that went back, and calls in blocks that were not made, because of an "
        "open breaker; without commands that wait in their queue.",
    ),
    _database_counter(
        "bridge_moved",
        "Messages that a bridge has moved into commands, or commands into messages, since it was "
        "added; no samples while the database is away.",
    ),
    _database_counter(
        "bridge_refused",
        "Those that a bridge has moved to the troubleshooting queue instead; no samples while the "
        "database is away.",
    ),
    _database_gauge(
        "bridge_failing",
        "1 for a bridge that something keeps from moving, else 0; no samples while the database is "
        "away.",
    ),
    _database_gauge(
        "nodes",
        "Supervisors and standalone workers of the last day, by state; no samples while the "
        "database is away.",
    ),
)
