"""Counts, for a process that has died, how what it ran has ended.

A worker counts an execution once its settlement is known to be committed, and then frees its
key. Whatever kills it in between leaves a key: of an execution that was settled and not
counted, or counted and still shown, or not settled at all. The keys tell what to ask about,
the database how it ended, and what each thread has counted last tells which are counted.
"""

from collections.abc import Iterable
from dataclasses import replace

from cmdbus.board.board import Board
from cmdbus.board.claim_table import KeyState, hash_of
from cmdbus.board.counters import End, mark
from cmdbus.board.views import KeyView, SeatView
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claims import Claims


def reckon(
    connection: Connection,
    claims: Claims,
    board: Board,
    dead: SeatView,
    domains: Iterable[str] = (),
) -> None:
    """After the claims of the dead were released. If this process is killed in the middle, the
    next one goes on from there. `domains` are those of the app: a seat shows no more than 64."""
    seat = board.seat(dead.place)
    counted = board.last_counted(dead.place)
    # These first: what is counted here writes over what its threads have counted last.
    for key in dead.keys:
        if _mark(key) in counted:
            seat.free(key.place)
    left = _with_domains([key for key in dead.keys if _mark(key) not in counted], domains)
    ends = claims.of(dead.incarnation or 0).ends(connection, left) if left else []
    counters = seat.slot(0).counters
    for key, said in zip(left, ends, strict=True):
        # The lease of what had not begun may have ended, too.
        end = _unsaid(key) if said in (None, End.LOST) else said
        if end is not None:
            counters.ended(key.kind, end, _mark(key))
        seat.free(key.place)


def _with_domains(keys: list[KeyView], domains: Iterable[str]) -> list[KeyView]:
    """Without the keys of domains that neither their seat nor the app names any longer: their
    ends cannot be found."""
    if all(key.domain for key in keys):
        return keys
    named = {hash_of(domain): domain for domain in domains}
    known = [replace(key, domain=key.domain or named.get(key.domain_hash)) for key in keys]
    return [key for key in known if key.domain]


def _unsaid(key: KeyView) -> End | None:
    """What had begun and was not settled, runs again."""
    return None if key.state is KeyState.CLAIMED else End.LOST


def _mark(key: KeyView) -> int:
    return mark(key.id, key.token)
