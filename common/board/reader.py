"""Reads the board into values. Never waits for a writer, and never fails on what it reads."""

from collections.abc import Iterable
from enum import IntEnum
from typing import TypeVar
from uuid import UUID
from zlib import crc32

from cmdbus.board.board_memory import BoardMemory, cell, decode_name, pause, tries
from cmdbus.board.claim_table import hash_of, unpacked
from cmdbus.board.counters import OTHER, CountersView, OutcomeLabel, Sum
from cmdbus.board.health import HealthReport
from cmdbus.board.layout import (
    ARMED,
    BOARD_NAME,
    CELL,
    CLAIM_CELLS,
    CLAIM_COUNT,
    CLAIMS,
    COMMAND_TYPE_CELLS,
    COMMAND_TYPES,
    EXIT,
    EXIT_AT,
    IDENT,
    LISTENING,
    NAME,
    NAMES_AT,
    OVERFLOWED,
    PARKED,
    PROCESS,
    PROCESS_AT,
    RESCUED,
    RESTARTS,
    ROW_CELLS,
    ROWS,
    RSS,
    SEATING,
    SEATING_AT,
    SLOT,
    SLOT_AT,
    STOP_BY,
    SUPERVISOR,
    SUPERVISOR_AT,
    SUSPECTS,
    UNDEAD,
    VERDICT,
    Layout,
)
from cmdbus.board.records import (
    ClaimState,
    ExitRecord,
    Phase,
    Restart,
    Role,
    SupervisorState,
    Verdict,
)
from cmdbus.board.views import BoardView, ClaimView, CommandView, SeatView, SlotView

_NS = 1_000_000_000
_MAX_PID = 2**22
_SLOT_BYTES = (IDENT + 1) * CELL
_BODY = slice((SLOT_AT + 1) * CELL, (SLOT_AT + 1) * CELL + SLOT.size)
_NAMES = slice(NAMES_AT * CELL, NAMES_AT * CELL + 2 * NAME)
_VERDICT = slice(VERDICT * CELL, (VERDICT + 1) * CELL)
_IDENT = slice(IDENT * CELL, (IDENT + 1) * CELL)


class Reader:
    """Reads one board, again and again: a slot that has not changed is not made anew."""

    def __init__(self, memory: BoardMemory, layout: Layout) -> None:
        self._memory = memory
        self._layout = layout
        self._known: dict[int, tuple[bytes, SlotView]] = {}
        # Made from the shape each time they are asked for, which is for every slot of a look.
        self._slots_at, self._slot_cells = layout.slots_at, layout.slot_cells

    def read(self, this_boot: bool, keys: bool = True) -> BoardView:
        memory, cells = self._memory, self._memory.cells
        name = bytes(memory.bytes[BOARD_NAME * CELL : BOARD_NAME * CELL + NAME])
        supervisor = memory.read(SUPERVISOR_AT, SUPERVISOR)
        pid, state, since, due, wanted = supervisor or (0, -1, 0, 0, 0)
        return BoardView(
            name=decode_name(name),
            this_boot=this_boot,
            pid=_pid(pid),
            state=_member(SupervisorState, state),
            since=_time(since),
            due=_time(due),
            wanted=min(max(0, wanted), self._layout.seats),
            listening=cells[LISTENING] == 1,
            armed=max(0, cells[ARMED]),
            suspects=cells[SUSPECTS] > 0,
            undead=min(max(0, cells[UNDEAD]), self._layout.seats),
            restarts={reason.name.lower(): max(0, cells[RESTARTS + reason]) for reason in Restart},
            seats=tuple(self.seat(seat, keys) for seat in range(self._layout.seats)),
        )

    def seat(self, seat: int, keys: bool = True) -> SeatView:
        at = self._layout.seat(seat)
        role, number, generation, _ = self._memory.read(at + SEATING_AT, SEATING) or (-1, 0, 0, 0)
        process = self._memory.read(at + PROCESS_AT, PROCESS)
        if process is None or process[1] != generation:
            process = (0,) * 11
        pid, _, incarnation, since, ready, due, *levels = process
        cells = self._memory.cells
        exit_record = self._ended(at, generation)
        return SeatView(
            index=seat,
            role=_member(Role, role),
            number=number,
            generation=generation,
            pid=_pid(pid),
            incarnation=incarnation if incarnation > 0 else None,
            since=_time(since),
            ready=_time(ready),
            due=_time(due),
            levels=_levels(*levels),
            stop_by=_time(cells[at + STOP_BY]),
            rss_bytes=cells[at + RSS] if cells[at + RSS] > 0 else None,
            exit=exit_record,
            rescued=exit_record is not None and cells[at + RESCUED] == generation,
            parked=_time(cells[at + PARKED]),
            slots=tuple(self._slots(at)) if role != Role.SPARE else (),
            claims=tuple(self._claims(at)) if role != Role.SPARE and keys else (),
            complete=cells[at + OVERFLOWED] == 0,
        )

    def _ended(self, seat_at: int, generation: int) -> ExitRecord | None:
        record = self._memory.read(seat_at + EXIT_AT, EXIT)
        if record is None or record[0] != generation:
            return None
        _, pid, signal, code, verdict, slot, token, alone, command_id = record
        return ExitRecord(
            generation=generation,
            pid=pid,
            signal=signal,
            code=code,
            verdict=_member(Verdict, verdict) or Verdict.NONE,
            slot=slot,
            token=token,
            quarantined=alone == 1,
            command_id=UUID(bytes=command_id),
        )

    def slot(self, seat: int, slot: int) -> SlotView:
        return self._slot(self._layout.slot(seat, slot), slot)

    def executed(self, seat: int) -> int:
        cells, layout = self._memory.cells, self._layout
        total = 0
        for slot in range(layout.slots):
            rows = layout.slot(seat, slot) + ROWS
            for kind in range(layout.command_types + 1):
                at = rows + kind * ROW_CELLS
                total += sum(cells[at : at + len(OutcomeLabel)])
        return total

    def counters(self) -> CountersView:
        layout, total = self._layout, Sum(self._memory.cells)
        for seat in range(layout.seats):
            at = layout.seat(seat)
            names = names_of(
                self._memory, at + COMMAND_TYPES, COMMAND_TYPE_CELLS, layout.command_types, 2
            )
            command_types = [(index, (domain, type)) for index, (domain, type) in enumerate(names)]
            command_types.append((layout.command_types, OTHER))
            for slot in range(layout.slots):
                total.add(layout.slot(seat, slot), command_types)
        return total.view()

    def _slots(self, seat_at: int) -> Iterable[SlotView]:
        cells, first, stride = self._memory.cells, seat_at + self._slots_at, self._slot_cells
        for slot in range(self._layout.slots):
            at = first + slot * stride
            if cells[at + SLOT_AT]:
                yield self._slot(at, slot)

    def _slot(self, at: int, index: int) -> SlotView:
        raw = b""
        for attempt in tries():
            raw = bytes(self._memory.bytes[at * CELL : at * CELL + _SLOT_BYTES])
            known = self._known.get(at)
            if known is not None and known[0] == raw:
                return known[1]
            if _is_whole(raw):
                view = _slot_view(raw, index)
                self._known[at] = raw, view
                return view
            pause(attempt)
        return _unknown_slot(index)

    def _claims(self, seat_at: int) -> Iterable[ClaimView]:
        start, end = seat_at + CLAIMS, seat_at + CLAIMS + CLAIM_COUNT * CLAIM_CELLS
        raw = bytes(self._memory.bytes[start * CELL : end * CELL])
        cells = memoryview(raw).cast("q").tolist()
        if not any(state & 3 for state in cells[::CLAIM_CELLS]):
            return
        after = self._memory.cells[start:end:CLAIM_CELLS].tolist()
        kinds = names_of(
            self._memory, seat_at + COMMAND_TYPES, COMMAND_TYPE_CELLS, self._layout.command_types, 2
        )
        domains = {hash_of(domain): domain for domain, _ in kinds}
        for index, then in enumerate(after):
            at = index * CLAIM_CELLS
            before, id, token, packed = cells[at : at + 4]
            if before >> 2 != then >> 2 or not before & 3 or not then & 3:
                continue  # It was taken or let go meanwhile.
            if id <= 0 or token <= 0:
                continue
            kind, domain_hash, priority = unpacked(packed)
            yield ClaimView(
                domain=domains.get(domain_hash),
                domain_hash=domain_hash,
                priority=priority,
                id=id,
                token=token,
                command_id=UUID(bytes=raw[(at + 4) * CELL : (at + CLAIM_CELLS) * CELL]),
                state=ClaimState(then & 3),
                index=start + at,
                command_type=min(kind, self._layout.command_types),
            )


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


def _is_whole(raw: bytes) -> bool:
    body = raw[_BODY]
    named = raw[_BODY.stop - CELL : _BODY.stop] != bytes(CELL)
    return cell(raw[SLOT_AT * CELL :]) == crc32(body, crc32(raw[_NAMES]) if named else 0)


def _slot_view(raw: bytes, index: int) -> SlotView:
    (
        sequence,
        phase,
        since,
        due,
        attempt,
        priority,
        id,
        token,
        command_id,
        thread,
        number,
        backend_pid,
        backend_start,
        named,
    ) = SLOT.unpack(raw[_BODY])
    command = None
    if named:
        names = raw[_NAMES]
        command = CommandView(
            domain=decode_name(names[:NAME]),
            type=decode_name(names[NAME:]),
            command_id=UUID(bytes=command_id),
            attempt=attempt,
            priority=priority,
            id=id,
            token=token,
        )
    judged = cell(raw[_VERDICT]) == sequence
    return SlotView(
        index=index,
        number=number,
        phase=Phase.STUCK if judged else _member(Phase, phase),
        command=command,
        since=_time(since),
        due=_time(due),
        thread=_pid(thread),
        ident=cell(raw[_IDENT]) or None,
        backend_pid=_pid(backend_pid),
        backend_start=backend_start or None,
        sequence=sequence,
    )


def _unknown_slot(index: int) -> SlotView:
    return SlotView(
        index=index,
        number=index,
        phase=None,
        command=None,
        since=None,
        due=None,
        thread=None,
        ident=None,
        backend_pid=None,
        backend_start=None,
        sequence=0,
    )


def _levels(
    last_success: int, failures: int, stuck: int, exhaustions: int, away: int
) -> HealthReport:
    return HealthReport(
        last_success=last_success / _NS if last_success > 0 else None,
        consecutive_failures=max(0, failures),
        stuck_threads=max(0, stuck),
        pool_exhaustions=max(0, exhaustions),
        database_away=away == 1,
    )


_Member = TypeVar("_Member", bound=IntEnum)


def _member(kind: type[_Member], value: int) -> _Member | None:
    try:
        return kind(value)
    except ValueError:
        return None


def _pid(value: int) -> int | None:
    return value if 0 < value <= _MAX_PID else None


def _time(value: int) -> int | None:
    return value if value > 0 else None
