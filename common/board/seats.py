"""How a process writes its seat, and the supervisor before and after it.

Nothing here waits for another process.
"""

import threading
from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID
from zlib import crc32

from cmdbus.board.board_memory import BoardMemory, decode_name, encode_name
from cmdbus.board.claim_table import ClaimState, ClaimTable, packed
from cmdbus.board.health import HealthReport
from cmdbus.board.layout import (
    CLAIM_CELLS,
    CLAIMS,
    COMMAND_TYPE_CELLS,
    COMMAND_TYPES,
    EXIT,
    EXIT_AT,
    IDENT,
    NAME,
    PARKED,
    PROCESS,
    PROCESS_AT,
    RESCUED,
    RSS,
    SEATING,
    SEATING_AT,
    SLOT_AT,
    STOP_BY,
    STOP_VERDICT,
    VERDICT,
    Layout,
)
from cmdbus.board.slots import CommandType, Slot

_NS = 1_000_000_000
#: The command of a verdict for which no slot is known.
NO_COMMAND = UUID(int=0)


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


class Seat:
    """One process's place. Make it after the fork, once; only its main thread beats, judges
    and registers. `kind` may be called by any thread."""

    def __init__(self, memory: BoardMemory, layout: Layout, seat: int) -> None:
        self._memory = memory
        self._layout = layout
        self._index = seat
        self._at = at = layout.seat(seat)
        self._lock = threading.Lock()
        self._command_types: dict[tuple[str, str], CommandType] = {}
        self.keys = ClaimTable(memory, at)
        self._pid = self._generation = self._incarnation = 0
        self._since = self._ready = self._due = 0
        self._levels = HealthReport()

    def slot(self, number: int) -> Slot:
        return Slot(self._memory, self._layout.slot(self._index, number))

    # For the supervisor.

    def assign(self, role: Role, *, number: int, generation: int, now: int) -> None:
        """Gives the seat to a process to come. The one before must be dead, and what it left
        must have been read: all but the counters is cleared."""
        memory, at = self._memory, self._at
        memory.zero(at + PROCESS_AT, CLAIMS - PROCESS_AT)
        for key in range(at + CLAIMS, at + COMMAND_TYPES, CLAIM_CELLS):
            memory.cells[key] &= -len(ClaimState)
        for slot in range(self._layout.slots):
            start = self._layout.slot(self._index, slot)
            memory.zero(start + SLOT_AT, 1)
            memory.zero(start + SLOT_AT + 2, IDENT - 2 + 1)
        memory.cells[at + STOP_BY] = memory.cells[at + STOP_VERDICT] = 0
        memory.cells[at + RSS] = 0
        self.set_identity(role, number, generation, now)

    def order_to_stop(
        self, number: int, generation: int, by: int, now: int, verdict: Verdict = Verdict.NONE
    ) -> None:
        """The process looks at it when it gets a TERM, and at every beat."""
        self._memory.cells[self._at + STOP_VERDICT] = verdict
        self._memory.cells[self._at + STOP_BY] = by
        self.set_identity(Role.STOPPING, number, generation, now)

    def set_rss(self, rss_bytes: int) -> None:
        """The resident memory of its process, measured now and then."""
        self._memory.cells[self._at + RSS] = rss_bytes

    def record_exit(self, number: int, exit_record: ExitRecord, now: int) -> None:
        """After the process was reaped. What it held is the steward's to hand back."""
        body = EXIT.pack(
            exit_record.generation,
            exit_record.pid,
            exit_record.signal,
            exit_record.code,
            exit_record.verdict,
            exit_record.slot,
            exit_record.token,
            exit_record.quarantined,
            exit_record.command_id.bytes,
        )
        self._memory.write(self._at + EXIT_AT, body)
        self.set_identity(Role.DEAD, number, exit_record.generation, now)

    def clear(self, now: int) -> None:
        """Nothing is left of the dead: the seat is free."""
        self.set_identity(Role.SPARE, 0, 0, now)

    def set_identity(self, role: Role, number: int, generation: int, now: int) -> None:
        """Whose it is; also where something else was written over that."""
        self._memory.write(self._at + SEATING_AT, SEATING.pack(role, number, generation, now))

    # For the steward.

    def set_rescued(self, generation: int) -> None:
        """What the dead process of this generation held is handed back."""
        self._memory.cells[self._at + RESCUED] = generation

    def free(self, key: int) -> None:
        """The same for one of its keys, by the place that its view names."""
        self._memory.cells[key] &= -len(ClaimState)

    # For the process.

    @property
    def stop_by(self) -> int:
        """When it must have left; 0 while it may stay."""
        return self._memory.cells[self._at + STOP_BY]

    @property
    def stop_verdict(self) -> int:
        """The verdict that it must leave for; 0 (NONE) for an order to stop."""
        return self._memory.cells[self._at + STOP_VERDICT]

    def enter(self, *, pid: int, generation: int, now: int) -> None:
        """The first thing that a process does; its seat shows nothing of it before."""
        self._pid, self._generation, self._since = pid, generation, now
        self._write()

    def starting(self, due: int) -> None:
        """It will be ready, or beat, by then."""
        self._due = due
        self._write()

    def register(self, incarnation: int) -> None:
        self._incarnation = incarnation
        self._write()

    def ready(self, now: int) -> None:
        self._ready = now
        self._write()

    def beat(self, due: int, levels: HealthReport) -> None:
        """`due`: when the main thread will be back here at the latest."""
        self._due, self._levels = due, levels
        self._write()

    def set_levels(self, slot: int, sequence: int) -> None:
        """The slot's thread is given up, if it still shows the sequence that was judged."""
        self._memory.cells[self._layout.slot(self._index, slot) + VERDICT] = sequence

    def park(self, now: int) -> None:
        """For who has the lead: before it looks at the arming for the last time."""
        self._memory.cells[self._at + PARKED] = now

    def unpark(self) -> None:
        self._memory.cells[self._at + PARKED] = 0

    def command_type(self, domain: str, type: str) -> CommandType:
        """The same for the same names. Beyond what the table holds, those share a row."""
        return self._command_types.get((domain, type)) or self._add_command_type(domain, type)

    def _add_command_type(self, domain: str, type: str) -> CommandType:
        encoded = encode_name(domain, type)
        with self._lock:
            index = self._command_type_index(encoded)
            command_type = CommandType(
                index, domain, type, packed(index, domain), encoded, crc32(encoded)
            )
            return self._command_types.setdefault((domain, type), command_type)

    def _command_type_index(self, name: bytes) -> int:
        """Where a name is in the table of kinds, or now is; the row of all others if the table
        is full. A name that was being written when its process was killed is overwritten:
        nothing is counted by it."""
        for index in range(self._layout.command_types):
            at = self._at + COMMAND_TYPES + index * COMMAND_TYPE_CELLS
            found = self._memory.read_bytes(at, len(name))
            if found is None:
                self._memory.write(at, name)
                return index
            if found == name:
                return index
        return self._layout.command_types

    def _write(self) -> None:
        levels = self._levels
        body = PROCESS.pack(
            self._pid,
            self._generation,
            self._incarnation,
            self._since,
            self._ready,
            self._due,
            int((levels.last_success or 0) * _NS),
            levels.consecutive_failures,
            levels.stuck_threads,
            levels.pool_exhaustions,
            levels.database_away,
        )
        self._memory.write(self._at + PROCESS_AT, body)


def names_of(
    memory: BoardMemory, at: int, stride: int, count: int, names: int
) -> list[tuple[str, ...]]:
    """A seat's table of names, up to the first place that is empty."""
    found: list[tuple[str, ...]] = []
    for index in range(count):
        raw = memory.read_bytes(at + index * stride, names * NAME)
        if raw is None:
            break
        found.append(tuple(decode_name(raw[n * NAME : (n + 1) * NAME]) for n in range(names)))
    return found
