"""What one transaction does to processes: it locks their rows, and writes what becomes of them and
what they send in one statement."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from cmdbus.arrays import any_ids, ids, numbers, texts, whole
from cmdbus.database.pool import Connection
from cmdbus.errors import PermanentCommandError
from cmdbus.producer.store import Store


class ProcessRow(NamedTuple):
    """A process as lock_processes reads it."""

    process_id: UUID
    domain: str
    type: str
    status: str
    step: str | None
    #: JSON text.
    state: str
    version: int
    #: Of its latest command.
    number: int
    awaited_domain: str | None
    awaited_id: UUID | None
    #: The number of the step that the awaited command undoes.
    undoing: int | None
    timer_id: UUID | None
    #: Its last status, once a step has failed or it was canceled.
    ending: str | None
    error: str | None

    @property
    def label(self) -> str:
        return f"process {self.process_id} ({self.domain}/{self.type})"


class Ended(NamedTuple):
    """The reply to the awaited command; without an outcome, none came or it was stored before."""

    outcome: str | None = None
    error: str | None = None
    #: Fires no longer.
    timer_id: UUID | None = None


class Sent(NamedTuple):
    """What a process sends: a command; without a domain, a batch that it has created; without an
    id, nothing."""

    command_id: UUID | None = None
    type: str | None = None
    domain: str | None = None
    data: str | None = None
    own: bool = False
    priority: int = 0
    delay: float | None = None
    run_at: datetime | None = None
    max_attempts: int | None = None
    key: str | None = None
    expires_at: datetime | None = None
    #: JSON text.
    headers: str | None = None


class Move(NamedTuple):
    """What becomes of a process."""

    row: ProcessRow
    status: str
    step: str | None
    undoing: int | None
    #: JSON text.
    state: str
    version: int
    ending: str | None
    error: str | None
    ended: Ended
    sent: Sent
    #: Of what is sent: seconds, and the id of the command that fires then.
    deadline: float | None = None
    timer_id: UUID | None = None


class Transition:
    """Locks these processes of a domain; `write` comes last."""

    def __init__(
        self,
        store: Store,
        connection: Connection,
        domain: str,
        process_ids: Sequence[UUID],
        *,
        skips_locked: bool,
    ) -> None:
        self.store, self.connection = store, connection
        self._domain = domain
        values = {"process_ids": ids(process_ids), "skips_locked": skips_locked}
        found = store.rows(connection, "lock_processes", **values)
        #: Those of the domain that exist.
        self.rows = {row[0]: ProcessRow._make(row) for row in found if row[1] == domain}
        self._moves: list[Move] = []

    def add(self, move: Move) -> None:
        self._moves.append(move)

    def write(self) -> None:
        moves = self._moves
        if not moves:
            return
        sent, ended = zip(*((move.sent, move.ended) for move in moves), strict=True)
        taken = self.store.value(
            self.connection,
            "advance_processes",
            domain=self._domain,
            process_ids=ids([move.row.process_id for move in moves]),
            numbers=whole([move.row.number for move in moves]),
            statuses=texts([move.status for move in moves]),
            steps=texts([move.step for move in moves]),
            undoings=_if_any(numbers, [move.undoing for move in moves]),
            states=texts([move.state for move in moves]),
            versions=whole([move.version for move in moves]),
            endings=_if_any(texts, [move.ending for move in moves]),
            errors=_if_any(texts, [move.error for move in moves]),
            outcomes=_if_any(texts, [each.outcome for each in ended]),
            problems=_if_any(texts, [each.error for each in ended]),
            timer_ids=any_ids([each.timer_id for each in ended]),
            to_domains=texts([each.domain for each in sent]),
            types=texts([each.type for each in sent]),
            data=texts([each.data for each in sent]),
            command_ids=any_ids([each.command_id for each in sent]),
            own=_if_any(whole, [each.own for each in sent]),
            priorities=whole([each.priority for each in sent]),
            delays=_if_any(numbers, [each.delay for each in sent]),
            run_at=_if_any(texts, [each.run_at and each.run_at.isoformat() for each in sent]),
            max_attempts=_if_any(numbers, [each.max_attempts for each in sent]),
            keys=_if_any(texts, [each.key for each in sent]),
            expires_at=_if_any(
                texts, [each.expires_at and each.expires_at.isoformat() for each in sent]
            ),
            headers=_if_any(texts, [each.headers for each in sent]),
            deadlines=_if_any(numbers, [move.deadline for move in moves]),
            new_timer_ids=any_ids([move.timer_id for move in moves]),
        )
        for move in moves:
            if taken and move.sent.command_id in taken:
                raise duplicate(move.row, move.sent.command_id, move.step)


def duplicate(row: ProcessRow, command_id: object, step: str | None) -> PermanentCommandError:
    message = f"{row.label}: command {command_id} of step {step} was sent before"
    return PermanentCommandError("DUPLICATE_COMMAND", message)


def _if_any(write: Callable[[Sequence[Any]], str], values: Sequence[Any]) -> str | None:
    return write(values) if any(values) else None
