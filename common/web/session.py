"""What the page asks first: for whom it is, and what can be done here."""

from importlib.metadata import version
from typing import Any

from cmdbus.errors import CmdbusError
from cmdbus.printable import joined
from cmdbus.producer.bus import CommandBus
from cmdbus.web.security.gate import OPERATOR, Entry


def session(
    bus: CommandBus, entry: Entry, *, csrf: str, operator: str | None, threaded: bool
) -> dict[str, Any]:
    """Without the database it says that, and the page starts all the same. `operator`: the name
    that the page proposes where it knows no user."""
    value: dict[str, Any] = {
        "user": entry.visitor.user,
        "operator": entry.visitor.user or operator,
        "role": entry.role,
        "acts": entry.role == OPERATOR,
        "reads_data": True,
        "csrf": csrf,
        "version": version("cmdbus"),
        "schema": None,
        "database": None,
        "live": "events" if threaded else "poll",
    }
    try:
        rights = bus.rights()
    except CmdbusError as error:
        return {**value, "away": joined(str(error))}
    return {
        **value,
        "acts": entry.role == OPERATOR and rights.operates,
        "reads_data": rights.reads_data,
        "schema": rights.schema,
        "database": rights.database,
    }
