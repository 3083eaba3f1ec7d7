"""What the board shows, as values. What cannot be true, or cannot be known at the moment, is
None. Times are monotonic nanoseconds.
"""

from collections.abc import Container
from dataclasses import dataclass
from uuid import UUID

from cmdbus.board.health import Health, HealthReport
from cmdbus.board.records import ClaimState, ExitRecord, Phase, Role, SupervisorState

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandView:
    domain: str
    type: str
    command_id: UUID
    attempt: int
    priority: int
    id: int
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotView:
    """Times in monotonic nanoseconds."""

    #: Where it is in the seat; and what operators call it, -1 if it runs no commands.
    index: int
    number: int
    phase: Phase | None
    command: CommandView | None
    since: int | None
    due: int | None
    thread: int | None
    #: The same thread, as Python's own stacks name it.
    ident: int | None
    backend_pid: int | None
    backend_start: int | None
    #: Changes with everything that its thread says; 0 if it is not known.
    sequence: int

    def to_dict(self, now: int) -> dict[str, object]:
        command = self.command
        return {
            "slot": self.number,
            "phase": self.phase.name.lower() if self.phase is not None else None,
            "command_id": str(command.command_id) if command else None,
            "domain": command.domain if command else None,
            "type": command.type if command else None,
            "attempt": command.attempt if command else None,
            "since": _seconds(now, self.since, 1),
            "due": _seconds(now, self.due, -1),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimView:
    """Claimed and not settled."""

    #: None if the seat's table of kinds was full; then only its hash is known.
    domain: str | None
    domain_hash: int
    priority: int
    id: int
    token: int
    command_id: UUID
    state: ClaimState
    #: Where it is on the board, and the row of its kind among the seat's counters.
    index: int
    command_type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatView:
    """`pid` is None while no process has entered, or it cannot be known."""

    index: int
    role: Role | None
    number: int
    generation: int
    pid: int | None
    incarnation: int | None
    since: int | None
    #: When it began to claim.
    ready: int | None
    #: When its main thread promised to be back.
    due: int | None
    levels: HealthReport
    #: By when it was told to leave.
    stop_by: int | None
    #: Resident memory as the supervisor measured it last; None before that.
    rss_bytes: int | None
    #: How its process came to its end; None while it lives.
    exit: ExitRecord | None
    #: Whether what the dead process held is handed back.
    rescued: bool
    #: Since when its leader rests.
    parked: int | None
    #: Only those that a thread has, or had when its process died.
    slots: tuple[SlotView, ...]
    claims: tuple[ClaimView, ...]
    #: False if the process has ever had more keys at once than the board can show.
    complete: bool

    @property
    def health(self) -> Health:
        return self.levels.health

    def to_dict(self, now: int, gone: Container[int] = ()) -> dict[str, object]:
        present = self.pid is not None and self.pid not in gone
        return {
            "seat": self.number,
            "pid": self.pid,
            "generation": self.generation,
            "restarts": max(0, self.generation - 1),
            "rss_bytes": self.rss_bytes if present else None,
            "health": self.health.value if present else None,
            "reasons": self.levels.reasons if present else [],
            "since": _seconds(now, self.since, 1),
            "slots": [slot.to_dict(now) for slot in self.slots if slot.number >= 0],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardView:
    """`pid` and what follows: the supervisor's, and None if there is none or was never one."""

    name: str
    #: False if the machine was started anew since it was made: its times and pids mean nothing.
    this_boot: bool
    pid: int | None
    state: SupervisorState | None
    since: int | None
    due: int | None
    #: So many workers there should be.
    wanted: int
    listening: bool
    #: The number of the arming; 0 while nothing is armed.
    armed: int
    #: Commands wait that may kill their process, and run only alone.
    suspects: bool
    #: Processes that were killed and do not die; what they held is handed back.
    undead: int
    restarts: dict[str, int]
    seats: tuple[SeatView, ...]

    def with_role(self, role: Role) -> list[SeatView]:
        return sorted((s for s in self.seats if s.role is role), key=lambda seat: seat.number)

    def to_dict(self, now: int, gone: Container[int] = ()) -> dict[str, object]:
        """As `cmdbus ps --json` shows it: `since` in seconds ago, `due` in seconds to come.
        Pids that are `gone` have no health."""
        stewards, alone = self.with_role(Role.STEWARD), self.with_role(Role.QUARANTINE)
        steward = stewards[0] if stewards else None
        workers = {s.number: s.to_dict(now, gone) for s in self.with_role(Role.WORKER)}
        numbers = sorted({*workers, *range(self.wanted)})
        return {
            "name": self.name,
            "pid": self.pid,
            "state": self.state.name.lower() if self.state is not None else None,
            "seats": [workers.get(n) or _empty(n) for n in numbers],
            "steward": {
                "pid": steward.pid if steward else None,
                "generation": steward.generation if steward else 0,
                "since": _seconds(now, steward.since if steward else None, 1),
                "due": _seconds(now, steward.due if steward else None, -1),
                "listening": self.listening,
                "armed": self.armed > 0,
            },
            "quarantine": alone[0].to_dict(now, gone) if alone else None,
        }


def _empty(number: int) -> dict[str, object]:
    """A seat whose process is gone and has no successor yet."""
    return {
        "seat": number,
        "pid": None,
        "generation": 0,
        "restarts": None,
        "rss_bytes": None,
        "health": None,
        "reasons": [],
        "since": None,
        "slots": [],
    }


def _seconds(now: int, at: int | None, sign: int) -> float | None:
    return None if at is None else round(sign * (now - at) / _NS, 3)
