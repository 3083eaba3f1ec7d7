"""Nodes as operators see them. Pure.

Another version of cmdbus may have published a node: what is missing then is None, empty or 0.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSlot:
    """A thread of a worker process. Without a command, those fields are None."""

    slot: int
    #: idle, running, leading, resting, away or stuck.
    phase: str | None
    since: datetime | None
    #: The end of its timeout.
    due: datetime | None
    command_id: UUID | None
    domain: str | None
    type: str | None
    attempt: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeat:
    """A worker process, or the quarantine process."""

    seat: int
    #: None while it has none.
    pid: int | None
    #: Processes that it has had.
    generation: int
    #: HEALTHY, DEGRADED, CRITICAL or DATABASE_AWAY, with a sentence for each reason.
    health: str | None
    reasons: list[str]
    since: datetime | None
    #: Resident memory in bytes.
    memory: int | None
    #: Its number of threads now, and the bounds of that.
    threads: int | None
    min_threads: int | None
    max_threads: int | None
    slots: list[NodeSlot]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSteward:
    pid: int | None
    generation: int
    since: datetime | None
    #: Its heartbeat is overdue after this.
    due: datetime | None
    listening: bool
    #: Senders notify it.
    armed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitedCommand:
    """A command that an exited process ran."""

    domain: str
    type: str
    command_id: UUID
    attempt: int
    #: The exit is attributed to it.
    charged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeExit:
    """The exit of a worker or quarantine process that was killed, or failed."""

    #: Its stack is that of this number in CommandBus.stacks.
    number: int
    at: datetime
    #: worker or quarantine.
    role: str
    seat: int
    pid: int
    generation: int
    #: Why the supervisor ended it: stuck, hung, late, stopped, critical; none if it did not.
    verdict: str
    signal: str | None
    #: The exit code without a signal.
    code: int | None
    #: A sentence's predicate.
    reason: str
    commands: list[ExitedCommand]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """A supervisor with its processes, or a standalone worker, as it was when it published."""

    node: int
    name: str
    host: str
    published_at: datetime
    #: It has stopped, or has not published for 2.5 minutes.
    gone: bool
    stopped: bool
    pid: int | None
    #: starting, running, stopping, stopped or giving_up.
    state: str | None
    started_at: datetime | None
    #: Of cmdbus, Python, the schema that cmdbus knows, and PostgreSQL (170002 is 17.2).
    version: str | None
    python: str | None
    schema: int | None
    postgresql: int | None
    #: What its workers claim.
    tags: list[str]
    priorities: tuple[int, int]
    age_share: int
    #: Worker processes that it keeps.
    wanted: int
    #: Resident memory of all its processes in bytes.
    memory: int
    #: Processes that were replaced, by reason.
    restarts: dict[str, int]
    #: Processes that have survived SIGKILL.
    undead: int
    seats: list[NodeSeat]
    steward: NodeSteward | None
    quarantine: NodeSeat | None
    #: The latest first.
    exits: list[NodeExit]
    #: More threads than could be published.
    cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCounters:
    """Executions of one type in one node since its start."""

    node: int
    published_at: datetime
    domain: str
    type: str
    #: By their ends: completed, failed, retry, trouble, interrupted, lost, canceled.
    ended: dict[str, int]
    #: How many waited and ran for as long as each of the buckets of the metrics says, and the sums
    #: in seconds.
    waited: list[int]
    waited_sum: float
    ran: list[int]
    ran_sum: float
