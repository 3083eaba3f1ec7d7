"""What a process has claimed and not settled, for whoever hands it back after its death."""

from collections import deque
from enum import IntEnum
from uuid import UUID

from cmdbus.cells import Cells
from cmdbus.layout import CELL, KEY_CELLS, KEY_COUNT, KEYS, OVERFLOWED
from cmdbus.slots import Kind

_PRIORITIES = 16
_DOMAINS = 128
_STATES = 4
_ID = 4  # cells from the key's beginning


class KeyState(IntEnum):
    FREE = 0
    CLAIMED = 1
    STARTED = 2
    FINISHED = 3


class Keys:
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

    def __init__(self, memory: Cells, seat_at: int) -> None:
        self._cells = memory.cells
        self._bytes = memory.bytes
        self._overflowed = seat_at + OVERFLOWED
        places = [seat_at + KEYS + n * KEY_CELLS for n in range(KEY_COUNT + 1)]
        self._beyond = places.pop()
        self._free = deque(places)

    @property
    def room(self) -> int:
        """How many more can be shown; the most that a claim should ask for."""
        return len(self._free)

    def claimed(self, kind: Kind, priority: int, id: int, token: int, command_id: UUID) -> int:
        """The key's place, by which the other methods know it."""
        cells = self._cells
        try:
            place = self._free.popleft()
        except IndexError:
            cells[self._overflowed] = 1
            return self._beyond
        cells[place + 1] = id
        cells[place + 2] = token
        cells[place + 3] = _packed(kind, priority)
        named = (place + _ID) * CELL
        self._bytes[named : named + 16] = command_id.bytes
        cells[place] = (cells[place] | 3) + 2
        return place

    def started(self, place: int) -> None:
        self._cells[place] += 1

    def finished(self, place: int) -> None:
        self._cells[place] += 1

    def free(self, place: int) -> None:
        self._cells[place] &= -_STATES
        if place != self._beyond:
            self._free.append(place)


def _packed(kind: Kind, priority: int) -> int:
    return (kind.index * _DOMAINS + kind.domain_index) * _PRIORITIES + priority


def unpacked(place: int) -> tuple[int, int, int]:
    """A key's kind, domain and priority, the first two by where they are in the seat's tables."""
    named, priority = divmod(max(0, place), _PRIORITIES)
    return *divmod(named, _DOMAINS), priority
