"""The state that the board shows, as values: its records, and its other cells, which board.py and
seats.py explain. A field that cannot be read is None. Times are monotonic nanoseconds.
"""

from collections.abc import Container
from dataclasses import asdict, dataclass, field
from uuid import UUID

from cmdbus.board.health import Health
from cmdbus.board.records import (
    ClaimState,
    CommandState,
    ExitRecord,
    ProcessRecord,
    Role,
    SlotState,
    SupervisorRecord,
)
from cmdbus.board.selected import Selected
from cmdbus.board.threads import ThreadsView

_NS = 1_000_000_000
_CLAIMING = (Role.WORKER, Role.QUARANTINE, Role.STOPPING)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandView(CommandState):
    domain: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotView(SlotState):
    #: The slot's position in its seat.
    index: int
    command: CommandView | None = None
    #: The thread, by the number that Python's own stacks give it.
    ident: int | None = None

    def to_dict(self, now: int | None) -> dict[str, object]:
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
    id: int
    token: int
    command_id: UUID
    state: ClaimState
    #: The cell that marks it as lost, and the number that does: see Board.mark_lost.
    lost_at: int = field(default=-1, compare=False)
    mark: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatView(ProcessRecord):
    index: int = -1
    role: Role | None = None
    number: int = 0
    stop_by: int | None = None
    #: It stops without an order of the supervisor.
    terminated: bool = False
    rss_bytes: int | None = None
    #: It was given to a worker, which may have been ordered to stop since.
    for_worker: bool = False
    #: None until the supervisor has reaped the process.
    exit: ExitRecord | None = None
    #: The claims of the dead process are released.
    rescued: bool = False
    parked: int | None = None
    #: The number of its process in the database.
    incarnation: int | None = None
    #: Of a worker; None before it has any.
    threads: ThreadsView | None = None
    #: Only those that a thread has, or had when its process died.
    slots: tuple[SlotView, ...] = ()
    claims: tuple[ClaimView, ...] = ()
    #: False if the process has claims that the board cannot show.
    complete: bool = True

    @property
    def may_have_claims(self) -> bool:
        """Whether its process is dead and could claim, and nothing has released its claims."""
        return self.role is Role.DEAD and not self.rescued and self.incarnation is not None

    @property
    def health(self) -> Health:
        return self.levels.health

    def to_dict(self, now: int | None, gone: Container[int] = ()) -> dict[str, object]:
        present = self.pid is not None and self.pid not in gone
        return {
            "seat": self.number,
            "pid": self.pid,
            "generation": self.generation,
            "restarts": self.generation - 1 if self.generation else None,
            "rss_bytes": self.rss_bytes if present else None,
            "health": self.health.value if present else None,
            "reasons": self.levels.reasons if present else [],
            "since": _seconds(now, self.since, 1),
            "threads": self.threads.to_dict() if present and self.threads else None,
            "slots": [slot.to_dict(now) for slot in self.slots if slot.number >= 0],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardView(SupervisorRecord):
    name: str
    #: What its workers claim.
    selected: Selected
    #: False if the machine was booted after the board was made: its times and pids mean nothing.
    this_boot: bool
    listening: bool
    armed: int
    suspects: bool
    undead: int
    restarts: dict[str, int]
    seats: tuple[SeatView, ...]

    @property
    def any_parked(self) -> bool:
        """Whether a worker waits for commands."""
        return any(seat.parked for seat in self.seats if seat.role is Role.WORKER)

    @property
    def claimers(self) -> dict[int, SeatView]:
        """The seats of living processes that may claim, by their incarnation."""
        return {s.incarnation: s for s in self.seats if s.incarnation and s.role in _CLAIMING}

    def with_role(self, role: Role) -> list[SeatView]:
        return sorted((s for s in self.seats if s.role is role), key=lambda seat: seat.number)

    @property
    def workers(self) -> dict[int, SeatView]:
        """By number: those that are wanted, and further ones that are there. While a successor
        starts it is the process that is ready; of two it is the successor."""
        seats = [SeatView(number=number) for number in range(self.wanted)]
        seats += sorted(
            self.with_role(Role.WORKER), key=lambda seat: (seat.ready is not None, seat.generation)
        )
        return {seat.number: seat for seat in seats}

    def to_dict(self, now: int | None, gone: Container[int] = ()) -> dict[str, object]:
        """As `cmdbus ps --json` shows it: `since` in seconds ago, `due` in seconds to come.
        Both are None without `now`. Pids that are `gone` have no health."""
        stewards, alone = self.with_role(Role.STEWARD), self.with_role(Role.QUARANTINE)
        steward = stewards[0] if stewards else SeatView()
        return {
            "name": self.name,
            "pid": self.pid,
            "state": self.state.name.lower() if self.state is not None else None,
            **asdict(self.selected),
            "seats": [seat.to_dict(now, gone) for _, seat in sorted(self.workers.items())],
            "steward": {
                "pid": steward.pid,
                "generation": steward.generation,
                "since": _seconds(now, steward.since, 1),
                "due": _seconds(now, steward.due, -1),
                "listening": self.listening,
                "armed": self.armed > 0,
            },
            "quarantine": alone[0].to_dict(now, gone) if alone else None,
        }


def _seconds(now: int | None, at: int | None, sign: int) -> float | None:
    return None if now is None or at is None else round(sign * (now - at) / _NS, 3)
