"""What the page shows: one module a view, each with `read(bus, query)`."""

from cmdbus.web.view import View
from cmdbus.web.views import (
    batch,
    batches,
    breakers,
    bridges,
    command,
    commands,
    domain,
    fleet,
    history,
    limits,
    overview,
    payload,
    process,
    processes,
    related,
    schedules,
    troubleshooting,
)

VIEWS: dict[str, View] = {
    "batch": batch.read,
    "batches": batches.read,
    "breakers": breakers.read,
    "bridges": bridges.read,
    "command": command.read,
    "commands": commands.read,
    "domain": domain.read,
    "fleet": fleet.read,
    "history": history.read,
    "limits": limits.read,
    "overview": overview.read,
    "payload": payload.read,
    "process": process.read,
    "processes": processes.read,
    "related": related.read,
    "schedules": schedules.read,
    "troubleshooting": troubleshooting.read,
}
