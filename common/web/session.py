"""What the page is told first: for whom it is, and what can be done here."""

from importlib.metadata import version
from typing import Any

from cmdbus.errors import DatabaseUnavailableError
from cmdbus.printable import joined
from cmdbus.producer.bus import CommandBus

OPERATOR, VIEWER = "operator", "viewer"
ROLES = (OPERATOR, VIEWER)


def session(bus: CommandBus, role: str, *, operator: str | None, threaded: bool) -> dict[str, Any]:
    """Without the database it says that, and the page starts all the same."""
    value: dict[str, Any] = {
        "user": None,
        "operator": operator,
        "role": role,
        "acts": role == OPERATOR,
        "reads_data": True,
        "csrf": "",
        "version": version("cmdbus"),
        "schema": None,
        "database": None,
        "live": "events" if threaded else "poll",
    }
    try:
        rights = bus.rights()
    except DatabaseUnavailableError as error:
        return {**value, "away": joined(str(error))}
    return {
        **value,
        "acts": role == OPERATOR and rights.operates,
        "reads_data": rights.reads_data,
        "schema": rights.schema,
        "database": rights.database,
    }
