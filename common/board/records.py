"""What processes write on the board: its records, and the states in them. Pure."""

from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID


class SupervisorState(IntEnum):
    STARTING = 0
    RUNNING = 1
    STOPPING = 2
    STOPPED = 3
    #: Stopping, and for a reason that it cannot heal.
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

    SPARE -> WORKER | STEWARD | ALONE -> LEAVING -> DEAD -> SPARE
    """

    SPARE = 0
    WORKER = 1
    STEWARD = 2
    #: Runs a suspect command in a process of its own.
    QUARANTINE = 3
    #: Ordered to leave; another process has its number, or nobody needs one.
    STOPPING = 4
    #: Its process has ended, and what that held is not handed back yet.
    DEAD = 5


class Verdict(IntEnum):
    """Why the supervisor ended a process; NONE if it did not."""

    NONE = 0
    #: The slot was past its due for longer than the watchdog allows.
    STUCK = 1
    #: The main thread was.
    HUNG = 2
    #: It was told to leave, and had not left in time.
    LATE = 3
    #: Neither came back, as a signal from outside had stopped the process.
    STOPPED = 4
    #: It had more stuck threads or pool exhaustions than are healthy.
    CRITICAL = 5


#: The command of a verdict for which no slot is known.
NO_COMMAND = UUID(int=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRecord:
    """How a process came to its end."""

    generation: int
    pid: int
    #: What killed it; 0 if it exited, with `code`.
    signal: int = 0
    code: int = 0
    verdict: Verdict = Verdict.NONE
    #: Of the verdict: place of who is guilty, with its token and command; -1 if nobody is known to
    #: be. Most commands have the same token, that of a first claim.
    slot: int = -1
    token: int = 0
    command_id: UUID = NO_COMMAND
    #: It ran nothing but a suspect.
    quarantined: bool = False
    #: Its supervisor had died before, so that how it ended is not known. Never on the board.
    orphaned: bool = False


class Phase(IntEnum):
    """What a thread is doing."""

    IDLE = 0
    RUNNING = 1
    #: Settling and claiming, with the lead in hand.
    LEADING = 2
    #: The leader, until somebody wakes it.
    RESTING = 3
    #: Waiting for the database to come back.
    AWAY = 5
    #: Never written by a thread: a verdict was passed on what its slot still shows.
    STUCK = 6


@dataclass(frozen=True, slots=True)
class CommandType:
    """A domain and type, with its row among the counters; made by `Seat.kind`."""

    index: int
    domain: str
    type: str
    #: See Keys.
    packed: int
    encoded: bytes
    crc: int


class ClaimState(IntEnum):
    FREE = 0
    CLAIMED = 1
    STARTED = 2
    FINISHED = 3
