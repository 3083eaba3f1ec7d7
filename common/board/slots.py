"""The writer's side of a slot: a thread's phase, its command, and its due time."""

import threading
from uuid import UUID
from zlib import crc32

from cmdbus.board.board_memory import BoardMemory
from cmdbus.board.counters import Counters
from cmdbus.board.layout import CELL, IDENT, NAME, NAMES_AT, SLOT_AT
from cmdbus.board.record_format import format_of
from cmdbus.board.records import CommandType, Phase, SlotRecord

_SLOT = format_of(SlotRecord).struct
_pack = _SLOT.pack
# Looking a member up in its class takes 0.1 microseconds.
_RUNNING = Phase.RUNNING

#: Mask of the sequence to start with: after garbage in the cell, enough numbers are left above it.
_SEQUENCES = 2**48 - 1


class Slot:
    """The slot of one thread. Only that thread calls these methods, but `extend`, and it keeps its
    slot until it ends: a stuck thread's successor takes a spare slot, as the stuck one may write
    again at any time. Times are monotonic nanoseconds.
    """

    #: attempt, priority, id, token, command id, and whether its type is shown
    _NO_COMMAND = (0, 0, 0, 0, bytes(16), False)

    def __init__(self, memory: BoardMemory, at: int, index: int) -> None:
        #: Its position in its seat.
        self.index = index
        self._bytes = memory.bytes
        self._cells = memory.cells
        self._seal = at + SLOT_AT
        self._at = slice((self._seal + 1) * CELL, (self._seal + 1) * CELL + _SLOT.size)
        self._ident = at + IDENT
        names = (at + NAMES_AT) * CELL
        self._names_at = slice(names, names + 2 * NAME)
        self._named: CommandType | None = None
        self._crc = 0
        #: The number of the latest write, by which `mark_stuck` names it. Continues the sequence of
        #: the last thread of this slot.
        self.sequence = self._cells[self._seal + 1] & _SEQUENCES
        self._command = self._NO_COMMAND
        #: thread, number, backend pid, backend start
        self._thread = (0, -1, 0, 0)
        self._phase, self._since, self._due = Phase.IDLE, 0, 0
        self.counters = Counters(memory.cells, at)
        #: For what may be written while another thread extends the due time.
        self._lock = threading.Lock()

    def occupy(self, number: int, now: int) -> None:
        """`number` is the one that operators see; -1 for threads that run no commands."""
        self._cells[self._ident] = threading.get_ident()
        self._thread = (threading.get_native_id(), number, 0, 0)
        self._named = None
        self.end(now)

    def session(self, backend_pid: int, backend_start: int) -> None:
        """This thread's database session; 0, 0 if it has none. The start is the server's number
        that distinguishes this session from a later one of the same pid."""
        with self._lock:
            self._thread = (*self._thread[:2], backend_pid, backend_start)
            self._write()

    def begin(
        self,
        command_type: CommandType,
        priority: int,
        id: int,
        token: int,
        command_id: UUID,
        attempt: int,
        started: int,
        due: int,
    ) -> None:
        if command_type is not self._named:
            self._named = command_type
            self._bytes[self._names_at] = command_type.encoded
        self._crc = command_type.crc
        self._command = (attempt, priority, id, token, command_id.bytes, True)
        self._phase, self._since, self._due = _RUNNING, started, due
        self._write()

    def end(self, now: int) -> None:
        """Before the thread does anything but run the next command."""
        self.enter(Phase.IDLE, now, 0)

    def enter(self, phase: Phase, now: int, due: int) -> None:
        """Without a command. Called before the thread may block; overdue after `due`."""
        with self._lock:
            self._crc = 0
            self._command = self._NO_COMMAND
            self._phase, self._since, self._due = phase, now, due
            self._write()

    def extend(self, due: int) -> None:
        """Called by any thread, but not while the slot's own begins a command, which takes no lock.
        Also ends the mark of being stuck, which was about the earlier due time."""
        with self._lock:
            self._due = due
            self._write()

    def release(self) -> None:
        """The thread ends, and its slot is free."""
        self._cells[self._seal] = 0

    def _write(self) -> None:
        self.sequence = sequence = self.sequence + 1
        body = _pack(sequence, self._phase, self._since, self._due, *self._thread, *self._command)
        self._bytes[self._at] = body
        self._cells[self._seal] = crc32(body, self._crc)
