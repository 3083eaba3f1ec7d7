"""Reads the board into values. Never waits for a writer, and never fails on garbage."""

from collections.abc import Iterable
from mmap import mmap
from uuid import UUID
from zlib import crc32

from cmdbus.board import layout as offsets
from cmdbus.board.board_memory import BoardMemory, cell, decode_name
from cmdbus.board.counters import OTHER, CountersView, LoadView, OutcomeLabel, load_of, sum_of
from cmdbus.board.layout import CELL, CLAIM_CELLS, NAME, ROW_CELLS, Layout
from cmdbus.board.record_format import fields_of, format_of
from cmdbus.board.records import (
    ClaimState,
    CommandState,
    ExitRecord,
    Phase,
    ProcessRecord,
    Restart,
    Role,
    SeatingRecord,
    SlotRecord,
    SlotState,
    SupervisorRecord,
)
from cmdbus.board.selected import SIZE, Selected
from cmdbus.board.threads import ThreadsView
from cmdbus.board.views import BoardView, ClaimView, CommandView, SeatView, SlotView

_FORMAT = format_of(SlotRecord)
_SLOT_BYTES = (offsets.IDENT + 1) * CELL
_BODY = slice((offsets.SLOT_AT + 1) * CELL, (offsets.SLOT_AT + 1) * CELL + _FORMAT.struct.size)
_SELECTED = slice(offsets.SELECTED * CELL, offsets.SELECTED * CELL + SIZE)
_NAMES = slice(offsets.NAMES_AT * CELL, offsets.NAMES_AT * CELL + 2 * NAME)
_STUCK_SEQUENCE = slice(offsets.STUCK_SEQUENCE * CELL, (offsets.STUCK_SEQUENCE + 1) * CELL)
_IDENT = slice(offsets.IDENT * CELL, (offsets.IDENT + 1) * CELL)


class Reader:
    """Of one board. It keeps the view of a slot until that changes."""

    #: The first of its cells.
    at = 0

    def __init__(self, memory: mmap, layout: Layout, this_boot: bool) -> None:
        self.layout = layout
        self._this_boot = this_boot
        self._memory = BoardMemory(memory)
        self.cells = self._memory.cells
        self._known: dict[int, tuple[bytes, SlotView]] = {}

    def close(self) -> None:
        self._memory.close()

    def snapshot(self, *, claims: bool = True) -> BoardView:
        """Without claims, which only the steward needs, it costs a fifth."""
        memory, cells = self._memory, self._memory.cells
        name = bytes(memory.bytes[offsets.BOARD_NAME * CELL : offsets.BOARD_NAME * CELL + NAME])
        supervisor = memory.read(offsets.SUPERVISOR_AT, SupervisorRecord) or SupervisorRecord()
        return BoardView(
            **fields_of(supervisor, SupervisorRecord),
            name=decode_name(name),
            selected=Selected.decode(bytes(memory.bytes[_SELECTED])),
            this_boot=self._this_boot,
            listening=cells[offsets.LISTENING] == 1,
            armed=max(0, cells[offsets.ARMED]),
            suspects=cells[offsets.SUSPECTS] > 0,
            undead=min(max(0, cells[offsets.UNDEAD]), self.layout.seats),
            restarts={
                reason.name.lower(): max(0, cells[offsets.RESTARTS + reason]) for reason in Restart
            },
            seats=tuple(self.seat_view(seat, claims) for seat in range(self.layout.seats)),
        )

    def seat_view(self, seat: int, claims: bool = True) -> SeatView:
        at, cells, read = self.layout.seat(seat), self._memory.cells, self._memory.read
        seating = read(at + offsets.SEATING_AT, SeatingRecord) or SeatingRecord()
        generation, is_used = seating.generation, seating.role != Role.SPARE
        process = read(at + offsets.PROCESS_AT, ProcessRecord)
        if process is None or process.generation != generation:
            process = ProcessRecord(generation=generation)
        exit_record = read(at + offsets.EXIT_AT, ExitRecord)
        if exit_record is not None and exit_record.generation != generation:
            exit_record = None
        return SeatView(
            **fields_of(process, ProcessRecord),
            index=seat,
            role=seating.role,
            number=seating.number,
            stop_by=_positive(cells[at + offsets.STOP_BY]),
            terminated=cells[at + offsets.TERMINATED] == 1,
            rss_bytes=_positive(cells[at + offsets.RSS]),
            for_worker=cells[at + offsets.FOR_WORKER] == 1,
            exit=exit_record,
            rescued=exit_record is not None and cells[at + offsets.RESCUED] == generation,
            parked=_positive(cells[at + offsets.PARKED]),
            incarnation=_positive(cells[at + offsets.INCARNATION]) if is_used else None,
            threads=ThreadsView.from_cell(cells[at + offsets.THREADS]) if is_used else None,
            slots=tuple(self._slots(at)) if is_used else (),
            claims=tuple(self._claims(at)) if is_used and claims else (),
            complete=cells[at + offsets.OVERFLOWED] == 0,
        )

    def executed(self, seat: int) -> int:
        """Executions that have ended in this seat, over all its processes."""
        cells, layout = self._memory.cells, self.layout
        total = 0
        for slot in range(layout.slots):
            rows = layout.slot(seat, slot) + offsets.ROWS
            for row in range(layout.command_types + 1):
                at = rows + row * ROW_CELLS
                total += sum(cells[at : at + len(OutcomeLabel)])
        return total

    def load(self, seat: int) -> LoadView:
        """What the threads of this seat have done, over all its processes."""
        layout = self.layout
        rows = sum(1 for _ in self._command_types(layout.seat(seat)))
        if rows == layout.command_types:
            rows += 1  # that of all others
        slots = [layout.slot(seat, slot) for slot in range(layout.slots)]
        return load_of(self.cells, slots, rows)

    def counters(self) -> CountersView:
        layout, slots = self.layout, []
        for seat in range(layout.seats):
            command_types = list(enumerate(self._command_types(layout.seat(seat))))
            command_types.append((layout.command_types, OTHER))
            slots += [(layout.slot(seat, slot), command_types) for slot in range(layout.slots)]
        return sum_of(self.cells, slots)

    def _command_types(self, seat_at: int) -> Iterable[tuple[str, str]]:
        """Up to the first row of the table that is empty."""
        for index in range(self.layout.command_types):
            at = seat_at + offsets.COMMAND_TYPES + index * offsets.COMMAND_TYPE_CELLS
            names = self._memory.read_bytes(at, 2 * NAME)
            if names is None:
                return
            yield decode_name(names[:NAME]), decode_name(names[NAME:])

    def _slots(self, seat_at: int) -> Iterable[SlotView]:
        cells, layout = self.cells, self.layout
        for slot in range(layout.slots):
            at = seat_at + layout.slots_at + slot * layout.slot_cells
            if cells[at + offsets.SLOT_AT]:
                yield self._slot(at, slot)

    def _slot(self, at: int, index: int) -> SlotView:
        known, view = self._known.get(at, (b"", None))
        raw = self._memory.read_whole(at, _SLOT_BYTES, lambda raw: raw == known or _is_whole(raw))
        if raw is None:
            return SlotView(index=index, number=index)
        if view is None or raw != known:
            view = _slot_view(raw, index)
            self._known[at] = raw, view
        return view

    def _claims(self, seat_at: int) -> Iterable[ClaimView]:
        start = seat_at + offsets.CLAIMS
        end = start + offsets.CLAIM_COUNT * CLAIM_CELLS
        raw = bytes(self._memory.bytes[start * CELL : end * CELL])
        cells = memoryview(raw).cast("q").tolist()
        if not any(state & 3 for state in cells[::CLAIM_CELLS]):
            return
        after = self._memory.cells[start:end:CLAIM_CELLS].tolist()
        for at, then in zip(range(0, len(cells), CLAIM_CELLS), after, strict=True):
            before, id, token = cells[at : at + 3]
            if before >> 2 != then >> 2 or not before & 3 or not then & 3:
                continue  # It was claimed or freed meanwhile.
            command_id = UUID(bytes=raw[(at + 3) * CELL : (at + 5) * CELL])
            if id > 0 and token > 0:
                yield ClaimView(
                    id=id,
                    token=token,
                    command_id=command_id,
                    state=ClaimState(then & 3),
                    lost_at=start + at + offsets.CLAIM_LOST,
                    mark=then >> 2,
                )


def _is_whole(raw: bytes) -> bool:
    body = raw[_BODY]
    named = raw[_BODY.stop - CELL : _BODY.stop] != bytes(CELL)
    return cell(raw[offsets.SLOT_AT * CELL :]) == crc32(body, crc32(raw[_NAMES]) if named else 0)


def _slot_view(raw: bytes, index: int) -> SlotView:
    record: SlotRecord = _FORMAT.unpack(raw[_BODY])
    command = None
    if record.named:
        names = raw[_NAMES]
        command = CommandView(
            **fields_of(record.command, CommandState),
            domain=decode_name(names[:NAME]),
            type=decode_name(names[NAME:]),
        )
    state = fields_of(record, SlotState)
    if cell(raw[_STUCK_SEQUENCE]) == record.sequence:
        state["phase"] = Phase.STUCK
    return SlotView(**state, index=index, command=command, ident=cell(raw[_IDENT]) or None)


def _positive(value: int) -> int | None:
    return value if value > 0 else None
