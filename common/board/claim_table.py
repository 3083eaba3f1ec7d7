"""What a process has claimed and not settled: the steward releases it if the process dies."""

import threading
from collections import deque
from struct import Struct
from uuid import UUID

from cmdbus.board.board_memory import BoardMemory
from cmdbus.board.layout import CELL, CLAIM_CELLS, CLAIM_COUNT, CLAIM_LOST, CLAIMS, OVERFLOWED

_STATES = 4
#: The cells that follow the state: id, token, command id.
_CLAIM = Struct("=qq16s")


class ClaimTable:
    """The claims of this process that are not settled.

    One table for the process, not one for each thread: a command is claimed by one thread,
    run by another and settled by a third, so a table of a thread would have three writers.
    Here a claim has one writer at a time, the thread that has the command; it passes from
    thread to thread through the queues of the process, which order the writes.

        FREE -> CLAIMED    claimed(): the leader, before it queues the claim
        CLAIMED -> STARTED started(): the thread that runs it, before its slot shows it
        STARTED -> FINISHED finished(): the same, before it appends the outcome
        any -> FREE        free(): the thread that has settled or released it, afterwards

    The state cell counts: its lowest two bits are the state, which goes up by one from move
    to move, and the others go up each time the index is taken. The other cells are written
    only while it is FREE, so a reader that finds the same number, not FREE, before and after
    has read one claim. Whatever finds that a claim is lost writes that number without the state
    to the claim's last cell, where it means nothing for the next claim at this index. If there
    are more claims than indexes, those beyond are not shown, and the seat shows that it is not
    complete until the last of them is free. Of these, and of a claim whose process died before
    `claimed`, only the row knows the claimer.
    """

    def __init__(self, memory: BoardMemory, seat_at: int) -> None:
        self._cells = memory.cells
        self._bytes = memory.bytes
        self._overflowed = seat_at + OVERFLOWED
        self._first = first = seat_at + CLAIMS
        indexes = [first + n * CLAIM_CELLS for n in range(CLAIM_COUNT + 1)]
        self._beyond = indexes.pop()
        self._free = deque(indexes)
        #: For the number of claims beyond the table, and the cell that shows whether there are any.
        self._lock = threading.Lock()
        self._count_beyond = 0

    @property
    def free_count(self) -> int:
        """Claims that can still be shown; a leader should not ask for more."""
        return len(self._free)

    def claimed(self, id: int, token: int, command_id: UUID) -> int:
        """Returns the claim's index, which the other methods take."""
        cells = self._cells
        try:
            index = self._free.popleft()
        except IndexError:
            self._count(+1)
            return self._beyond
        _CLAIM.pack_into(self._bytes, (index + 1) * CELL, id, token, command_id.bytes)
        cells[index] = (cells[index] | 3) + 2
        return index

    def started(self, index: int) -> None:
        self._cells[index] += 1

    def restored(self, index: int) -> None:
        """What was started has not happened."""
        self._cells[index] -= 1

    def finished(self, index: int) -> None:
        self._cells[index] += 1

    def free(self, index: int) -> None:
        self._cells[index] &= -_STATES
        if index == self._beyond:
            self._count(-1)
        else:
            self._free.append(index)

    def mark_lost(self, index: int) -> None:
        """Its row is not this claim's any longer."""
        self._cells[index + CLAIM_LOST] = self._cells[index] // _STATES

    def is_lost(self, index: int) -> bool:
        """Always false for a claim that is not shown."""
        cells = self._cells
        return index != self._beyond and cells[index + CLAIM_LOST] == cells[index] // _STATES

    def clear(self) -> None:
        """At the end of a process that has no claims: repairs cells that were overwritten."""
        for n in range(CLAIM_COUNT):
            self._cells[self._first + n * CLAIM_CELLS] &= -_STATES

    def _count(self, by: int) -> None:
        with self._lock:
            self._count_beyond += by
            self._cells[self._overflowed] = int(self._count_beyond > 0)
