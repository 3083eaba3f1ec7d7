"""The fleet as its supervisor sees it: the values that decisions are made from. Pure.

All times are seconds of one monotonic clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cmdbus.board.health import Health, HealthReport
from cmdbus.board.records import Role, Verdict
from cmdbus.board.views import BoardView, SeatView, SlotView

#: A role, and the number in it: a process and its successors have the same.
Post = tuple[Role, int]
#: The board's times are integer nanoseconds, the supervisor's are seconds.
NS = 1e9
#: Seconds after which a killed process that still exists counts as unable to die (disk wait).
UNDEAD_SECONDS = 2.0
#: Seconds by which a slot may seem to have begun after the board was read.
_AHEAD_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessView:
    """A child as its seat shows it, and the orders that the supervisor gave it."""

    index: int
    role: Role
    number: int
    generation: int
    pid: int = 0
    #: The application that it runs: the number of reloads before it started.
    app: int = 0
    born: float = 0.0
    ready: bool = False
    #: The deadline of its main thread's next heartbeat.
    due: float | None = None
    #: The slot that is overdue for longest.
    latest_slot: int | None = None
    latest_due: float | None = None
    levels: HealthReport = field(default_factory=HealthReport)
    degraded_since: float | None = None
    #: The time of its last report that the database is away.
    away_at: float = 0.0
    commands: int = 0
    rss_bytes: int = 0
    #: Samples of too much memory, in a row.
    rss_over: int = 0
    #: The part of max_age and max_commands that this process lives longer, so that restarts spread.
    spread: float = 0.0
    #: The stop order: its deadline, and its reason; NONE for a planned stop (shutdown, reload).
    stop_by: float | None = None
    stop_verdict: Verdict = Verdict.NONE
    #: It stops without an order, after a SIGTERM that the supervisor did not send.
    terminated: bool = False
    dumped_at: float | None = None
    #: The kill: its time, its reason, and the slot that it is attributed to.
    killed_at: float | None = None
    kill_verdict: Verdict = Verdict.NONE
    cause: SlotView | None = None

    @property
    def post(self) -> Post:
        return self.role, self.number

    @property
    def is_ordered(self) -> bool:
        """To stop, or it is killed."""
        return self.stop_by is not None or self.killed_at is not None

    @property
    def is_staying(self) -> bool:
        return not (self.is_ordered or self.terminated)

    def is_alive(self, now: float) -> bool:
        """Whether it may hold connections. One that survives SIGKILL is given up."""
        return self.killed_at is None or now < self.killed_at + UNDEAD_SECONDS

    def __str__(self) -> str:
        return f"worker {self.number}" if self.role is Role.WORKER else self.role.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """Everything that a decision is made from."""

    processes: Sequence[ProcessView]
    wanted: int
    #: The application that processes should run.
    app: int = 0
    #: The earliest start of the next process of a post; missing: now.
    not_before: dict[Post, float] = field(default_factory=dict)
    #: The stop deadline of the whole fleet.
    stop_by: float | None = None
    #: Dead processes whose claims are not released yet.
    unrescued: int = 0
    suspects: bool = False
    #: False after the supervisor itself stalled: what seems overdue may be its own delay.
    detects_hangs: bool = True


def is_drained(board: BoardView, since: float, *, wanted: int, listens: bool) -> bool:
    """Whether all workers have waited since then, are woken by new commands, and hold no claim:
    running and unsettled commands are not done."""
    if any(seat.role in (Role.QUARANTINE, Role.STOPPING, Role.DEAD) for seat in board.seats):
        return False
    workers = board.with_role(Role.WORKER)
    parked = [seat.parked for seat in workers if seat.ready is not None]
    return (
        len(parked) >= wanted
        and all(at is not None and at / NS < since for at in parked)
        and (board.armed > 0 or not listens)
        and not board.suspects
        and not any(seat.claims for seat in workers)
    )


def updated(process: ProcessView, seat: SeatView, now: float) -> ProcessView:
    """The process as its seat shows it now. A due time that cannot be read stays as it was."""
    degraded_since = None
    if seat.levels.health in (Health.DEGRADED, Health.DATABASE_AWAY):
        degraded_since = now if process.degraded_since is None else process.degraded_since
    away_at = now if seat.levels.database_away else process.away_at
    late = min(
        (slot for slot in seat.slots if slot.due is not None),
        key=lambda slot: _due(slot, now),
        default=None,
    )
    return replace(
        process,
        ready=seat.ready is not None,
        terminated=seat.terminated,
        due=seat.due / NS if seat.due else process.due,
        latest_slot=late.index if late else None,
        # A due time that passed during an outage counts from the end of the outage.
        latest_due=max(_due(late, now), away_at) if late else None,
        levels=seat.levels,
        degraded_since=degraded_since,
        away_at=away_at,
    )


def _due(slot: SlotView, now: float) -> float:
    """A slot that began after `now`, when the board was read, has a clock that is not the
    system's: it counts as overdue."""
    if (slot.since or 0) / NS > now + _AHEAD_SECONDS:
        return 0.0
    return (slot.due or 0) / NS
