"""Declares the limits of an app in the database."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from cmdbus.database.executor import Executor
from cmdbus.limits import Declaration, title
from cmdbus.registry import HandlerRegistry
from cmdbus.worker.claims.claim import Connection

logger = logging.getLogger(__name__)


def app_of_worker(name: str | None, registry: HandlerRegistry) -> str:
    """The app as which a standalone worker declares limits: the same after a restart."""
    return f"worker:{name or ','.join(registry.domains)}"


def declare(
    connection: Connection, executor: Executor, app: str, limits: Sequence[Declaration]
) -> list[str]:
    """Makes these the limits that the app declares, in one transaction. A sentence for each one
    that a living node has declared otherwise."""
    text = json.dumps([each.row for each in limits])
    rows = executor.rows(connection, "declare_limits", app=app, limits=text)
    return [_change(*row) for row in rows]


def declare_and_warn(
    connection: Connection, executor: Executor, app: str, registry: HandlerRegistry
) -> None:
    for sentence in declare(connection, executor, app, registry.limits()):
        logger.warning("%s", sentence)


def _change(name: str, before: Mapping[str, Any], after: Mapping[str, Any] | None) -> str:
    new = "not declared" if after is None else Declaration.of(name, after).what
    return (
        f"the limit {title(name)}, which a node that is running has declared, is now {new}; "
        f"it was {Declaration.of(name, before).what}"
    )
