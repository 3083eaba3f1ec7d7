"""What a process has claimed and not settled, for whoever hands it back after its death."""

from collections import deque
from hashlib import blake2b
from uuid import UUID

from cmdbus.board.board_memory import BoardMemory
from cmdbus.board.layout import CELL, CLAIM_CELLS, CLAIM_COUNT, CLAIMS, OVERFLOWED
from cmdbus.board.records import CommandType

_PRIORITIES = 16
#: Bytes of a domain's hash in a key: a name would not fit, and no table of names holds them all.
_HASH_BYTES = 5
_STATES = 4
_ID = 4  # cells from the key's beginning


class ClaimTable:
    """The settle keys of everything that this process has claimed and not settled.

    One table for the process, not one for each thread: a command is claimed by one thread,
    run by another and settled by a third, and whichever table it stood in would have three
    writers. Here it has one at a time, the thread that holds the command; it changes hands
    through the queue and the deque of the process, which order what is before and after.

        FREE -> CLAIMED    claimed(): the leader, before it puts the claim into the queue
        CLAIMED -> STARTED started(): who drew it, before its slot shows it
        STARTED -> FINISHED finished(): the same, before it appends the outcome
        any -> FREE        free(): who has settled it or given it back, afterwards

    The state cell counts: its lowest two bits are the state, which goes up by one from move
    to move, and the others go up each time the place is taken. The other cells are written
    only while it is FREE, so a reader that finds the same number, not FREE, before and after
    has read one key. A number that has no place (more than 512 at once) is not shown, and
    the seat says that it is not complete: then, and for a claim whose process died before
    `claimed`, the row's claimer is left.
    """

    __slots__ = ("_beyond", "_bytes", "_cells", "_free", "_overflowed")

    def __init__(self, memory: BoardMemory, seat_at: int) -> None:
        self._cells = memory.cells
        self._bytes = memory.bytes
        self._overflowed = seat_at + OVERFLOWED
        indexes = [seat_at + CLAIMS + n * CLAIM_CELLS for n in range(CLAIM_COUNT + 1)]
        self._beyond = indexes.pop()
        self._free = deque(indexes)

    @property
    def free_count(self) -> int:
        """How many more can be shown; the most that a claim should ask for."""
        return len(self._free)

    def claimed(
        self, command_type: CommandType, priority: int, id: int, token: int, command_id: UUID
    ) -> int:
        """The key's place, by which the other methods know it."""
        cells = self._cells
        try:
            index = self._free.popleft()
        except IndexError:
            cells[self._overflowed] = 1
            return self._beyond
        cells[index + 1] = id
        cells[index + 2] = token
        cells[index + 3] = command_type.packed + priority
        named = (index + _ID) * CELL
        self._bytes[named : named + 16] = command_id.bytes
        cells[index] = (cells[index] | 3) + 2
        return index

    def started(self, index: int) -> None:
        self._cells[index] += 1

    def finished(self, index: int) -> None:
        self._cells[index] += 1

    def free(self, index: int) -> None:
        self._cells[index] &= -_STATES
        if index != self._beyond:
            self._free.append(index)


def packed(index: int, domain: str) -> int:
    """What a key shows of its kind, without the priority."""
    return ((index << 8 * _HASH_BYTES) + hash_of(domain)) * _PRIORITIES


def unpacked(cell: int) -> tuple[int, int, int]:
    """A key's row among the kinds, the hash of its domain, and its priority."""
    named, priority = divmod(max(0, cell), _PRIORITIES)
    return *divmod(named, 1 << 8 * _HASH_BYTES), priority


def hash_of(domain: str) -> int:
    return int.from_bytes(blake2b(domain.encode(), digest_size=_HASH_BYTES).digest(), "big")
