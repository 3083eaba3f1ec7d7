"""Counts, for a process that has died, how what it ran has ended.

A worker counts an execution once its settlement is known to be committed, and then frees its
key. Whatever kills it in between leaves a key: of an execution that was settled and not
counted, or counted and still shown, or not settled at all. The keys tell what to ask about,
the database how it ended, and what each thread has counted last tells which are counted.
"""

from collections.abc import Iterable
from dataclasses import replace

from cmdbus.board.board import Board
from cmdbus.board.claim_table import hash_of
from cmdbus.board.counters import OutcomeLabel, mark
from cmdbus.board.records import ClaimState
from cmdbus.board.views import ClaimView, SeatView
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claims import Claims


def recover_counters(
    connection: Connection,
    claims: Claims,
    board: Board,
    dead: SeatView,
    domains: Iterable[str] = (),
) -> None:
    """After the claims of the dead were released. If this process is killed in the middle, the
    next one goes on from there. `domains` are those of the app: a seat shows no more than 64."""
    seat = board.seat(dead.index)
    counted = board.last_counted(dead.index)
    # These first: what is counted here writes over what its threads have counted last.
    for key in dead.claims:
        if _mark(key) in counted:
            seat.free(key.index)
    left = _with_domains([key for key in dead.claims if _mark(key) not in counted], domains)
    ends = claims.of(dead.incarnation or 0).ends(connection, left) if left else []
    counters = seat.slot(0).counters
    for key, said in zip(left, ends, strict=True):
        # The lease of what had not begun may have ended, too.
        end = _unsaid(key) if said in (None, OutcomeLabel.LOST) else said
        if end is not None:
            counters.ended(key.command_type, end, _mark(key))
        seat.free(key.index)


def _with_domains(keys: list[ClaimView], domains: Iterable[str]) -> list[ClaimView]:
    """Without the keys of domains that neither their seat nor the app names any longer: their
    ends cannot be found."""
    if all(key.domain for key in keys):
        return keys
    named = {hash_of(domain): domain for domain in domains}
    known = [replace(key, domain=key.domain or named.get(key.domain_hash)) for key in keys]
    return [key for key in known if key.domain]


def _unsaid(key: ClaimView) -> OutcomeLabel | None:
    """What had begun and was not settled, runs again."""
    return None if key.state is ClaimState.CLAIMED else OutcomeLabel.LOST


def _mark(key: ClaimView) -> int:
    return mark(key.id, key.token)
