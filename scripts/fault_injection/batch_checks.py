"""The invariants of batches. Pure."""

from collections.abc import Iterator

from fault_injection.history import History

_ENDED = {"COMPLETED": "completed", "FAILED": "failed", "CANCELED": "canceled"}


def batches_count_their_commands(history: History) -> Iterator[str]:
    for batch in history.batches:
        for status, counter in _ENDED.items():
            count, rows = getattr(batch, counter), batch.rows.get(status, 0)
            if count != rows:
                yield f"batch {batch.name} counts {count} as {counter}, and {rows} are"
        if sum(batch.rows.values()) != batch.total:
            yield f"batch {batch.name} counts {batch.total} commands, and has {batch.rows}"


def batches_end_once(history: History) -> Iterator[str]:
    """With the last of their commands, and send one command then."""
    for batch in history.batches:
        is_over = batch.status not in ("PENDING", "IN_PROGRESS")
        ended = batch.completed + batch.failed + batch.canceled
        if is_over and ended != batch.total:
            yield f"batch {batch.name} is {batch.status} after {ended} of {batch.total} commands"
        if batch.sent != int(is_over):
            yield f"batch {batch.name} is {batch.status} and has sent {batch.sent} commands"
