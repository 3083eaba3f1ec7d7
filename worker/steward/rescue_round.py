"""Releases what the dead processes of this node's board have left."""

import logging
from collections.abc import Sequence
from pathlib import Path

from cmdbus.board.board import Node
from cmdbus.board.counters import OutcomeLabel
from cmdbus.board.records import ExitRecord, Role
from cmdbus.board.stack_files import read_stacks
from cmdbus.board.views import SeatView
from cmdbus.registry import HandlerRegistry
from cmdbus.timeouts import RESCUE_SECONDS
from cmdbus.worker.claims.claim import Claim, Connection
from cmdbus.worker.claims.claims import Claims
from cmdbus.worker.claims.outcomes import SUSPECT_LOSSES
from cmdbus.worker.steward.attribution import attribute
from cmdbus.worker.steward.rescue import Rescued, rescue
from cmdbus.worker.steward.stale_boards import KILLED

logger = logging.getLogger(__name__)


class RescueRound:
    def __init__(self, node: Node, claims: Claims, registry: HandlerRegistry, stacks: Path) -> None:
        """`stacks`: where processes write their stacks, in files named by their index."""
        self._board = node.board
        self._worker_pipe = node.worker_pipe
        self._claims = claims
        self._registry = registry
        self._stacks = stacks

    def run(self, connection: Connection) -> float:
        view = self._board.snapshot(claims=False)
        dead = [seat.index for seat in view.seats if seat.role is Role.DEAD and not seat.rescued]
        failures = []
        for index in dead:
            try:
                self._rescue(connection, self._board.seat_view(index))
            except Exception as error:  # It keeps none of the others from being rescued.
                if connection.closed:
                    raise
                failures.append(error)
        if dead or view.suspects:
            values = {"losses": SUSPECT_LOSSES, "types": self._claims.types}
            self._board.suspects = self._claims.value(connection, "find_suspects", **values)
        if failures:
            raise failures[0]
        return float("inf")

    def _rescue(self, connection: Connection, seat: SeatView) -> None:
        rescued = self._release(connection, seat, seat.exit or KILLED)
        if rescued.sessions_ended:
            self._count(seat, rescued.ends)
            self._board.seat(seat.index).rescued = seat.generation
            self._worker_pipe.put()  # The dead process may have taken a byte.

    def release(self, connection: Connection, seat: SeatView, exit_record: ExitRecord) -> bool:
        """Of a seat of any board. False if sessions of the dead process did not end in time: the
        next pass tries again."""
        return self._release(connection, seat, exit_record).sessions_ended

    def _release(self, connection: Connection, seat: SeatView, exit_record: ExitRecord) -> Rescued:
        if seat.incarnation is None:
            return Rescued()  # It has never claimed.
        attribution = attribute(seat, exit_record, read_stacks(self._stacks / str(seat.index)))
        rescued = rescue(
            connection, self._claims, self._registry, attribution, within=RESCUE_SECONDS
        )
        if rescued.sessions_ended:
            where = "the commands of worker %s, pid %s: %s"
            logger.info(where, seat.number, seat.pid, rescued)
        return rescued

    def _count(self, dead: SeatView, ends: Sequence[tuple[Claim, OutcomeLabel]]) -> None:
        """Executions that the process's exit has ended; no other process writes there now."""
        seat = self._board.seat(dead.index)
        counters = seat.slot(0).counters
        for claim, end in ends:
            counters.ended(seat.command_type(claim.domain, claim.type).index, end)
