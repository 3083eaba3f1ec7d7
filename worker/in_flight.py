"""What this process has claimed and not settled: in memory, and as keys on the board, so that
whoever hands back what it leaves knows what ran.
"""

from collections.abc import Callable
from functools import partial
from threading import Lock

from cmdbus.board.seats import Seat
from cmdbus.worker.claims.claim import Claim, ClaimKey, Connection
from cmdbus.worker.claims.claims import Claims
from cmdbus.worker.claims.halving import release

#: Id, token and command: a row whose lease was lost may come to us again, and a server that
#: was restored to an earlier point gives an id and a token again, to another command.
Key = tuple[int, int, int]

#: Characters; smaller payloads are not counted: as many as a board has keys for hold 512 KB.
_COUNTED = 1024


class Holding:
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
        self._keys = seat.keys
        #: So that what a late leader takes is either known to the next, or refused.
        self._taking = Lock()
        #: Where on the board each is, until it is free.
        self._places: dict[Key, int] = {}
        #: Not finished, and not turned back.
        self._open: dict[Key, Claim] = {}
        #: Finished, and not settled.
        self._finished: dict[Key, Claim] = {}
        #: To be given back; here until the database knows.
        self._back: dict[Key, Claim] = {}
        #: Payload bytes of what is not started, of all but the small ones.
        self._payloads: dict[Key, int] = {}

    def __len__(self) -> int:
        """How many keep a thread busy, or will."""
        return len(self._open)

    def __contains__(self, claim: Claim) -> bool:
        return key_of(claim) in self._places

    @property
    def room(self) -> int:
        """How many more the board can show."""
        return self._keys.room

    @property
    def payload_ahead(self) -> int:
        """Bytes that were claimed and that no thread has begun with."""
        return sum(list(self._payloads.values()))

    @property
    def anything_back(self) -> bool:
        return bool(self._back)

    @property
    def any_unsettled(self) -> bool:
        """Also while a thread has taken their outcomes in order to settle them."""
        return bool(self._open or self._finished or self._back)

    def unfinished(self) -> list[Claim]:
        return list(self._open.values())

    def unsettled(self) -> list[Claim]:
        """All claims whose rows the database still shows as claimed, as far as is known here."""
        return [*self._open.values(), *self._finished.values(), *self._back.values()]

    def known(self) -> set[Key]:
        with self._taking:
            return set(self._places) | set(self._back)

    def take(self, claims: list[Claim], late: Callable[[], bool]) -> list[Claim]:
        """Returns those that nobody has taken before; none of a leader that was given up, and
        comes late with what the next one adopts."""
        taken = []
        with self._taking:
            for claim in [] if late() else claims:
                domain, priority, id, token, command_id, type, *_ = claim
                key = (id, token, command_id.int)
                if key not in self._places:
                    kind = self._seat.kind(domain, type)
                    place = self._keys.claimed(kind, priority, id, token, command_id)
                    self._places[key] = place
                    self._open[key] = claim
                    if len(claim.data) > _COUNTED:
                        self._payloads[key] = len(claim.data.encode())
                    taken.append(claim)
        return taken

    def start(self, claim: Claim) -> None:
        key = key_of(claim)
        self._payloads.pop(key, None)
        self._keys.started(self._places[key])

    def finish(self, claim: Claim) -> None:
        key = key_of(claim)
        place = self._places.get(key)
        if place is not None:  # else a worker that has stopped gave it back
            self._keys.finished(place)
            self._finished[key] = claim
            self._open.pop(key, None)

    def free(self, claim: Claim) -> None:
        key = key_of(claim)
        self._open.pop(key, None)
        self._finished.pop(key, None)
        self._back.pop(key, None)
        self._payloads.pop(key, None)
        place = self._places.pop(key, None)
        if place is not None:
            self._keys.free(place)

    def turn_back(self, claims: list[Claim]) -> None:
        for claim in claims:
            key = key_of(claim)
            self._back[key] = claim._replace(data="")
            self._open.pop(key, None)
            self._payloads.pop(key, None)

    def give_back(self, connection: Connection) -> None:
        """Releases what was turned back, uncharged. After an error, or while another session
        has a row locked, the next call tries again: what the database knows already is found
        gone by its token. A row that cannot be released is not held any longer, so that its
        lease ends."""
        claims = list(self._back.values())
        work = partial(self._claims.release, connection)
        _, locked = release(self._claims, connection, claims, work)
        for claim in claims:
            if claim not in locked:
                self.free(claim)


def key_of(claim: Claim | ClaimKey) -> Key:
    # Not the UUID itself, whose hash is computed in Python.
    return claim[2], claim[3], claim[4].int
