"""Releases what the dead processes of this node's board have left."""

import logging
import signal
from pathlib import Path

from cmdbus.board.board import Node
from cmdbus.board.records import ExitRecord, Role
from cmdbus.board.stack_files import read_stacks
from cmdbus.board.views import SeatView
from cmdbus.registry import HandlerRegistry
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claims import Claims
from cmdbus.worker.claims.outcomes import SUSPECT_LOSSES
from cmdbus.worker.steward.attribution import attribute
from cmdbus.worker.steward.rescue import Rescued, rescue

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
            self._board.suspects = self._claims.value(connection, "suspect_waits", **values)
        if failures:
            raise failures[0]
        return float("inf")

    def _rescue(self, connection: Connection, seat: SeatView) -> None:
        rescued = self.release(connection, seat)
        if not rescued.sessions_ended:
            return
        dead = self._board.seat(seat.index)
        # Executions that the exit has ended: no other process writes to these counters now.
        counters = dead.slot(0).counters
        for claim, end in rescued.ends:
            counters.ended(dead.command_type(claim.domain, claim.type).index, end)
        dead.rescued = seat.generation
        self._worker_pipe.put()  # The dead process may have taken a byte.

    def release(self, connection: Connection, seat: SeatView) -> Rescued:
        """Of a seat of any board; to be repeated until the sessions of its process have ended."""
        if seat.incarnation is None:
            return Rescued()  # It has never claimed.
        exit_record = seat.exit or _orphan_exit(seat)
        attribution = attribute(seat, exit_record, read_stacks(self._stacks / str(seat.index)))
        rescued = rescue(connection, self._claims, self._registry, attribution)
        if rescued.sessions_ended:
            where = "the commands of worker %s, pid %s: %s"
            logger.info(where, seat.number, seat.pid, rescued)
        return rescued


def _orphan_exit(seat: SeatView) -> ExitRecord:
    """The exit of a process whose supervisor died before it could record one."""
    pid = seat.pid or 0
    return ExitRecord(generation=seat.generation, pid=pid, signal=signal.SIGKILL, orphaned=True)
