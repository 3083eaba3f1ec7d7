"""The records that processes write on the board, and the states in them. Pure.

Each record is declared once, here: its fields in their order are its cells (record_format.py),
and a view that shows a record has its fields. Times are monotonic nanoseconds.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from uuid import UUID

from cmdbus.board.health import HealthReport
from cmdbus.board.layout import (
    CELL,
    EXIT_AT,
    LISTENING,
    NAMES_AT,
    PARKED,
    PROCESS_AT,
    RESTARTS,
    SEATING_AT,
    SLOT_AT,
    STOP_BY,
    SUPERVISOR_AT,
    UNDEAD,
)
from cmdbus.board.record_format import format_of


class SupervisorState(IntEnum):
    STARTING = 0
    RUNNING = 1
    STOPPING = 2
    STOPPED = 3
    #: Stopping for a reason that a restart of processes cannot heal.
    GIVING_UP = 4


class Restart(IntEnum):
    """Why a seat got another process, as `process_restarts_total` names it (in lower case)."""

    CRASHED = 0
    STUCK = 1
    HUNG = 2
    DEGRADED = 3
    RECYCLED = 4
    RELOADED = 5
    TERMINATED = 6


class Role(IntEnum):
    """What a seat is used for. A process moves its seat through them:

    SPARE -> WORKER | STEWARD | QUARANTINE -> STOPPING -> DEAD -> SPARE
    """

    SPARE = 0
    WORKER = 1
    STEWARD = 2
    #: Runs a suspect command in a process of its own.
    QUARANTINE = 3
    #: Ordered to stop; another process has its number, or the number is not needed any longer.
    STOPPING = 4
    #: Its process has exited, and the claims of that process are not released yet.
    DEAD = 5


class Verdict(IntEnum):
    """Why the supervisor ended a process; NONE if it did not."""

    NONE = 0
    #: A slot was overdue for longer than the watchdog allows.
    STUCK = 1
    #: The main thread was overdue.
    HUNG = 2
    #: The process missed its stop deadline.
    LATE = 3
    #: A slot or the main thread was overdue because a signal from outside had stopped the process.
    STOPPED = 4
    #: It had more stuck threads or pool exhaustions than are healthy.
    CRITICAL = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorRecord:
    """`pid` is None if there was never a supervisor."""

    pid: int | None = None
    state: SupervisorState | None = None
    since: int | None = None
    #: Its loop is overdue after this.
    due: int | None = None
    #: The number of worker processes that the supervisor keeps.
    wanted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatingRecord:
    """The process that a seat is for: `number` is the one that operators see."""

    role: Role | None = None
    number: int = 0
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """`pid` is None while no process has taken the seat."""

    pid: int | None = None
    generation: int = 0
    since: int | None = None
    #: The time at which it began to claim.
    ready: int | None = None
    #: The heartbeat of its main thread is overdue after this.
    due: int | None = None
    levels: HealthReport = field(default_factory=HealthReport)


#: The command of a verdict for which no slot is known.
NO_COMMAND = UUID(int=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRecord:
    generation: int
    pid: int
    #: The signal that killed it; 0 if it exited, with `code`.
    signal: int = 0
    code: int = 0
    verdict: Verdict = Verdict.NONE
    #: The slot that the verdict is about, or -1, with its token and command: most commands have
    #: the same token, that of a first claim.
    slot: int = -1
    token: int = 0
    command_id: UUID = NO_COMMAND
    #: It was a quarantine process.
    quarantined: bool = False
    #: Its supervisor died before it, so its exit status is unknown.
    orphaned: bool = False


class Phase(IntEnum):
    IDLE = 0
    RUNNING = 1
    #: The leader, while it settles and claims.
    LEADING = 2
    #: The leader, while it waits for work.
    RESTING = 3
    #: Waiting for a lost database.
    AWAY = 4
    #: No thread writes this: a reader shows it if the slot's sequence is its stuck sequence.
    STUCK = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    #: Rises with every write of the thread; 0 if the slot cannot be read.
    sequence: int = 0
    phase: Phase | None = None
    since: int | None = None
    due: int | None = None
    thread: int | None = None
    #: The one that operators see; -1 of a thread that runs no commands.
    number: int
    backend_pid: int | None = None
    backend_start: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandState:
    attempt: int
    priority: int
    id: int
    token: int
    command_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRecord(SlotState):
    command: CommandState
    #: The slot's thread runs a command, and the domain and type follow the record.
    named: bool


@dataclass(frozen=True, slots=True, eq=False)
class CommandType:
    """A domain and type, with its row among the counters; `Seat.command_type` makes one of each."""

    index: int
    domain: str
    type: str
    encoded: bytes
    crc: int


class ClaimState(IntEnum):
    FREE = 0
    CLAIMED = 1
    STARTED = 2
    FINISHED = 3


# Each record ends before the next cell, and the cell before it is its seal.
for _record, _at, _end in (
    (SupervisorRecord, SUPERVISOR_AT, LISTENING),
    (SeatingRecord, SEATING_AT, STOP_BY),
    (ProcessRecord, PROCESS_AT, EXIT_AT),
    (ExitRecord, EXIT_AT, PARKED),
    (SlotRecord, SLOT_AT, NAMES_AT),
):
    assert format_of(_record).struct.size < (_end - _at) * CELL, _record
assert RESTARTS + len(Restart) <= UNDEAD
