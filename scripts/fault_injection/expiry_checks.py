"""The invariants of expiry. Pure."""

from collections.abc import Iterator

from fault_injection.grouping import by_command, entries, named
from fault_injection.history import History
from fault_injection.time_checks import stewards_kept_away

EXPIRED = "EXPIRED"
#: Seconds within which what has expired is canceled.
_CANCELED_S = 3.0


def what_expires_never_begins(history: History) -> Iterator[str]:
    """And what has begun does not expire."""
    begun = {mark.command_id: mark.at for mark in reversed(entries(history.marks))}
    moves = by_command(history.moves)
    for row in history.rows:
        if row.expires_at is None:
            if row.code == EXPIRED:
                yield f"{named(row)} has expired without a time for that"
            continue
        claim = next((move for move in moves[row.command_id] if move.what == "claim"), None)
        if claim is not None and claim.began > row.expires_at:
            late = claim.began - row.expires_at
            yield f"{named(row)} was claimed {late:.3f} s after it had expired"
        end = next((move for move in moves[row.command_id] if move.what == "finished+"), None)
        if row.code != EXPIRED or end is None:
            continue
        # A frozen process may begin it later.
        if begun.get(row.command_id, end.at) < end.at:
            yield f"{named(row)} has expired although it had begun"
        late = end.at - row.expires_at
        if late < 0:
            yield f"{named(row)} was canceled {-late:.3f} s before it expired"
        if late > _CANCELED_S and not stewards_kept_away(history, row.expires_at, end.at):
            yield f"{named(row)} was canceled {late:.1f} s after it had expired"
