"""Workers that have claimed, and of which nothing is left but a board and sessions; and their
rescue."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

import psycopg
from eventually import eventually
from handlers import claim, connect, handling

from cmdbus import RetryPolicy, TransientCommandError
from cmdbus.board.board import Board
from cmdbus.worker.claims.claim import Claim, fence_of
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.settlement_log import SettlementLog
from cmdbus.worker.pipeline.in_flight import Entry, EntryState, InFlight
from cmdbus.worker.steward.attribution import Attribution
from cmdbus.worker.steward.rescue import Rescued, rescue

REGISTRY = handling(retry=RetryPolicy(max_attempts=2))


WHY = "its process (pid 4711) was killed by SIGKILL"


@dataclass
class Dead:
    """A worker that has claimed, and whose process is gone."""

    statements: ClaimStatements
    board: Board
    in_flight: InFlight
    session: psycopg.Connection

    def claim(self, count: int) -> list[Claim]:
        return claim(self.statements, self.session, count)

    def take(self, *claims: Claim) -> None:
        self.in_flight.take(list(claims), lambda: False)

    def start(self, claim: Claim) -> None:
        self.in_flight.start(self._entry(claim))

    def finish(self, claim: Claim) -> None:
        self.in_flight.finish(self._entry(claim))

    def _entry(self, claim: Claim) -> Entry:
        return next(e for e in self.in_flight.in_state(*EntryState) if e.claim == claim)

    def run(self, claim: Claim, slot: int) -> None:
        """As far as the board knows."""
        seat = self.board.seat(0)
        place = seat.slot(slot)
        place.occupy(slot, 1)
        place.begin(
            seat.command_type(claim.domain, claim.type),
            priority=claim.priority,
            id=claim.id,
            token=claim.token,
            command_id=claim.command_id,
            attempt=claim.attempts + 1,
            started=1,
            due=2,
        )

    def death(self, gil_holder: dict[Claim, TransientCommandError] | None = None) -> Attribution:
        return Attribution(
            seat=self.board.seat_view(0),
            why=WHY,
            causes={fence_of(c): error for c, error in (gil_holder or {}).items()},
        )


@contextmanager
def dead(dsn: str) -> Iterator[Dead]:
    statements = ClaimStatements("cmdbus", 30)
    with connect(dsn) as connection:
        statements.register(connection, "dead")
    board = Board.in_memory(1, 8)
    seat = board.seat(0)
    seat.register(statements.incarnation)
    with connect(dsn, application_name=statements.application_name) as session:
        yield Dead(statements, board, InFlight(statements, seat), session)


def rescued(dsn: str, attribution: Attribution, within: float = 10.0) -> Rescued:
    with connect(dsn, options="-c lock_timeout=100ms") as connection:
        steward = ClaimStatements("cmdbus", 30)
        steward.register(connection, "steward")
        log = SettlementLog()
        result = rescue(connection, steward, REGISTRY, attribution, log, within)
    log.write()
    return result


def rescued_but(dsn: str, attribution: Attribution, *left: Claim) -> Rescued:
    """All claims but these, by the first rescue to which half a second is enough."""

    def tried() -> Rescued | None:
        result = rescued(dsn, attribution, within=0.5)
        return result if result.sessions_ended and len(result.left) <= len(left) else None

    result = eventually(tried)
    assert result is not None and ids(result.left) == ids(left)
    return result


def ids(claims: tuple[Claim, ...] | list[Claim]) -> set[UUID]:
    return {claim.command_id for claim in claims}
