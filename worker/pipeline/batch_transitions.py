"""A worker process's part in batches: notes that they have started, and ends those that are over.

Two settlements that commit at once do not see each other, so each checks once it has committed.
While this process has a command of a batch in flight, the batch cannot be over: no check is needed.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from uuid import UUID

from cmdbus.arrays import ids
from cmdbus.worker.claims.claim import Claim, Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.connections import ThreadConnection
from cmdbus.worker.claims.rejections import may_be_of_one_row
from cmdbus.worker.pipeline.in_flight import InFlight

#: The number of batches that are remembered as started; forgotten ones are noted again.
_REMEMBERED = 10_000


class BatchTransitions:
    """Shared by all threads; every operation on a deque or set is atomic."""

    def __init__(self, statements: ClaimStatements, in_flight: InFlight) -> None:
        self._statements, self._in_flight = statements, in_flight
        self._left = in_flight.left_batches
        self._claimed: deque[UUID] = deque()
        self._started: set[UUID] = set()

    @property
    def due(self) -> bool:
        return bool(self._left or self._claimed)

    def claimed(self, claims: Sequence[Claim]) -> None:
        batch_ids = {claim.batch_id for claim in claims if claim.batch_id is not None}
        self._claimed.extend(batch_ids - self._started)

    def attend(self, connection: ThreadConnection) -> None:
        """After an error, the next call tries again."""
        if self.due:
            self.attend_on(connection.connection())

    def attend_on(self, connection: Connection) -> None:
        claimed, left = _taken(self._claimed), _taken(self._left)
        try:
            if claimed:
                self._start(connection, claimed)
                claimed = set()
            left -= self._in_flight.batches() if left else set()
            if left:
                self._statements.value(connection, "end_batches", batch_ids=ids(left))
        except BaseException as error:
            if may_be_of_one_row(error):
                return  # A steward sees to them, one by one.
            self._claimed.extend(claimed)
            self._left.extend(left)
            raise

    def _start(self, connection: Connection, batch_ids: Iterable[UUID]) -> None:
        locked = self._statements.value(connection, "start_batches", batch_ids=ids(batch_ids))
        if len(self._started) >= _REMEMBERED:
            self._started.clear()
        self._started.update(set(batch_ids).difference(locked))


def _taken(batch_ids: deque[UUID]) -> set[UUID]:
    taken = set[UUID]()
    with suppress(IndexError):
        while True:
            taken.add(batch_ids.popleft())
    return taken
