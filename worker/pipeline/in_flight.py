"""What this process has claimed and not settled: one table of entries, whose claims also stand on
the board, so that a rescuer knows what ran.

    QUEUED       claimed, and waiting for a thread
    RUNNING      a thread executes it
    FINISHED     its outcome waits to be settled
    ROW_LOCKED   its outcome cannot be stored yet; housekeeping tries again
    ROW_MISSING  its settlement found no row; housekeeping finds out why
    RELEASED     it was not started, and goes back to the queue
    GONE         settled, released or lost: in this table no longer

    take     the leader, before the entry is queued               -> QUEUED
    start    the thread that drew it, before its slot shows it    QUEUED -> RUNNING
    restore  the same, if the group that it ran in has failed     RUNNING -> QUEUED
    finish   the same, before the outcome waits to be settled     RUNNING -> FINISHED
    hold     the thread that settles it                           FINISHED -> ROW_LOCKED,
                                                                  FINISHED -> ROW_MISSING
    take_held   the thread that tries again, or finds out         either -> FINISHED
    mark_released   the thread that took it out of the queue      QUEUED -> RELEASED
    free     the thread that has settled, released or lost it     any -> GONE
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from threading import Event, Lock
from uuid import UUID

from cmdbus.board.seats import Seat
from cmdbus.worker.claims.claim import Claim, ClaimRef, Fence, Finished, fence_of
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.connections import ThreadConnection
from cmdbus.worker.claims.releasing import release

#: Payloads of at most this number of characters are not counted: a board shows 512 claims, which
#: have hardly more than 512 KB of those.
_COUNTED = 1024


class EntryState(Enum):
    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    ROW_LOCKED = "row locked"
    ROW_MISSING = "row missing"
    RELEASED = "released"
    GONE = "gone"


# Looking a member up in its class takes 0.1 microseconds.
QUEUED, RUNNING, FINISHED, ROW_LOCKED, ROW_MISSING, RELEASED, GONE = EntryState


@dataclass(slots=True, eq=False)
class Entry:
    """A claim in flight, changed by one thread at a time."""

    claim: Claim
    #: Position in the board's table of claims.
    index: int | None = None
    payload_bytes: int = 0
    state: EntryState = QUEUED
    #: A group that it was in has failed.
    runs_singly: bool = False
    #: The outcome in the states ROW_LOCKED and ROW_MISSING.
    finished: Finished | None = None


class InFlight:
    """Every operation on the dict of entries is atomic."""

    def __init__(self, statements: ClaimStatements, seat: Seat) -> None:
        self._statements = statements
        self._claim_table = seat.claims
        #: For a leader that has timed out and its successor, and for two threads that take the same
        #: outcome.
        self._lock = Lock()
        self._entries: dict[Fence, Entry] = {}
        #: Set when there are entries, or batches that some have left; cleared by housekeeping when
        #: nothing is left to do.
        self.filled = Event()
        #: The batches of commands that have left this table; see BatchTransitions.
        self.left_batches: deque[UUID] = deque()

    def __bool__(self) -> bool:
        return bool(self._entries)

    @property
    def unfinished_count(self) -> int:
        """The number of entries that keep a thread busy, or will."""
        return len(self.in_state(QUEUED, RUNNING))

    @property
    def free_count(self) -> int:
        """The number of further claims that the board can show."""
        return self._claim_table.free_count

    @property
    def prefetched_bytes(self) -> int:
        """Payload bytes of the commands that were not started."""
        return sum([entry.payload_bytes for entry in self.in_state(QUEUED)])

    def in_state(self, *states: EntryState) -> list[Entry]:
        """In the order in which they were claimed."""
        return [entry for entry in list(self._entries.values()) if entry.state in states]

    def unfinished(self) -> list[Claim]:
        return [entry.claim for entry in self.in_state(QUEUED, RUNNING)]

    def all_claims(self) -> list[Claim]:
        """The claims whose rows are still claimed, as far as is known here."""
        return [entry.claim for entry in list(self._entries.values())]

    def batches(self) -> set[UUID]:
        """Those that have commands in flight."""
        return {claim.batch_id for claim in self.all_claims() if claim.batch_id is not None}

    def known(self) -> set[Fence]:
        with self._lock:
            return set(self._entries)

    def take(self, claims: list[Claim], late: Callable[[], bool]) -> list[Entry]:
        """Registers the claims and returns the new ones; none if the leader has timed out, as its
        successor adopts them."""
        taken = []
        entries, show = self._entries, self._claim_table.claimed
        with self._lock:
            for claim in [] if late() else claims:
                _, _, id, token, command_id, _, data = claim[:7]
                key = (id, token, command_id.int)
                if key not in entries:
                    payload_bytes = len(data.encode()) if len(data) > _COUNTED else 0
                    entry = Entry(claim, show(id, token, command_id), payload_bytes)
                    entries[key] = entry
                    taken.append(entry)
        if taken:
            self.filled.set()
        return taken

    def start(self, entry: Entry) -> None:
        entry.state = RUNNING
        if entry.index is not None:
            self._claim_table.started(entry.index)

    def restore(self, entry: Entry) -> None:
        """It may have been started, and runs singly."""
        entry.runs_singly = True
        if entry.state is RUNNING:
            entry.state = QUEUED
            if entry.index is not None:
                self._claim_table.restored(entry.index)

    def mark_lost(self, claims: Iterable[ClaimRef]) -> None:
        for claim in claims:
            entry = self._entries.get(fence_of(claim))
            if entry is not None and entry.index is not None:
                self._claim_table.mark_lost(entry.index)

    def is_lost(self, claim: Claim) -> bool:
        """Whether a renewal has found that its row is gone or has another claim, or it has left
        this table. Reads memory only."""
        entry = self._entries.get(fence_of(claim))
        return entry is None or (entry.index is not None and self._claim_table.is_lost(entry.index))

    def finish(self, entry: Entry) -> None:
        if entry.state is RUNNING:  # else a worker that has stopped released it
            entry.state = FINISHED
            if entry.index is not None:
                self._claim_table.finished(entry.index)

    def hold(self, finished: Finished, state: EntryState) -> None:
        """`state`: ROW_LOCKED or ROW_MISSING."""
        entry = self._entries.get(fence_of(finished.claim))
        if entry is not None:  # else a worker that stops has released it
            entry.finished, entry.state = finished, state

    def take_held(self, entry: Entry, state: EntryState) -> Finished | None:
        """None if another thread has taken it."""
        with self._lock:
            if entry.state is not state:
                return None
            entry.state = FINISHED
            return entry.finished

    def free(self, claims: Iterable[Claim]) -> None:
        pop, hide = self._entries.pop, self._claim_table.free
        for claim in claims:
            entry = pop(fence_of(claim), None)
            if entry is not None:
                entry.state = GONE
                if entry.index is not None:
                    hide(entry.index)
                if claim.batch_id is not None:
                    self.left_batches.append(claim.batch_id)
                    self.filled.set()

    def end(self) -> int:
        """At the end of the process: the number of claims that are left. Without any, the board
        shows none, whatever was written to it."""
        if not self._entries:
            self._claim_table.clear()
        return len(self._entries)

    def mark_released(self, claims: Iterable[Claim]) -> None:
        """Also claims that were not taken."""
        for claim in claims:
            entry = self._entries.setdefault(fence_of(claim), Entry(claim))
            entry.claim = claim._replace(data="")
            entry.state = RELEASED
            self.filled.set()

    def release(self, connection: ThreadConnection) -> bool:
        """Releases what was marked; False if some of it is left, as another session has its row
        locked. The next call tries again, also after an error: what the database has released
        already is found gone by its token. A row that cannot be released leaves the table, so that
        its lease ends."""
        claims = [entry.claim for entry in self.in_state(RELEASED)]
        if not claims:
            return True
        session = connection.connection()
        work = partial(self._statements.release, session)
        _, locked = release(self._statements, session, claims, work)
        self.free([claim for claim in claims if claim not in locked])
        return not locked
