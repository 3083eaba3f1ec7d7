"""Declares the limits, breakers and schedules of an app, and the tags of its types, in the
database."""

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from cmdbus.breakers import BreakerDeclaration
from cmdbus.database.executor import Executor
from cmdbus.declarations import Declarations
from cmdbus.limits import Declaration, title
from cmdbus.readiness import BREAKERS, LIMITS, SCHEDULES
from cmdbus.registry import HandlerRegistry
from cmdbus.worker.claims.claim import Connection

logger = logging.getLogger(__name__)

#: Declarations from a name and columns, by the name of the check that shows them.
_OF: dict[str, Callable[[str, Mapping[str, Any]], Declaration | BreakerDeclaration]] = {
    LIMITS: Declaration.of,
    BREAKERS: BreakerDeclaration.of,
}


def app_of_worker(name: str | None, registry: HandlerRegistry) -> str:
    """The app as which a standalone worker declares: the same after a restart."""
    return f"worker:{name or ','.join(registry.domains)}"


def declare(
    connection: Connection, executor: Executor, app: str, declarations: Declarations
) -> list[tuple[str, str]]:
    """Makes these all that the app declares, in one transaction. A sentence, with the name of its
    check, for each limit or breaker that a living node has declared otherwise, and for each
    schedule that another app does."""
    rows = executor.rows(
        connection,
        "declare",
        app=app,
        limits=json.dumps([each.row for each in declarations.limits]),
        breakers=json.dumps([each.row for each in declarations.breakers]),
        schedules=json.dumps([each.row for each in declarations.schedules]),
        tags=json.dumps(declarations.tags),
    )
    changes = [(kind, _change(kind, name, *row)) for kind, name, *row in rows if name is not None]
    conflicts = _conflicts(connection, executor, app) if declarations.schedules else []
    return changes + [(SCHEDULES, sentence) for sentence in conflicts]


def declare_and_warn(
    connection: Connection, executor: Executor, app: str, registry: HandlerRegistry
) -> None:
    for _, sentence in declare(connection, executor, app, registry.declarations()):
        logger.warning("%s", sentence)


def _conflicts(connection: Connection, executor: Executor, app: str) -> list[str]:
    """A sentence for each schedule of the app that another one declares otherwise."""
    rows = executor.rows(connection, "read_schedule_conflicts", app=app)
    return [
        f"the schedule {name} is also declared by {other}, in another way: the latest declaration "
        f"holds, so give each app's a name of its own"
        for name, other in rows
    ]


def _change(
    kind: str, name: str, before: Mapping[str, Any], after: Mapping[str, Any] | None
) -> str:
    new = "not declared" if after is None else _OF[kind](name, after).what
    return (
        f"the {kind.removesuffix('s')} {title(name)}, which a node that is running has declared, "
        f"is now: {new}; it was: {_OF[kind](name, before).what}"
    )
