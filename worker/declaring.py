"""Declares the limits and schedules of an app, and the tags of its types, in the database."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from cmdbus.database.executor import Executor
from cmdbus.limits import Declaration, title
from cmdbus.registry import HandlerRegistry
from cmdbus.schedules import Schedule
from cmdbus.worker.claims.claim import Connection

logger = logging.getLogger(__name__)


def app_of_worker(name: str | None, registry: HandlerRegistry) -> str:
    """The app as which a standalone worker declares limits: the same after a restart."""
    return f"worker:{name or ','.join(registry.domains)}"


def declare(
    connection: Connection,
    executor: Executor,
    app: str,
    limits: Sequence[Declaration],
    schedules: Sequence[Schedule] = (),
    tags: Mapping[str, Sequence[str]] | None = None,
) -> list[str]:
    """Makes these all that the app declares, in one transaction; `tags` are those of its types, by
    "domain type". A sentence for each limit that a living node has declared otherwise."""
    values = [json.dumps([each.row for each in declared]) for declared in (limits, schedules)]
    with connection.transaction():
        rows = executor.rows(connection, "declare_limits", app=app, limits=values[0])
        executor.rows(connection, "declare_schedules", app=app, schedules=values[1])
        executor.rows(connection, "declare_tags", app=app, tags=json.dumps(tags or {}))
    return [_change(*row) for row in rows]


def conflicts(
    connection: Connection, executor: Executor, app: str, schedules: Sequence[Schedule]
) -> list[str]:
    """A sentence for each of these schedules that another app declares otherwise."""
    if not schedules:
        return []
    rows = executor.rows(connection, "read_schedule_conflicts", app=app)
    return [
        f"the schedule {name} is also declared by {other}, in another way: the latest declaration "
        f"holds, so give each app's a name of its own"
        for name, other in rows
    ]


def declare_and_warn(
    connection: Connection, executor: Executor, app: str, registry: HandlerRegistry
) -> None:
    schedules = registry.schedules()
    sentences = declare(connection, executor, app, registry.limits(), schedules, registry.tags())
    sentences += conflicts(connection, executor, app, schedules)
    for sentence in sentences:
        logger.warning("%s", sentence)


def _change(name: str, before: Mapping[str, Any], after: Mapping[str, Any] | None) -> str:
    new = "not declared" if after is None else Declaration.of(name, after).what
    return (
        f"the limit {title(name)}, which a node that is running has declared, is now {new}; "
        f"it was {Declaration.of(name, before).what}"
    )
