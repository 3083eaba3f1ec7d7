"""The invariant of commands that go on from their checkpoints. Pure."""

from collections.abc import Iterator

from fault_injection.grouping import completed_by_operators, named
from fault_injection.history import History
from fault_injection.iterating import ITERATE


def rows_of_iterations_are_there_once(history: History) -> Iterator[str]:
    """All of them if the command was completed; else those of the executions that committed, which
    are the first ones."""
    by_others = completed_by_operators(history)
    written = dict(history.iterations)
    for row in history.rows:
        found = sorted(written.pop(row.command_id, ()))
        if found != [*range(len(found))]:
            yield f"{named(row)} has written the rows {found}"
        is_whole = row.type == ITERATE and row.status == "COMPLETED"
        if is_whole and row.command_id not in by_others and len(found) != row.iterates:
            yield f"{named(row)} is completed and has written {len(found)} of {row.iterates} rows"
    for id_ in written:
        yield f"rows of {id_}, which is nowhere"
