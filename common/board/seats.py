"""How a process writes its seat, and the supervisor before and after it.

Nothing here waits for another process.
"""

import threading
from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID
from zlib import crc32

from cmdbus.board.board_memory import Cells, decode_name, encode_name
from cmdbus.board.claim_table import Keys, KeyState, packed
from cmdbus.board.health import Levels
from cmdbus.board.layout import (
    ENDED,
    ENDED_AT,
    IDENT,
    KEY_CELLS,
    KEYS,
    KIND_CELLS,
    KINDS,
    LEAVE_BY,
    LEAVE_VERDICT,
    NAME,
    PARKED,
    PROCESS,
    PROCESS_AT,
    RESCUED,
    RSS,
    SEATING,
    SEATING_AT,
    SLOT_AT,
    VERDICT,
    Layout,
)
from cmdbus.board.slots import Kind, Slot

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
    ALONE = 3
    #: Ordered to leave; another process has its number, or nobody needs one.
    LEAVING = 4
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
class Ended:
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
    alone: bool = False
    #: Its supervisor had died before, so that how it ended is not known. Never on the board.
    orphaned: bool = False


class Seat:
    """One process's place. Make it after the fork, once; only its main thread beats, judges
    and registers. `kind` may be called by any thread."""

    def __init__(self, memory: Cells, layout: Layout, seat: int) -> None:
        self._memory = memory
        self._layout = layout
        self._number = seat
        self._at = at = layout.seat(seat)
        self._lock = threading.Lock()
        self._kinds: dict[tuple[str, str], Kind] = {}
        self.keys = Keys(memory, at)
        self._pid = self._generation = self._incarnation = 0
        self._since = self._ready = self._due = 0
        self._levels = Levels()

    def slot(self, number: int) -> Slot:
        return Slot(self._memory, self._layout.slot(self._number, number))

    # For the supervisor.

    def assign(self, role: Role, *, number: int, generation: int, now: int) -> None:
        """Gives the seat to a process to come. The one before must be dead, and what it left
        must have been read: all but the counters is cleared."""
        memory, at = self._memory, self._at
        memory.zero(at + PROCESS_AT, KEYS - PROCESS_AT)
        for key in range(at + KEYS, at + KINDS, KEY_CELLS):
            memory.cells[key] &= -len(KeyState)
        for slot in range(self._layout.slots):
            start = self._layout.slot(self._number, slot)
            memory.zero(start + SLOT_AT, 1)
            memory.zero(start + SLOT_AT + 2, IDENT - 2 + 1)
        memory.cells[at + LEAVE_BY] = memory.cells[at + LEAVE_VERDICT] = 0
        memory.cells[at + RSS] = 0
        self.say_whose(role, number, generation, now)

    def order_to_leave(
        self, number: int, generation: int, by: int, now: int, verdict: Verdict = Verdict.NONE
    ) -> None:
        """The process looks at it when it gets a TERM, and at every beat."""
        self._memory.cells[self._at + LEAVE_VERDICT] = verdict
        self._memory.cells[self._at + LEAVE_BY] = by
        self.say_whose(Role.LEAVING, number, generation, now)

    def weigh(self, rss_bytes: int) -> None:
        """The resident memory of its process, measured now and then."""
        self._memory.cells[self._at + RSS] = rss_bytes

    def bury(self, number: int, ended: Ended, now: int) -> None:
        """After the process was reaped. What it held is the steward's to hand back."""
        body = ENDED.pack(
            ended.generation,
            ended.pid,
            ended.signal,
            ended.code,
            ended.verdict,
            ended.slot,
            ended.token,
            ended.alone,
            ended.command_id.bytes,
        )
        self._memory.write(self._at + ENDED_AT, body)
        self.say_whose(Role.DEAD, number, ended.generation, now)

    def clear(self, now: int) -> None:
        """Nothing is left of the dead: the seat is free."""
        self.say_whose(Role.SPARE, 0, 0, now)

    def say_whose(self, role: Role, number: int, generation: int, now: int) -> None:
        """Whose it is; also where something else was written over that."""
        self._memory.write(self._at + SEATING_AT, SEATING.pack(role, number, generation, now))

    # For the steward.

    def rescue(self, generation: int) -> None:
        """What the dead process of this generation held is handed back."""
        self._memory.cells[self._at + RESCUED] = generation

    def free(self, key: int) -> None:
        """The same for one of its keys, by the place that its view names."""
        self._memory.cells[key] &= -len(KeyState)

    # For the process.

    @property
    def leave_by(self) -> int:
        """When it must have left; 0 while it may stay."""
        return self._memory.cells[self._at + LEAVE_BY]

    @property
    def leave_verdict(self) -> int:
        """The verdict that it must leave for; 0 (NONE) for an order to stop."""
        return self._memory.cells[self._at + LEAVE_VERDICT]

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

    def beat(self, due: int, levels: Levels) -> None:
        """`due`: when the main thread will be back here at the latest."""
        self._due, self._levels = due, levels
        self._write()

    def judge(self, slot: int, sequence: int) -> None:
        """The slot's thread is given up, if it still shows the sequence that was judged."""
        self._memory.cells[self._layout.slot(self._number, slot) + VERDICT] = sequence

    def park(self, now: int) -> None:
        """For who has the lead: before it looks at the arming for the last time."""
        self._memory.cells[self._at + PARKED] = now

    def unpark(self) -> None:
        self._memory.cells[self._at + PARKED] = 0

    def kind(self, domain: str, type: str) -> Kind:
        """The same for the same names. Beyond what the table holds, those share a row."""
        return self._kinds.get((domain, type)) or self._add_kind(domain, type)

    def _add_kind(self, domain: str, type: str) -> Kind:
        encoded = encode_name(domain, type)
        with self._lock:
            index = self._index(encoded)
            kind = Kind(index, domain, type, packed(index, domain), encoded, crc32(encoded))
            return self._kinds.setdefault((domain, type), kind)

    def _index(self, name: bytes) -> int:
        """Where a name is in the table of kinds, or now is; the row of all others if the table
        is full. A name that was being written when its process was killed is overwritten:
        nothing is counted by it."""
        for index in range(self._layout.kinds):
            at = self._at + KINDS + index * KIND_CELLS
            found = self._memory.read_bytes(at, len(name))
            if found is None:
                self._memory.write(at, name)
                return index
            if found == name:
                return index
        return self._layout.kinds

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


def names_of(memory: Cells, at: int, stride: int, count: int, names: int) -> list[tuple[str, ...]]:
    """A seat's table of names, up to the first place that is empty."""
    found: list[tuple[str, ...]] = []
    for index in range(count):
        raw = memory.read_bytes(at + index * stride, names * NAME)
        if raw is None:
            break
        found.append(tuple(decode_name(raw[n * NAME : (n + 1) * NAME]) for n in range(names)))
    return found
