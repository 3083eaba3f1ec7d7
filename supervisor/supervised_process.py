"""A process in its seat: what we know of it beside what its seat shows."""

from dataclasses import dataclass, field

from cmdbus.board.board import Board
from cmdbus.board.health import Health
from cmdbus.board.records import Role, Verdict
from cmdbus.board.views import SeatView, SlotView
from cmdbus.proc import rss_bytes
from cmdbus.settings import Settings
from cmdbus.supervisor.children import Child
from cmdbus.supervisor.policy import ProcessView

#: The board's times are integer nanoseconds, the policy's are seconds.
NS = 1e9
#: Memory and executions are measured so often, in seconds.
_WEIGH_SECONDS = 1.0
#: A child shows itself on the board within so many seconds after the fork.
_ENTERS_SECONDS = 30.0
#: Seconds by which a slot may seem to have begun after the board was read.
_AHEAD_SECONDS = 1.0


@dataclass(slots=True, kw_only=True)
class SupervisedProcess:
    """A child of ours, and what we have done to it."""

    child: Child
    index: int
    role: Role
    number: int
    generation: int
    app: int
    born: float
    spread: float
    #: What was decided last, and why.
    verdict: Verdict = Verdict.NONE
    #: What it was told to leave for; NONE for an order.
    stop_verdict: Verdict = Verdict.NONE
    gil_holder: SlotView | None = None
    stop_by: float | None = None
    dumped_at: float | None = None
    killed_at: float | None = None
    #: The supervisor has seen it ready.
    was_ready: bool = False
    #: It was killed, and did not die in time: it counts as dead, but keeps its place.
    undead: bool = False
    #: When its main thread was to be back, as far as could be read.
    due: float | None = None
    degraded_since: float | None = None
    #: When it said for the last time that the database was away.
    away_at: float = 0.0
    rss_bytes: int = 0
    rss_over: int = 0
    #: Executions in its place before it came, and its own.
    executed_before: int = 0
    executed: int = 0
    rss_read_at: float = 0.0
    #: Processor time of its threads when it was told to leave, or its stacks were asked for; and
    #: when that was.
    cpu_seconds: dict[int, float] = field(default_factory=dict)
    cpu_read_at: float = 0.0

    @property
    def is_staying(self) -> bool:
        """Neither told to leave nor killed."""
        return self.stop_by is None and self.killed_at is None

    @property
    def seating(self) -> Role:
        """What its seat shows it as."""
        if self.undead:
            return Role.DEAD
        return self.role if self.stop_by is None else Role.STOPPING

    def measure_rss(self, board: Board, settings: Settings, now: float) -> None:
        """Memory and executions, now and then: so little is limited that it may be late. What
        memory it has is shown on the board."""
        if now < self.rss_read_at + _WEIGH_SECONDS or self.role is not Role.WORKER:
            return
        self.rss_read_at = now
        if settings.max_commands is not None:
            self.executed = board.executed(self.index) - self.executed_before
        self.rss_bytes = rss_bytes(self.child.pid)
        board.seat(self.index).set_rss(self.rss_bytes)
        limit = settings.max_rss_bytes
        if limit is not None:
            self.rss_over = self.rss_over + 1 if self.rss_bytes > limit else 0

    def view(self, seat: SeatView, now: float) -> ProcessView:
        """For the policy: what its seat shows, and what we have done to it."""
        if seat.levels.health not in (Health.DEGRADED, Health.DATABASE_AWAY):
            self.degraded_since = None
        elif self.degraded_since is None:
            self.degraded_since = now
        if seat.levels.database_away:
            self.away_at = now
        if seat.due:
            self.due = seat.due / NS
        late = _latest(seat, now)
        return ProcessView(
            index=self.index,
            role=self.role,
            number=self.number,
            generation=self.generation,
            app=self.app,
            born=self.born,
            ready=seat.ready is not None,
            due=self.due or self.born + _ENTERS_SECONDS,
            latest_slot=late.index if late else None,
            # Who was to be back during an outage has time from its end on.
            latest_due=max(_due(late, now), self.away_at) if late else None,
            levels=seat.levels,
            degraded_since=self.degraded_since,
            away_at=self.away_at,
            commands=self.executed,
            rss_bytes=self.rss_bytes,
            rss_over=self.rss_over,
            spread=self.spread,
            stop_by=self.stop_by,
            verdict=self.stop_verdict,
            dumped_at=self.dumped_at,
            killed_at=self.killed_at,
        )

    def __str__(self) -> str:
        return f"worker {self.number}" if self.role is Role.WORKER else self.role.name.lower()


def _latest(seat: SeatView, now: float) -> SlotView | None:
    """The slot that promised to be back the longest time ago."""
    busy = [slot for slot in seat.slots if slot.due is not None]
    return min(busy, key=lambda slot: _due(slot, now), default=None)


def _due(slot: SlotView, now: float) -> float:
    """One that began after `now`, when the board was read, has a clock that is not the system's:
    it counts as overdue."""
    if (slot.since or 0) / NS > now + _AHEAD_SECONDS:
        return 0.0
    return (slot.due or 0) / NS
