"""The invariant of tags and priorities. Pure."""

from collections.abc import Iterator

from fault_injection.grouping import is_reserved, named, pid_of
from fault_injection.history import History
from fault_injection.selecting import SELECTED
from fault_injection.time_checks import instances_of


def only_selected_instances_claim(history: History) -> Iterator[str]:
    rows = {row.command_id: row for row in history.rows if is_reserved(row)}
    instances = instances_of(history)
    for move in history.moves:
        row = rows.get(move.command_id)
        if row is None or move.what != "claim":
            continue
        claimer = instances.get(pid_of(history.workers.get(move.claimer or 0, "")))
        if claimer is not None and claimer != SELECTED:
            yield f"{named(row)} of priority {row.priority} was claimed by {claimer}"
