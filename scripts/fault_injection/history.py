"""A run as records: what the producers, the tables, the handlers, the supervisors and the
server say of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fault_injection.group_history import Batch, Process

#: Seconds since the epoch, as all times here; the server's clock and ours are one machine's.
Time = float


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Of a producer, as its journal ends."""

    name: str
    way: str
    count: int
    began: Time = 0.0
    #: When its last line was written.
    ended: Time = 0.0
    #: ok, fail or unknown.
    outcome: str
    ids: Sequence[str] = ()
    #: Of a call that waited: the status, and the run or the code.
    answer: Mapping[str, str] | None = None
    #: It waited in vain.
    timed_out: bool = False
    #: The domain and the unique key of what it sends, and the command that had it already.
    unique: str | None = None
    held_by: str | None = None
    #: Of a producer that knows only PGMQ: the numbers of what it wrote.
    messages: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A command where it is at the end."""

    command_id: str
    table: str
    status: str
    type: str
    domain: str = ""
    priority: int = 5
    #: None of both for a reply.
    call: str | None = None
    index: int | None = None
    code: str | None = None
    attempts: int = 0
    max_attempts: int | None = None
    losses: int = 0
    token: int = 0
    claimer: int | None = None
    #: Of the execution whose outcome was settled.
    run: str | None = None
    created_at: Time = 0.0
    #: As its sender asked, in seconds.
    delay: float = 0.0
    reply_to: str | None = None
    #: Of a reply: what it answers.
    answers: str | None = None
    #: The batch that it is part of.
    batch: str | None = None
    #: The call that started the process which has sent it.
    process: str | None = None
    #: The command that added it to its batch, and how many this one adds.
    added_by: str | None = None
    adds: int = 0
    iterates: int = 0  # the number of rows that it writes
    #: The type as 'domain type', if that has a limit, or had one in the run; `type` is what its
    #: handler does.
    limited: str | None = None
    key: str | None = None
    #: finished, started, or the number of seconds for which the unique key is held.
    unique_key: str | None = None
    unique_until: str = "finished"
    expires_at: Time | None = None
    correlation_id: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    #: What its data says of both; None where it says nothing.
    asked_correlation_id: str | None = None
    asked_headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Of PGMQ, at the end of the run."""

    queue: str
    number: int
    #: What its producer wrote: which call, and which message of that.
    call: str | None = None
    index: int | None = None
    #: Of a reply that came back: the command that it answers.
    answers: str | None = None
    outcome: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One change of one row, in the order in which they were made."""

    number: int
    #: By the server's clock: the start of the statement that made it, and itself.
    began: Time
    at: Time
    xid: int
    session: str
    #: claim, release, or a table with + or -.
    what: str
    command_id: str
    token: int
    token_before: int | None = None
    claimer: int | None = None
    claimer_before: int | None = None
    lease_before: Time | None = None
    due_at: Time | None = None
    attempts: int = 0
    claimed_at: Time | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitChange:
    """Of a limit in force; without a value it limits nothing."""

    at: Time
    name: str
    concurrency: int | None = None
    starts_per_second: float | None = None
    burst: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    command_id: str
    at: Time
    kind: str
    code: str | None = None
    token: int | None = None
    claimer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Of a schedule, as the event of its command says."""

    schedule: str
    at: Time
    command_id: str
    sent_at: Time


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A call that a breaker let through, and the places that were held with it."""

    at: Time
    breaker: str
    held: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    command_id: str
    run: str
    session: str
    xid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A line that a handler left: enter, returned or raised."""

    at: Time
    what: str
    run: str
    pid: int
    command_id: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Of a supervisor's log, written by the supervisor itself."""

    instance: str
    at: Time
    pid: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """An instance at one moment."""

    instance: str
    at: Time
    supervisor: int
    #: Worker processes alive, those that leave among them.
    workers: int
    wanted: int
    #: Counters by name.
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The database at one moment, in one snapshot."""

    at: Time
    #: Commands that were ever inserted; rows that there are; sessions of the fleets.
    commands: int
    rows: int
    sessions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stray:
    """A process that was a zombie, or had lost its parent, and for how many seconds."""

    pid: int
    what: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """How long after a fault's end everything worked again; None if it did not."""

    fault: int
    kind: str
    began: Time
    ended: Time
    seconds: float | None
    #: What was promised for while it lasted, and was not so.
    broken: str = ""
    #: No other fault was near.
    single: bool = True
    #: The instances that it hurt.
    instances: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """The observer had no CPU, or no answer of the server."""

    began: Time
    ended: Time


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """What was committed after the copy was gone when the server ran again."""

    copied_at: Time
    restored_at: Time


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the plan promises, for the checks."""

    procs: int
    drain: float
    max_attempts: int
    backoff: Sequence[float]
    jitter: float
    #: Seconds that a claim lasts without a renewal.
    lease: float
    #: What the producers send to.
    domains: Sequence[str]
    #: Sessions of all fleets together.
    sessions: int
    #: Seconds after the faults within which each next command ends, until all have.
    standstill: float
    #: Seconds from tick to tick, by the schedule's name.
    schedules: Mapping[str, int] = field(default_factory=dict)
    #: Seconds after a fault within which everything works again, by its kind.
    recovered_within: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    limits: Limits
    calls: Sequence[Call] = ()
    rows: Sequence[Row] = ()
    moves: Sequence[Move] = ()
    events: Sequence[Event] = ()
    ticks: Sequence[Tick] = ()
    probes: Sequence[Probe] = ()
    #: When the schedules were paused.
    paused_at: Time = 0.0
    effects: Sequence[Effect] = ()
    #: The numbers of the rows that commands have written, by their ids.
    iterations: Mapping[str, Sequence[int]] = field(default_factory=dict)
    limit_changes: Sequence[LimitChange] = ()
    #: What was in the queues of the bridges, and in the archives of these; None without bridges.
    messages: Sequence[Message] | None = None
    #: The lanes that had a turn at the end.
    turns: Sequence[str] = ()
    batches: Sequence[Batch] = ()
    processes: Sequence[Process] = ()
    marks: Sequence[Mark] = ()
    lines: Sequence[Line] = ()
    samples: Sequence[Sample] = ()
    counts: Sequence[Count] = ()
    strays: Sequence[Stray] = ()
    recoveries: Sequence[Recovery] = ()
    stalls: Sequence[Stall] = ()
    restores: Sequence[Restore] = ()
    #: The ids of pending commands of the unhandled type, as the bus lists them.
    pending: Sequence[str] = ()
    #: Incarnations, by number: the process of each, as "host:pid" or "steward:pid".
    workers: Mapping[int, str] = field(default_factory=dict)
    #: Unexpected ends of supervisors, and what was not found whole at the end.
    wrong: Sequence[str] = ()
    #: Of the server's log: time, SQL state, text. None without a server of our own.
    server: Sequence[tuple[Time, str, str]] | None = None
    #: The canary: where it was seen.
    leaks: Sequence[str] = ()
    drained: float | None = None
