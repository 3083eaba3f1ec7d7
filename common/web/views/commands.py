"""The view `commands`: a page of those that meet the conditions, the last sent first; and, as
`commands/names`, the domains and types that there are."""

from typing import Any

from cmdbus.producer.bus import CommandBus
from cmdbus.producer.found_commands import FoundCommand, SearchStop
from cmdbus.producer.records import Status
from cmdbus.web.query import NotFound, Query

_PAGE, _MAX_PAGE = 100, 1000
_MAX_MESSAGE = 300
#: That a search reads: a tenth of a second on an idle server.
_MAX_ROWS = 50_000
_FIELDS = (
    *("domain", "command_id", "type", "status", "priority", "attempts", "max_attempts"),
    *("error_code", "created_at", "due_at", "started_at", "finished_at", "worker", "key"),
    *("batch_id", "correlation_id"),
)


def read(bus: CommandBus, query: Query) -> object:
    if query.parts == ("names",):
        query.check()
        return {"domains": bus.known_types()}
    if query.parts:
        raise NotFound("commands are found by conditions; one has a view of its own")
    conditions: dict[str, Any] = {
        **{name: query.text(name) for name in ("domain", "type", "error_code", "key", "text")},
        "status": query.choice("status", *Status),
        "batch_id": query.uuid("batch"),
        "correlation_id": query.uuid("correlation"),
        "command_id": query.uuid("id"),
        "since": query.time("since"),
        "until": query.time("until"),
        "limit": query.whole("limit", _PAGE, 1, _MAX_PAGE),
        "after": query.text("after", most=4000),
    }
    query.check()
    page = bus.search(**conditions, max_rows=_MAX_ROWS)
    return {
        "commands": [*map(_command, page.commands)],
        "next": page.next,
        "stopped": page.stopped and _stop(page.stopped),
        "restricted": page.restricted,
    }


def _command(command: FoundCommand) -> dict[str, Any]:
    message, started, finished = command.error_message, command.started_at, command.finished_at
    return {
        **{name: getattr(command, name) for name in _FIELDS},
        "error_message": message and message[:_MAX_MESSAGE],
        "waited": started and (started - max(command.created_at, _due(command))).total_seconds(),
        "ran": (finished - started).total_seconds() if started and finished else None,
    }


def _due(command: FoundCommand) -> Any:
    """When it was due for its latest start: a retry's time comes after that of the start."""
    started = command.started_at
    return command.due_at if started and command.due_at <= started else command.created_at


def _stop(stop: SearchStop) -> dict[str, Any]:
    """Rounded: a page that is live is sent again only where more than that has changed."""
    read = max(round(stop.rows, -3), 1000)
    at = stop.reached and stop.reached.replace(microsecond=0)
    return {
        "at": at,
        "read": read,
        "sentence": f"The search has stopped after about {read:,} commands; it can go on.",
    }
