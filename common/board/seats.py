"""The writer's side of a seat: its process, the supervisor before and after that, the steward.

Nothing here waits for another process.
"""

import threading
from dataclasses import replace
from typing import Any
from zlib import crc32

from cmdbus.board import layout as offsets
from cmdbus.board.board_memory import BoardMemory, Cell, encode_name
from cmdbus.board.claim_table import ClaimTable
from cmdbus.board.health import HealthReport
from cmdbus.board.layout import CLAIM_CELLS, COMMAND_TYPE_CELLS, Layout
from cmdbus.board.records import (
    ClaimState,
    CommandType,
    ExitRecord,
    ProcessRecord,
    Role,
    SeatingRecord,
    Verdict,
)
from cmdbus.board.slots import Slot


class Seat:
    """A writer's handle on a seat. In the process of the seat, which makes one after the fork, any
    thread may call `command_type`, and the leader parks; the rest is for the main thread."""

    # Written by the supervisor.

    #: The stop deadline; 0 without an order to stop.
    stop_by = Cell(offsets.STOP_BY)
    #: The verdict for which it must stop; 0 (NONE) for an ordinary order.
    stop_verdict = Cell(offsets.STOP_VERDICT)
    #: The resident memory of its process, measured once a second.
    rss_bytes = Cell(offsets.RSS)
    #: 1 if it was given to a worker; its role no longer shows that once the worker must stop.
    for_worker = Cell(offsets.FOR_WORKER)

    #: The time at which the leader began to wait for work, written before it reads the arming for
    #: the last time; 0 if it does not wait.
    parked = Cell(offsets.PARKED)
    #: Written by the steward: the generation of the dead process that it has rescued.
    rescued = Cell(offsets.RESCUED)
    #: The number of its process in the database. Not in the record of heartbeats: a process that is
    #: killed while it writes that has claims to release, too.
    incarnation = Cell(offsets.INCARNATION)
    #: 1 once its process stops after a SIGTERM that the supervisor did not send.
    terminated = Cell(offsets.TERMINATED)
    #: Its number of threads, as ThreadsView writes it.
    threads = Cell(offsets.THREADS)

    def __init__(self, memory: BoardMemory, layout: Layout, seat: int) -> None:
        self._memory = memory
        self.cells = memory.cells
        self._layout = layout
        self.index = seat
        self.at = at = layout.seat(seat)
        self._lock = threading.Lock()
        self._command_types: dict[tuple[str, str], CommandType] = {}
        self.claims = ClaimTable(memory, at)
        self._process = ProcessRecord()

    def slot(self, index: int) -> Slot:
        return Slot(self._memory, self._layout.slot(self.index, index), index)

    # For the supervisor.

    def assign(self, role: Role, *, number: int, generation: int) -> None:
        """Gives the seat to a process that starts next. Clears all but the counters, names and
        sequences: the process before must be dead, and its claims released."""
        memory, at = self._memory, self.at
        memory.zero(at + offsets.STOP_BY, offsets.CLAIMS - offsets.STOP_BY)
        for key in range(at + offsets.CLAIMS, at + offsets.COMMAND_TYPES, CLAIM_CELLS):
            self.cells[key] &= -len(ClaimState)
        for slot in range(self._layout.slots):
            start = self._layout.slot(self.index, slot)
            memory.zero(start + offsets.SLOT_AT, 1)  # The next cell is the sequence.
            memory.zero(start + offsets.SLOT_AT + 2, offsets.COUNTERS - offsets.SLOT_AT - 2)
        self.for_worker = int(role is Role.WORKER)
        self.set_identity(role, number, generation)

    def order_to_stop(
        self, number: int, generation: int, by: int, verdict: Verdict = Verdict.NONE
    ) -> None:
        """The process reads this at a TERM, and at every heartbeat."""
        self.stop_verdict = verdict
        self.stop_by = by
        self.set_identity(Role.STOPPING, number, generation)

    def record_exit(self, number: int, exit_record: ExitRecord) -> None:
        """After the process was reaped. The steward then releases its claims."""
        self._memory.write(self.at + offsets.EXIT_AT, exit_record)
        self.set_identity(Role.DEAD, number, exit_record.generation)

    def clear(self) -> None:
        """Only after the claims of its dead process are released."""
        self.set_identity(Role.SPARE, 0, 0)

    def set_identity(self, role: Role, number: int, generation: int) -> None:
        """Also repairs a record that was overwritten."""
        seating = SeatingRecord(role=role, number=number, generation=generation)
        self._memory.write(self.at + offsets.SEATING_AT, seating)

    # For the process.

    def enter(self, *, pid: int, generation: int, now: int, due: int | None = None) -> None:
        """The first call of a process; its seat does not show it before. It is overdue unless it
        is ready, or sends a heartbeat, by `due`."""
        self._publish(pid=pid, generation=generation, since=now, due=due)

    def register(self, incarnation: int) -> None:
        self.incarnation = incarnation

    def ready(self, now: int) -> None:
        self._publish(ready=now)

    @property
    def is_ready(self) -> bool:
        return self._process.ready is not None

    def beat(self, due: int, levels: HealthReport) -> None:
        """A heartbeat. `due`: the time after which the next one is overdue."""
        self._publish(due=due, levels=levels)

    def mark_stuck(self, slot: int, sequence: int) -> None:
        """Marks the slot's thread as stuck, unless it shows another sequence by now."""
        self.cells[self._layout.slot(self.index, slot) + offsets.STUCK_SEQUENCE] = sequence

    def command_type(self, domain: str, type: str) -> CommandType:
        """The same object for the same names. Types beyond the table's size share a row."""
        return self._command_types.get((domain, type)) or self._add_command_type(domain, type)

    def _add_command_type(self, domain: str, type: str) -> CommandType:
        encoded = encode_name(domain, type)
        with self._lock:
            index = self._command_type_index(encoded)
            command_type = CommandType(index, domain, type, encoded, crc32(encoded))
            return self._command_types.setdefault((domain, type), command_type)

    def _command_type_index(self, name: bytes) -> int:
        """The row of a name, added if it is new; that of all others if the table is full. A name
        that a killed process left half-written is overwritten: no counter uses it."""
        for index in range(self._layout.command_types):
            at = self.at + offsets.COMMAND_TYPES + index * COMMAND_TYPE_CELLS
            found = self._memory.read_bytes(at, len(name))
            if found is None:
                self._memory.write_bytes(at, name)
                return index
            if found == name:
                return index
        return self._layout.command_types

    def _publish(self, **changes: Any) -> None:
        self._process = replace(self._process, **changes)
        self._memory.write(self.at + offsets.PROCESS_AT, self._process)
