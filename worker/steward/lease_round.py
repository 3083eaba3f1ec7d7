"""Renews the leases of all that the node's living processes have claimed."""

from collections.abc import Sequence

from cmdbus.board.board import Board
from cmdbus.board.views import SeatView
from cmdbus.clock import time
from cmdbus.worker.claims.claim import ClaimRef, Connection
from cmdbus.worker.claims.claims import Claims
from cmdbus.worker.claims.renewal import Renewal

#: Seconds until a failed renewal is tried again, as leases go on ending; other rounds run
#: meanwhile.
_RETRY_SECONDS = 3.0


class LeaseRound:
    def __init__(self, claims: Claims, board: Board) -> None:
        self._claims = claims
        self._board = board
        self._renewal = Renewal(claims)
        #: Monotonic time of the next renewal.
        self._due = 0.0

    def run(self, connection: Connection) -> float:
        now = time.monotonic()
        if now < self._due:
            return self._due - now
        renewal_seconds = self._claims.renewal_seconds
        self._due = now + min(renewal_seconds, _RETRY_SECONDS)
        view = self._board.snapshot()
        claims = {
            incarnation: self._claims_of(connection, seat, incarnation)
            for incarnation, seat in view.claimers.items()
        }
        if any(claims.values()) or not view.any_parked:
            self._renewal.renew(connection, claims)
        self._due = now + renewal_seconds
        self._board.renewed = int(now * 1e9)
        return self._due - now

    def _claims_of(
        self, connection: Connection, seat: SeatView, incarnation: int
    ) -> Sequence[ClaimRef]:
        """From the database if there are more than the board can show."""
        return seat.claims if seat.complete else self._claims.keys_of(connection, incarnation)
