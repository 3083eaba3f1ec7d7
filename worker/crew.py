"""The way of one command through a worker process, from the claim to the settlement.

The threads share one queue. Besides claimed commands it holds exactly one lead. Whoever
draws a command runs it. Whoever draws the lead settles what is finished and claims the
next run in one round trip, puts the run into the queue, and the lead behind it. The
queue's order elects; there is no dispatcher and no lock.

    _slot            a thread: draws, until there is nothing more to draw
    ├── _run         a command:  Execution.run -> finished
    └── _lead        the lead:   step (settle + claim) -> queue
        └── _rest    nothing to claim: the leader waits for a wake-up, the lead in hand

If all threads are busy, the lead waits in the queue: that is backpressure. Only an
empty claim makes the leader wait for a wake-up.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

import psycopg

from cmdbus.outcomes import troubled
from cmdbus.registry import HandlerRegistry
from cmdbus.timeouts import Timeouts
from cmdbus.worker.claims import Claim, Claims, Connection, Finished, Want
from cmdbus.worker.connections import Hand
from cmdbus.worker.handling import Execution
from cmdbus.worker.pace import Pace
from cmdbus.worker.wake import Wake

logger = logging.getLogger(__name__)


class _Token:
    def __init__(self, name: str) -> None:
        self.name = name


#: In the queue beside claims.
_LEAD = _Token("lead")
_LEAVE = _Token("leave")

#: After a step failed for another reason than its connection, seconds until the next.
_AFTER_FAILURE = 1.0
#: Classes of errors of single outcomes: data that the server refuses, a row it waits for.
_ONE_BY_ONE = (psycopg.errors.LockNotAvailable, psycopg.DataError)


class Crew:
    """The threads of one process and what they share.

    `_queue`, `_done` and `_held` are written by every thread, each through operations
    that are atomic; the other state by the thread that has the lead, which is one.
    """

    def __init__(
        self,
        *,
        claims: Claims,
        registry: HandlerRegistry,
        domains: Sequence[str],
        concurrency: int,
        timeouts: Timeouts,
        connect: Callable[[], Connection],
        discard: Callable[[Connection], None],
        wake: Wake,
    ) -> None:
        self._claims = claims
        self._registry = registry
        self._domains = deque(domains)
        self._types = [f"{h.domain} {h.type}" for h in registry if h.domain in domains]
        self._concurrency = concurrency
        self._timeouts = timeouts
        self._connect = connect
        self._discard = discard
        self._wake = wake
        self._pace = Pace()
        self._queue: SimpleQueue[Claim | _Token] = SimpleQueue()
        #: Finished and not settled.
        self._done: deque[Finished] = deque()
        #: Claimed by us and not finished, by id.
        self._held: dict[int, Claim] = {}
        self._stopping = threading.Event()
        #: Set when something was claimed; cleared by the keeper when it finds nothing to do.
        self.working = threading.Event()
        self._threads: list[threading.Thread] = []
        self._hands: dict[int, Hand] = {}

    # For the worker's main thread.

    def start(self) -> None:
        self._queue.put(_LEAD)
        for number in range(self._concurrency):
            self._add_thread(number)

    def stop_claiming(self) -> list[Claim]:
        """Lets the threads leave once they have finished what they run; returns the claims
        that nobody has started, to be given back."""
        self._stopping.set()
        self._wake.ring()
        unstarted = self._unstarted()
        self._queue.put(_LEAVE)
        return unstarted

    def join(self, deadline: float) -> list[threading.Thread]:
        """Waits until the deadline; returns the threads that have not left."""
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return [thread for thread in self._threads if thread.is_alive()]

    @property
    def busy(self) -> bool:
        return bool(self._held or self._done)

    def held(self) -> list[Claim]:
        return list(self._held.values())

    def sessions(self) -> list[int]:
        """Backends of the threads that have not left."""
        return [pid for hand in list(self._hands.values()) if (pid := hand.backend_pid)]

    def relieve(self, hand: Hand, older: float) -> None:
        """Settles what was finished longer ago than `older` while all threads were busy."""
        waiting_since = self._done[0].at if self._done else None
        if waiting_since is not None and time.monotonic() - waiting_since > older:
            self._settle(hand, self.take_done())

    def settle_rest(self, hand: Hand) -> None:
        self._settle(hand, self.take_done())

    def take_done(self) -> list[Finished]:
        done = []
        with suppress(IndexError):
            while True:
                done.append(self._done.popleft())
        return done

    def _unstarted(self) -> list[Claim]:
        """Empties the queue; only once stopping is set, as the lead goes, too."""
        found: list[Claim] = []
        leave = False
        with suppress(Empty):
            while True:
                item = self._queue.get_nowait()
                if isinstance(item, Claim):
                    self._held.pop(item.id, None)
                    found.append(item)
                leave = leave or item is _LEAVE
        if leave:
            self._queue.put(_LEAVE)
        return found

    # What a thread does.

    def _add_thread(self, number: int) -> None:
        thread = threading.Thread(
            target=self._slot, args=(number,), name=f"worker-{number}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _slot(self, number: int) -> None:
        hand = self._hands[number] = Hand(self._connect, self._discard)
        try:
            while (item := self._queue.get()) is not _LEAVE:
                if isinstance(item, Claim):
                    self._run(hand, item, number)
                else:
                    self._lead(hand)
            self._queue.put(_LEAVE)  # for the next one
        finally:
            self._hands.pop(number, None)
            hand.close()

    def _run(self, hand: Hand, claim: Claim, number: int) -> None:
        quick = self._pace.is_quick(claim.domain, claim.type)
        if not quick and self._done:
            # What is finished waits for nothing that may be long.
            self._settle(hand, self.take_done())
        thread = threading.current_thread()
        thread.name = f"worker-{claim.domain}-{number}"
        began = time.monotonic()
        try:
            finished = self._execute(hand, claim)
        finally:
            thread.name = f"worker-{number}"
            self._held.pop(claim.id, None)
        self._pace.ran(claim.domain, claim.type, time.monotonic() - began)
        if finished is not None:
            # First append, then look whether the leader rests; it does the opposite.
            self._done.append(finished)
        self._wake.ring_if_resting()

    def _execute(self, hand: Hand, claim: Claim) -> Finished | None:
        handler = self._registry.find(claim.domain, claim.type)
        if handler is None:
            # Claimed by type, so this is a registry that shrank under us.
            outcome = troubled("NO_HANDLER", "the worker that claimed it has no handler for it")
            return Finished(claim, outcome, 1, time.monotonic())
        execution = Execution(
            claim,
            handler,
            claims=self._claims,
            connect=lambda: hand.connection(self._stopping),
            timeouts=self._timeouts,
            extended=lambda due: None,
        )
        return execution.run()

    def _lead(self, hand: Hand) -> None:
        """With the lead in hand; it goes back into the queue whatever happens."""
        try:
            if self._stopping.is_set():
                self._settle(hand, self.take_done())
            elif not self._step(hand):
                self._rest(hand)
        except Exception as error:
            self._recover(hand, error)
        finally:
            if not self._stopping.is_set():
                self._queue.put(_LEAD)

    def _step(self, hand: Hand) -> bool:
        """Settles everything finished and claims the next run; False if there was nothing."""
        self._wake.working(hand.connection())
        done = self.take_done()
        plain = [finished for finished in done if finished.plain]
        others = [finished for finished in done if not finished.plain]
        if others:
            self._settle(hand, others, beside=plain)
        want = self._want()
        try:
            lost, claims = self._claims.step(hand.connection(), plain, want)
        except _ONE_BY_ONE:
            self._settle_singly(hand, plain)
            return True
        except BaseException:
            self._done.extendleft(reversed(plain))
            raise
        _report_lost(plain, lost)
        self._domains.rotate(-1)
        self._pace.stepped(len(claims))
        for claim in claims:
            self._held[claim.id] = claim
        for claim in claims:
            self._queue.put(claim)
        if claims and not self.working.is_set():
            self.working.set()
        if self._stopping.is_set():
            # Too late: whoever stops has already looked for what was not started.
            self._claims.release(hand.connection(), self._unstarted())
        return bool(claims) or bool(done)

    def _want(self) -> Want:
        quick = [name for name in self._types if self._pace.is_quick(*name.split(" "))]
        return Want(
            free=max(1, self._concurrency - len(self._held)),
            ahead=self._pace.ahead() if quick else 0,
            domains=list(self._domains),
            types=self._types,
            quick_types=quick,
        )

    def _rest(self, hand: Hand) -> None:
        """Nothing to claim: until somebody rings, or a timer does."""
        self._wake.rest(hand.connection(), busy=lambda: bool(self._done) or self._stopping.is_set())

    # Settling.

    def _settle(self, hand: Hand, done: list[Finished], beside: Sequence[Finished] = ()) -> None:
        """Settles outcomes of any kind; puts them back, and `beside`, if it cannot."""
        if not done:
            return
        done.sort(key=lambda f: (f.claim.domain, f.claim.priority, f.claim.id))
        try:
            lost = self._claims.settle(hand.connection(), done)
        except _ONE_BY_ONE:
            self._settle_singly(hand, done)
            return
        except BaseException:
            self._done.extendleft(reversed([*beside, *done]))
            raise
        _report_lost(done, lost)

    def _settle_singly(self, hand: Hand, done: list[Finished]) -> None:
        """One of them is refused, or its row is held by somebody: the others need not wait."""
        for place, finished in enumerate(done):
            try:
                _report_lost([finished], self._claims.settle(hand.connection(), [finished]))
            except psycopg.errors.LockNotAvailable:
                self._done.append(finished)
            except psycopg.DataError as error:
                refused = troubled("OUTCOME_NOT_STORABLE", str(error))
                self._done.append(finished._replace(outcome=refused))
            except BaseException:
                self._done.extendleft(reversed(done[place:]))
                raise

    def _recover(self, hand: Hand, error: Exception) -> None:
        """The outcomes are back in `_done`; the session's end is waited for, then a new one."""
        if not hand.lost():
            logger.exception("a step failed; it is tried again in %s s", _AFTER_FAILURE)
            self._stopping.wait(_AFTER_FAILURE)
            return
        logger.warning(
            "the database connection is lost (%s); reconnecting until it is back",
            " ".join(str(error).split()),
        )
        hand.reconnect(self._stopping)


def _report_lost(done: Sequence[Finished], lost: Sequence[int]) -> None:
    for finished in done:
        if finished.claim.id in lost:
            logger.warning(
                "command %s (%s/%s) was lost before it was settled: it runs again elsewhere",
                finished.claim.command_id,
                finished.claim.domain,
                finished.claim.type,
            )
