"""The board: the shared memory in which a node's processes show their state. layout.py lists its
cells with their writers and readers.

The supervisor makes it before it forks, in its own memory or in a file of the runtime directory;
the children inherit it. No process locks it, so a killed or hung process never blocks the others.
"""

import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Self
from uuid import UUID

from cmdbus.board import layout as offsets
from cmdbus.board.board_memory import Cell, encode_name
from cmdbus.board.layout import CELL, HEAD, MAGIC, NAME, VERSION, Layout
from cmdbus.board.reader import Reader
from cmdbus.board.records import Restart, SupervisorRecord, SupervisorState
from cmdbus.board.seats import Seat
from cmdbus.board.selected import EVERYTHING, SIZE, Selected
from cmdbus.board.stack_files import open_ordinary
from cmdbus.board.views import ClaimView
from cmdbus.board.wake_pipe import WakePipe
from cmdbus.errors import BoardError

#: Command types that a seat counts separately; the others share a row.
COMMAND_TYPES = 64
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Board(Reader):
    """Close it after the last use in this process."""

    # Written by the supervisor.

    #: Processes that survived SIGKILL; their claims are released.
    undead = Cell(offsets.UNDEAD)

    # Written by the steward.

    #: Whether the steward listens, so that no worker polls.
    listening = Cell(offsets.LISTENING)
    #: The arming's number, which every new arming raises; 0 before it is disarmed.
    armed = Cell(offsets.ARMED)
    #: Whether suspect commands wait for a quarantine process.
    suspects = Cell(offsets.SUSPECTS)
    #: The time at which the leases of all claims of living processes were renewed.
    renewed = Cell(offsets.RENEWED)
    #: Rises when a domain was paused, or may have been.
    domain_pauses = Cell(offsets.DOMAIN_PAUSES)
    #: Rises when the state of a breaker has changed, or may have.
    breaker_changes = Cell(offsets.BREAKER_CHANGES)

    @classmethod
    def in_memory(
        cls, seats: int, slots: int, *, command_types: int = COMMAND_TYPES, name: str = "cmdbus"
    ) -> Self:
        """For this process and those that it forks."""
        layout = Layout(seats, slots, command_types)
        memory = mmap.mmap(-1, layout.size)
        _write_head(memory, layout, name, EVERYTHING)
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
        selected: Selected = EVERYTHING,
    ) -> Self:
        """Replaces the file at this path; only one process at a time may do so. `slots`: for the
        threads of a process that write, and successors of stuck ones."""
        layout = Layout(seats, slots, command_types)
        new = path.with_name(f".{path.name}.new")
        try:
            new.unlink(missing_ok=True)  # of a killed process
            memory = _reserve(new, layout.size)
            _write_head(memory, layout, name, selected)
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
        """To read it, even after its writers are dead."""
        try:
            memory = _map_to_read(path)
        except OSError as error:
            raise BoardError(f"the board {path} cannot be read: {error.strerror}") from error
        try:
            layout, this_boot = _read_head(memory)
        except ValueError as error:
            memory.close()
            raise BoardError(f"{path} cannot be read as a board: {error}") from error
        return cls(memory, layout, this_boot)

    # For the supervisor, and the steward at its start.

    def supervise(
        self, *, pid: int, state: SupervisorState, since: int, due: int, wanted: int = 0
    ) -> None:
        """`due`: the time after which the loop is overdue; `wanted`: the number of workers."""
        record = SupervisorRecord(pid=pid, state=state, since=since, due=due, wanted=wanted)
        self._memory.write(offsets.SUPERVISOR_AT, record)

    def disarm(self) -> None:
        """Without a steward that listens, workers poll."""
        self.listening = False
        self.armed = 0

    def mark_lost(self, claims: Iterable[ClaimView]) -> None:
        """Shows their processes that these claims are lost."""
        for claim in claims:
            self.cells[claim.lost_at] = claim.mark

    def count_restart(self, reason: Restart) -> None:
        self.cells[offsets.RESTARTS + reason] += 1

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
    #: The socket on which the steward answers probes.
    http: socket | None = None
    #: Runs nothing but commands that may kill their process.
    quarantine: bool = False
    #: Whether its steward should listen.
    listens: bool = True


def _reserve(path: Path, size: int) -> mmap.mmap:
    """Allocates the whole file: on a full disk this fails, and not a writer later, by SIGBUS."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        os.posix_fallocate(descriptor, 0, size)
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


def _map_to_read(path: Path) -> mmap.mmap:
    descriptor = open_ordinary(path, os.O_RDONLY)
    try:
        if os.fstat(descriptor).st_size == 0:
            raise OSError(0, "it is empty")
        return mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)


def _write_head(memory: mmap.mmap, layout: Layout, name: str, selected: Selected) -> None:
    """Before any other process can read it."""
    shape = (layout.seats, layout.slots, layout.command_types, layout.size)
    memory[: HEAD.size] = HEAD.pack(MAGIC, VERSION, *shape, _boot_id())
    memory[offsets.BOARD_NAME * CELL : offsets.BOARD_NAME * CELL + NAME] = encode_name(name)
    at = offsets.SELECTED * CELL
    memory[at : at + SIZE] = selected.encode()


def _read_head(memory: mmap.mmap) -> tuple[Layout, bool]:
    """The ValueError is a sentence."""
    size = len(memory)
    if size < HEAD.size:
        raise ValueError(f"it has only {size} bytes")
    magic, version, seats, slots, command_types, stated_size, boot_id = HEAD.unpack_from(memory)
    if magic != MAGIC:
        raise ValueError("it is something else")
    if version != VERSION:
        raise ValueError(
            f"its layout is version {version}, and this cmdbus knows {VERSION}: "
            f"use the one that the supervisor runs with"
        )
    layout = Layout(seats, slots, command_types)
    if not size == stated_size == layout.size:
        raise ValueError(f"it has {size} bytes, and its sizes need {layout.size}: it is damaged")
    return layout, boot_id == _boot_id()


def _boot_id() -> bytes:
    try:
        return UUID(_BOOT_ID.read_text().strip()).bytes
    except (OSError, ValueError):
        return bytes(16)
