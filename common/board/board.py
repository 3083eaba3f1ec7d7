"""The board: the shared memory in which a node's processes show what they do. Where things
are on it, who writes and who reads them: layout.py.

Made by the supervisor before it forks, in its own memory or in a file of the runtime
directory; the children inherit it. Nobody holds a lock on it, so nobody who is killed or
hangs keeps anybody else from reading or writing.
"""

import mmap
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Self
from uuid import UUID

from cmdbus.board.board_memory import BoardMemory, encode_name
from cmdbus.board.counters import CountersView
from cmdbus.board.layout import (
    ARMED,
    BOARD_NAME,
    CELL,
    HEAD,
    LISTENING,
    MAGIC,
    NAME,
    PAUSES,
    RENEWED,
    RESTARTS,
    SUPERVISOR_AT,
    SUSPECTS,
    UNDEAD,
    VERSION,
    Layout,
)
from cmdbus.board.reader import Reader
from cmdbus.board.records import Restart, SupervisorRecord, SupervisorState
from cmdbus.board.seats import Seat
from cmdbus.board.views import BoardView, SeatView, SlotView
from cmdbus.board.wake_pipe import WakePipe
from cmdbus.errors import BoardError

#: Types that a seat counts apart; the others share a row.
COMMAND_TYPES = 64
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Board:
    """Close it when nobody in this process writes or reads any more."""

    def __init__(self, memory: mmap.mmap, layout: Layout, this_boot: bool) -> None:
        self.layout = layout
        self._this_boot = this_boot
        self._memory = BoardMemory(memory)
        self._reader = Reader(self._memory, layout)

    @classmethod
    def in_memory(
        cls, seats: int, slots: int, *, command_types: int = COMMAND_TYPES, name: str = "cmdbus"
    ) -> Self:
        """For this process and those that it forks."""
        layout = Layout(seats, slots, command_types)
        memory = mmap.mmap(-1, layout.size)
        _write_head(memory, layout, name)
        return cls(memory, layout, this_boot=True)

    @classmethod
    def create(
        cls,
        path: Path,
        seats: int,
        slots: int,
        *,
        command_types: int = COMMAND_TYPES,
        name: str = "cmdbus",
    ) -> Self:
        """Replaces what has this path; only one process at a time may do so.

        `slots` is every thread that writes: those that run commands, as many for the
        successors of stuck ones as a process may have, the main thread and the relief.
        """
        layout = Layout(seats, slots, command_types)
        new = path.with_name(f".{path.name}.new")
        try:
            new.unlink(missing_ok=True)  # of a maker that was killed
            memory = _reserve(new, layout.size)
            _write_head(memory, layout, name)
            new.rename(path)
        except OSError as error:
            with suppress(OSError):
                new.unlink()
            raise BoardError(
                f"no board of {layout.size} bytes can be made at {path}: {error.strerror}; "
                f"choose another place with --runtime-dir, or fewer processes or threads"
            ) from error
        return cls(memory, layout, this_boot=True)

    @classmethod
    def open(cls, path: Path) -> Self:
        """To read it, whether those who write it live or not."""
        try:
            memory, size = _map_to_read(path)
        except OSError as error:
            raise BoardError(f"the board {path} cannot be read: {error.strerror}") from error
        try:
            layout, this_boot = _read_head(memory, size)
        except ValueError as error:
            memory.close()
            raise BoardError(f"{path} cannot be read as a board: {error}") from error
        return cls(memory, layout, this_boot)

    def close(self) -> None:
        self._memory.close()

    # For readers.

    def snapshot(self, *, keys: bool = True) -> BoardView:
        """Without keys, which only matter to who hands back and renews, it costs a fifth."""
        return self._reader.read(self._this_boot, keys)

    def seat_view(self, index: int) -> SeatView:
        return self._reader.seat(index)

    def slot_view(self, seat: int, slot: int) -> SlotView:
        """A second look, before something is done to it."""
        return self._reader.slot(seat, slot)

    def counters(self) -> CountersView:
        return self._reader.counters()

    def executed(self, index: int) -> int:
        """Executions that have ended in this seat, over all its processes."""
        return self._reader.executed(index)

    # For the supervisor.

    def supervise(
        self, *, pid: int, state: SupervisorState, since: int, due: int, wanted: int = 0
    ) -> None:
        """`due`: when its loop will be back here at the latest; `wanted`: so many workers."""
        record = SupervisorRecord(pid=pid, state=state, since=since, due=due, wanted=wanted)
        self._memory.write(SUPERVISOR_AT, record)

    def count_restart(self, reason: Restart) -> None:
        self._memory.cells[RESTARTS + reason] += 1

    def set_undead(self, count: int) -> None:
        """Processes that were killed and do not die."""
        self._memory.cells[UNDEAD] = count

    # For the steward.

    def set_listening(self, listening: bool) -> None:
        self._memory.cells[LISTENING] = listening

    def set_armed(self, number: int) -> None:
        """The arming's number, which every new arming raises; 0 before it is disarmed."""
        self._memory.cells[ARMED] = number

    def set_renewed(self, at: int) -> None:
        """When the leases of all that the living hold were renewed."""
        self._memory.cells[RENEWED] = at

    def set_suspects(self, waiting: bool) -> None:
        """Whether commands wait that may only run alone."""
        self._memory.cells[SUSPECTS] = waiting

    def count_pause(self) -> None:
        """Some domain was paused, or may have been."""
        self._memory.cells[PAUSES] += 1

    # For workers.

    @property
    def pauses(self) -> int:
        return self._memory.cells[PAUSES]

    @property
    def renewed(self) -> int:
        return self._memory.cells[RENEWED]

    @property
    def listening(self) -> bool:
        return self._memory.cells[LISTENING] == 1

    @property
    def armed(self) -> int:
        return self._memory.cells[ARMED]

    # For the process that has the seat, and the supervisor that assigns it.

    def seat(self, index: int) -> Seat:
        return Seat(self._memory, self.layout, index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    board: Board
    #: Its own; made after the fork.
    seat: Seat
    #: A byte sends one worker to look for commands.
    worker_pipe: WakePipe
    #: A byte makes the steward look at the board.
    steward_pipe: WakePipe
    generation: int = 1
    #: The supervisor's pid: a child whose parent is another process exits. None in a standalone
    #: worker, which is a node of one process.
    parent: int | None = None
    #: Where the steward answers probes.
    http: socket | None = None
    #: Runs nothing but commands that may kill their process.
    quarantine: bool = False


def _reserve(path: Path, size: int) -> mmap.mmap:
    """All of its space: if that is not there, this fails, and not a writer later, by SIGBUS."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        os.posix_fallocate(descriptor, 0, size)
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


def _map_to_read(path: Path) -> tuple[mmap.mmap, int]:
    # Without O_NONBLOCK, a pipe of this name would make us wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
            raise OSError(0, "it is not a file with something in it")
        return mmap.mmap(descriptor, status.st_size, prot=mmap.PROT_READ), status.st_size
    finally:
        os.close(descriptor)


def _write_head(memory: mmap.mmap, layout: Layout, name: str) -> None:
    """Before anybody else can see it."""
    shape = (layout.seats, layout.slots, layout.command_types, layout.size)
    memory[: HEAD.size] = HEAD.pack(MAGIC, VERSION, *shape, _boot_id())
    memory[BOARD_NAME * CELL : BOARD_NAME * CELL + NAME] = encode_name(name)


def _read_head(memory: mmap.mmap, size: int) -> tuple[Layout, bool]:
    """A ValueError says what is wrong with it."""
    if size < HEAD.size:
        raise ValueError(f"it has only {size} bytes")
    magic, version, seats, slots, kinds, resolution, boot_id = HEAD.unpack(memory[: HEAD.size])
    if magic != MAGIC:
        raise ValueError("it is something else")
    if version != VERSION:
        raise ValueError(
            f"its layout is version {version}, and this cmdbus knows {VERSION}: "
            f"use the one that the supervisor runs with"
        )
    layout = Layout(seats, slots, kinds)
    if not size == resolution == layout.size:
        raise ValueError(f"it has {size} bytes, and its sizes need {layout.size}: it is damaged")
    return layout, boot_id == _boot_id()


def _boot_id() -> bytes:
    try:
        return UUID(_BOOT_ID.read_text().strip()).bytes
    except (OSError, ValueError):
        return bytes(16)
