"""Checks of what a fleet leaves to others: types that need tags that it does not have, and
priorities that it does not claim."""

import json
from collections.abc import Iterator

from cmdbus.database.statements import statement
from cmdbus.readiness import TAGS, Check, Finding
from cmdbus.registry import HandlerRegistry
from cmdbus.selection import ALL_PRIORITIES, needs, priorities_text, range_of, types_text
from cmdbus.settings import Settings
from cmdbus.worker.claims.claim import Connection


def report_lacking_tags(settings: Settings, registry: HandlerRegistry) -> Iterator[Check]:
    """Without a database: whether a type is left to run, and which are not."""
    try:
        registry.selected(settings.domains, settings.tags)
    except ValueError as error:
        yield Check("app", Finding.FATAL, f"{settings.app}: {error}")
        return
    needed = registry.lacking(settings.domains, ())
    lacking = registry.lacking(settings.domains, settings.tags)
    if lacking:
        yield Check(TAGS, Finding.OK, f"this fleet does not run all types: {needs(lacking)}")
    elif needed:
        yield Check(TAGS, Finding.OK, f"this fleet runs all types: {needs(needed)}")


def check_others(
    connection: Connection, settings: Settings, registry: HandlerRegistry
) -> Iterator[Check]:
    """Whether living nodes run what this fleet does not."""
    lacking = registry.lacking(settings.domains, settings.tags)
    if lacking:
        tags = {name: needed for name, needed in registry.tags().items() if name in lacking}
        values = {"tags": json.dumps(tags)}
        rows = connection.execute(statement("find_missing_tags", settings.schema), values)
        if missing := {name: tags[name] for (name,) in rows.fetchall()}:
            sentence = (
                f"no living node has the tags of {types_text(list(missing))}: {needs(missing)}"
            )
            yield Check(TAGS, Finding.WARNING, sentence, "start a fleet that has them, with --tag")
    if settings.priorities != ALL_PRIORITIES:
        yield from _check_priorities(connection, settings, registry)


def _check_priorities(
    connection: Connection, settings: Settings, registry: HandlerRegistry
) -> Iterator[Check]:
    types = [handler.name for handler in registry.selected(settings.domains, settings.tags)]
    values = {"types": types, "priorities": list(settings.priorities)}
    rows = connection.execute(statement("find_unclaimed", settings.schema), values).fetchall()
    if rows:
        unclaimed = sorted({priority for _, priorities in rows for priority in priorities})
        sentence = (
            f"this fleet claims {range_of(settings.priorities)}, and no living node claims "
            f"{priorities_text(unclaimed)} of {types_text([name for name, _ in rows])}"
        )
        yield Check("priority", Finding.WARNING, sentence, "start a fleet that does")
