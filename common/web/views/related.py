"""The view `related`: everything of the correlation id of a command, as a tree. Its path is
DOMAIN/ID."""

from collections.abc import Iterable
from itertools import islice
from typing import Any
from uuid import UUID

from cmdbus.checks import check_name
from cmdbus.errors import CommandNotFoundError
from cmdbus.producer.bus import CommandBus
from cmdbus.producer.found_commands import FoundCommand
from cmdbus.producer.records import BatchRecord
from cmdbus.web.query import Query
from cmdbus.web.views.command_tree import REPLY, tree

#: Of one correlation id.
_COMMANDS, _REPLIES, _BATCHES = 200, 20, 10
_SECONDS = 0.5


def read(bus: CommandBus, query: Query) -> object:
    domain = check_name("domain", query.part(0, "the domain"))
    command_id = query.uuid_part(1, "the id")
    found = bus.search(domain, command_id=command_id)
    if not found.commands:
        raise CommandNotFoundError(domain, command_id)
    own = found.commands[0]
    page = bus.search(correlation_id=own.correlation_id, limit=_COMMANDS, max_seconds=_SECONDS)
    commands = {(each.domain, each.command_id): each for each in (*page.commands, own)}
    process = bus.get_process(own.correlation_id) if not found.restricted else None
    steps = bus.process_steps(process.process_id) if process else []
    awaited = [step.command_id for step in steps]
    batches = [] if found.restricted else _batches(bus, commands.values(), awaited)
    answers = {} if found.restricted else _answers(bus, commands.values())
    return {
        "correlation_id": own.correlation_id,
        "tree": tree(
            own.correlation_id,
            commands.values(),
            process=process,
            steps=steps,
            batches=batches,
            answers=answers,
        ),
        "count": len(commands),
        #: There may be others: the search for them was ended.
        "cut": page.next is not None,
        "restricted": found.restricted,
    }


def _batches(
    bus: CommandBus, commands: Iterable[FoundCommand], awaited: Iterable[UUID]
) -> list[BatchRecord]:
    ids = dict.fromkeys(each.batch_id for each in commands if each.batch_id is not None)
    known = (bus.get_batch(id_) for id_ in islice(ids, _BATCHES))
    return [batch for batch in known if batch is not None]


def _answers(bus: CommandBus, commands: Iterable[FoundCommand]) -> dict[UUID, Any]:
    """The commands that replies answer, as their data says."""
    answers = {}
    for each in islice((each for each in commands if each.type == REPLY), _REPLIES):
        record = bus.get(each.domain, each.command_id)
        if record is not None and isinstance(record.data, dict):
            answers[each.command_id] = record.data.get("command_id")
    return answers
