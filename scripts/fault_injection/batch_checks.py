"""The invariants of batches. Pure."""

from collections import Counter
from collections.abc import Iterator

from fault_injection.grouping import named
from fault_injection.history import History

_ENDED = {"COMPLETED": "completed", "FAILED": "failed", "CANCELED": "canceled"}
_OPEN = ("PENDING", "IN_PROGRESS")


def batches_count_their_commands(history: History) -> Iterator[str]:
    for batch in history.batches:
        for status, counter in _ENDED.items():
            count, rows = getattr(batch, counter), batch.rows.get(status, 0)
            if count != rows:
                yield f"batch {batch.name} counts {count} as {counter}, and {rows} are"
        if sum(batch.rows.values()) != batch.total:
            yield f"batch {batch.name} counts {batch.total} commands, and has {batch.rows}"


def batches_end_once(history: History) -> Iterator[str]:
    """With the last of their commands, and send one command then: that for their end."""
    for batch in history.batches:
        is_over = batch.status not in _OPEN
        ended = batch.completed + batch.failed + batch.canceled
        if is_over != (ended == batch.total):
            yield f"batch {batch.name} is {batch.status} after {ended} of {batch.total} commands"
        sent = batch.on_complete, batch.on_cancel
        is_canceled = batch.status == "CANCELED"
        if sent != (int(is_over and not is_canceled), int(is_canceled)):
            yield f"batch {batch.name} is {batch.status} and has sent {sent} commands"


def batches_end_as_their_commands(history: History) -> Iterator[str]:
    """Or CANCELED, if that was asked for in time."""
    asked = {i: call for call in history.calls if call.way == "cancel-batch" for i in call.ids}
    created = {call.name for call in history.calls if call.way == "batch"}
    for batch in history.batches:
        call = asked.get(batch.batch_id)
        if batch.status == "CANCELED":
            if call is None and batch.name in created:
                yield f"batch {batch.name} is canceled, and no cancel was sent"
        elif batch.status not in _OPEN:
            if call is not None and call.outcome == "ok":
                yield f"batch {batch.name} was canceled, and is {batch.status}"
            failures = batch.failed + batch.canceled
            if (batch.status == "COMPLETED") != (failures == 0):
                yield f"batch {batch.name} is {batch.status} with {failures} failures"


def commands_are_added_with_the_end_of_the_handler(history: History) -> Iterator[str]:
    """All that it adds if it is completed, and else nothing."""
    added = Counter((row.added_by, row.batch) for row in history.rows if row.added_by is not None)
    for row in history.rows:
        wanted = row.adds if row.status == "COMPLETED" else 0
        if (found := added.pop((row.command_id, row.batch), 0)) != wanted:
            yield f"{named(row)} is {row.status}, and has added {found} of {row.adds} commands"
    for id_, batch in added:
        yield f"command {id_} is not in batch {batch}, and has added to it"
