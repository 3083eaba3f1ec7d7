"""What this process has claimed and not settled: in memory, and as keys on the board, so that
whoever hands back what it leaves knows what ran.
"""

from collections.abc import Callable
from functools import partial
from threading import Lock

from cmdbus.board.seats import Seat
from cmdbus.worker.claims.claim import Claim, Connection, Key, key_of
from cmdbus.worker.claims.claims import Claims
from cmdbus.worker.claims.halving import release

#: Characters; smaller payloads are not counted: as many as a board has keys for hold 512 KB.
_COUNTED = 1024


class InFlight:
    """Each claim has one hand at a time, which calls:

        take(...)        the leader, before it puts them into the queue
        start(claim)     who drew it, before its slot shows it
        finish(claim)    the same, before it appends the outcome
        turn_back(...)   who took it out of the queue, not started, to be given back
        free(claim)      who has settled it, given it back or lost it, afterwards

    Every operation on a dict is atomic.
    """

    def __init__(self, claims: Claims, seat: Seat) -> None:
        self._claims = claims
        self._seat = seat
        self._claim_table = seat.keys
        #: So that what a late leader takes is either known to the next, or refused.
        self._taking = Lock()
        #: Where on the board each is, until it is free.
        self._cells: dict[Key, int] = {}
        #: Not finished, and not turned back.
        self._open: dict[Key, Claim] = {}
        #: Finished, and not settled.
        self._finished: dict[Key, Claim] = {}
        #: To be given back; here until the database knows.
        self._released: dict[Key, Claim] = {}
        #: Payload bytes of what is not started, of all but the small ones.
        self._payloads: dict[Key, int] = {}

    def __len__(self) -> int:
        """How many keep a thread busy, or will."""
        return len(self._open)

    def __contains__(self, claim: Claim) -> bool:
        return key_of(claim) in self._cells

    @property
    def free_count(self) -> int:
        """How many more the board can show."""
        return self._claim_table.free_count

    @property
    def prefetched_bytes(self) -> int:
        """Bytes that were claimed and that no thread has begun with."""
        return sum(list(self._payloads.values()))

    @property
    def any_released(self) -> bool:
        return bool(self._released)

    @property
    def any_unsettled(self) -> bool:
        """Also while a thread has taken their outcomes in order to settle them."""
        return bool(self._open or self._finished or self._released)

    def unfinished(self) -> list[Claim]:
        return list(self._open.values())

    def unsettled(self) -> list[Claim]:
        """All claims whose rows the database still shows as claimed, as far as is known here."""
        return [*self._open.values(), *self._finished.values(), *self._released.values()]

    def known(self) -> set[Key]:
        with self._taking:
            return set(self._cells) | set(self._released)

    def take(self, claims: list[Claim], late: Callable[[], bool]) -> list[Claim]:
        """Returns those that nobody has taken before; none of a leader that was given up, and
        comes late with what the next one adopts."""
        taken = []
        with self._taking:
            for claim in [] if late() else claims:
                domain, priority, id, token, command_id, type, *_ = claim
                key = (id, token, command_id.int)
                if key not in self._cells:
                    command_type = self._seat.command_type(domain, type)
                    index = self._claim_table.claimed(command_type, priority, id, token, command_id)
                    self._cells[key] = index
                    self._open[key] = claim
                    if len(claim.data) > _COUNTED:
                        self._payloads[key] = len(claim.data.encode())
                    taken.append(claim)
        return taken

    def start(self, claim: Claim) -> None:
        key = key_of(claim)
        self._payloads.pop(key, None)
        self._claim_table.started(self._cells[key])

    def finish(self, claim: Claim) -> None:
        key = key_of(claim)
        index = self._cells.get(key)
        if index is not None:  # else a worker that has stopped gave it back
            self._claim_table.finished(index)
            self._finished[key] = claim
            self._open.pop(key, None)

    def free(self, claim: Claim) -> None:
        key = key_of(claim)
        self._open.pop(key, None)
        self._finished.pop(key, None)
        self._released.pop(key, None)
        self._payloads.pop(key, None)
        index = self._cells.pop(key, None)
        if index is not None:
            self._claim_table.free(index)

    def mark_released(self, claims: list[Claim]) -> None:
        for claim in claims:
            key = key_of(claim)
            self._released[key] = claim._replace(data="")
            self._open.pop(key, None)
            self._payloads.pop(key, None)

    def release(self, connection: Connection) -> None:
        """Releases what was turned back, uncharged. After an error, or while another session
        has a row locked, the next call tries again: what the database knows already is found
        gone by its token. A row that cannot be released is not held any longer, so that its
        lease ends."""
        claims = list(self._released.values())
        work = partial(self._claims.release, connection)
        _, locked = release(self._claims, connection, claims, work)
        for claim in claims:
            if claim not in locked:
                self.free(claim)
