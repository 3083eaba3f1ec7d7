"""Counts, for a process that has died, how what it ran has ended.

A worker counts an execution once its settlement is known to be committed, and then frees its
key. Whatever kills it in between leaves a key: of an execution that was settled and not
counted, or counted and still shown, or not settled at all. The keys tell what to ask about,
the database how it ended, and what each thread has counted last tells which are counted.
"""

from cmdbus.board import Board
from cmdbus.counters import End, mark
from cmdbus.keys import KeyState
from cmdbus.views import KeyView, SeatView
from cmdbus.worker.claims import Claims, Connection


def reckon(connection: Connection, claims: Claims, board: Board, dead: SeatView) -> None:
    """After what the dead held was handed back. Whoever is killed in the middle of this is
    followed by another one, who goes on where it stopped."""
    seat = board.seat(dead.place)
    counted = board.last_counted(dead.place)
    # These first: what is counted here writes over what its threads have counted last.
    for key in dead.keys:
        if _mark(key) in counted:
            seat.free(key.place)
    left = [key for key in dead.keys if key.domain is not None and _mark(key) not in counted]
    ends = claims.of(dead.incarnation or 0).ends(connection, left) if left else []
    counters = seat.slot(0).counters
    for key, said in zip(left, ends, strict=True):
        end = _unsaid(key) if said is None else said  # COMPLETED is 0
        if end is not None:
            counters.ended(key.kind, end, _mark(key))
        seat.free(key.place)


def _unsaid(key: KeyView) -> End | None:
    """What had begun and was not settled, runs again."""
    return None if key.state is KeyState.CLAIMED else End.LOST


def _mark(key: KeyView) -> int:
    return mark(key.id, key.token)
