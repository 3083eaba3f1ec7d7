"""The buses of a project: which database and which schema its settings name."""

import os
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

BACKEND = "cmdbus.django.CommandBusBackend"
#: Django's name of PostgreSQL, and of engines that are built on its own, as PostGIS.
VENDOR = "postgresql"
#: The environment variable of a fleet that `manage.py cmdbus` has started: its database's alias.
VARIABLE = "CMDBUS_DJANGO_DATABASE"


@dataclass(frozen=True, slots=True)
class Bus:
    """The alias of a database in the setting DATABASES, and a schema in it."""

    using: str = "default"
    schema: str = "cmdbus"


def backends() -> dict[str, dict[str, Any]]:
    """The entries of the setting TASKS that are cmdbus's, by their aliases."""
    given = getattr(settings, "TASKS", None) or {}
    return {alias: entry for alias, entry in given.items() if _is_of_cmdbus(entry.get("BACKEND"))}


def buses() -> list[Bus]:
    """In the order of the settings; for a project without tasks the one of its default database."""
    options = [entry.get("OPTIONS") or {} for entry in backends().values()]
    found = [
        Bus(each.get("using", Bus().using), each.get("schema", Bus().schema)) for each in options
    ]
    return list(dict.fromkeys(found)) or [Bus()]


def bus_in(using: str | None) -> Bus:
    """The one in this database or, without it, that of the project. An ImproperlyConfigured if the
    settings name several."""
    found = [each for each in buses() if using in (None, each.using)]
    if len(found) > 1:
        databases = list(dict.fromkeys(each.using for each in found))
        raise ImproperlyConfigured(
            f"TASKS has backends with several databases ({', '.join(databases)}): run a fleet for "
            f"each, and say which with --database"
            if len(databases) > 1
            else f"TASKS has backends with several schemas in the database {databases[0]!r} "
            f"({', '.join(each.schema for each in found)}): give each a database's alias of its own"
        )
    return found[0] if found else Bus(using or Bus().using)


def bus_of_process() -> Bus:
    """That of the fleet of this worker process; in all others the first of the project."""
    using = os.environ.get(VARIABLE)
    return bus_in(using) if using else buses()[0]


def _is_of_cmdbus(name: object) -> bool:
    if name == BACKEND:
        return True
    try:
        found = import_string(str(name))
        backend = import_string(BACKEND)
    except ImportError:
        return False
    return isinstance(found, type) and issubclass(found, backend)
