"""A database of the settings, as cmdbus's own sessions connect to it."""

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist
from psycopg.conninfo import make_conninfo

from cmdbus.database import libpq
from cmdbus.django.buses import VENDOR

#: What Django's or psycopg's object for a session takes, and not the session itself.
_OF_OBJECTS = {"context", "cursor_factory", "prepare_threshold", "row_factory", "client_encoding"}
_READ_COMMITTED = 2


def dsn_of(using: str) -> str:
    """With the password. For the database of the test that runs, if one does. An
    ImproperlyConfigured says what of these settings a session cannot have."""
    wrapper = wrapper_of(using)
    options = wrapper.settings_dict["OPTIONS"]
    given = wrapper.get_connection_params()
    parts = {name: str(value) for name, value in given.items() if name not in _OF_OBJECTS}
    if unknown := sorted(parts.keys() - {*libpq.keywords()}):
        raise ImproperlyConfigured(
            f"OPTIONS of the database {using!r} has {unknown[0]!r}, which is no parameter of a "
            f"connection to PostgreSQL: remove it"
        )
    if role := options.get("assume_role"):
        assumed = str(role).replace("\\", "\\\\").replace(" ", "\\ ")
        parts["options"] = f"{parts.get('options', '')} -c role={assumed}".strip()
    return make_conninfo(**parts)


def wrapper_of(using: str) -> Any:
    """Django's connection, which need not be open."""
    try:
        wrapper = connections[using]
    except ConnectionDoesNotExist:
        raise ImproperlyConfigured(
            f"DATABASES has no {using!r}: there are {', '.join(connections)}"
        ) from None
    if wrapper.vendor != VENDOR:
        raise ImproperlyConfigured(
            f"the database {using!r} is of {wrapper.display_name}, and cmdbus needs PostgreSQL: "
            f"name another alias of DATABASES in OPTIONS['using'] of TASKS"
        )
    return wrapper


def check_isolation(using: str) -> None:
    """An ImproperlyConfigured if the project relies on what no handler has."""
    level = wrapper_of(using).settings_dict["OPTIONS"].get("isolation_level")
    if int(level or _READ_COMMITTED) != _READ_COMMITTED:
        raise ImproperlyConfigured(
            f"OPTIONS of the database {using!r} has another isolation_level than READ COMMITTED, "
            f"which handlers run in: name a database without it, by another alias"
        )
