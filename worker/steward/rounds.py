"""The thread that runs the steward's rounds, one after the other on the same session.

    opening ── its round succeeds ──> working      each pass runs all rounds
    working <── all rounds succeed ──┬───── failing      a round has failed on a living session
                                     └───── away         the session is lost

A round that fails keeps no other one from running: all errors end in one place, with one
warning and one pause, and the next pass tries again. Another thread ends a statement that does
not return, by `abort_if_late`. Whatever is left undone when the process is killed, its
successor does.
"""

import logging
import threading
from collections.abc import Callable, Sequence

import psycopg

from cmdbus.board.records import Phase
from cmdbus.board.slots import Slot
from cmdbus.board.wake_pipe import WakePipe, wait_for
from cmdbus.clock import time
from cmdbus.errors import CmdbusError, SchemaError
from cmdbus.exits import cannot_start_thread
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.connections import ThreadConnection
from cmdbus.worker.claims.rejections import reason

logger = logging.getLogger(__name__)

#: Seconds after which a round is late, and its session is cut off; its statements are short.
ROUND_SECONDS = 10.0
#: Seconds from a failed pass to the next one.
_RETRY_SECONDS = 0.5
#: Seconds between two warnings while passes keep failing.
_WARNING_SECONDS = 30.0


#: Does what is due, and returns the seconds until it is due again; infinity leaves that to a byte
#: in the steward's pipe. It is called more often than that: in each pass.
Round = Callable[[Connection], float]


class Rounds:
    def __init__(
        self,
        session: ThreadConnection,
        pipe: WakePipe,
        slot: Slot,
        *,
        opening: Round,
        closing: Round,
        passed: Callable[[bool], None],
        lost: Callable[[], None],
    ) -> None:
        """A byte in `pipe` begins a pass. `opening` is repeated until it succeeds, before all
        others; `closing` is tried once after them. `passed` is called after each pass with its
        success, and `lost` when the session is lost. `slot` shows what the thread does."""
        self.rounds: Sequence[Round] = ()
        self._session = session
        self._pipe = pipe
        self._slot = slot
        self._opening = opening
        self._closing = closing
        self._passed = passed
        self._lost = lost
        #: The monotonic time after which the current round is late; infinite between rounds.
        self.late_at = float("inf")
        #: Since when no session can be opened; None while one is open.
        self.away_since: float | None = None
        #: What ended the thread before `stop`.
        self.ended_by: BaseException | None = None
        self._warned_at = float("-inf")
        self._stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, name="steward", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self, seconds: float) -> None:
        self._stopping.set()
        self._pipe.put()
        self.thread.join(seconds)
        if self.thread.is_alive():
            self._session.abort_io()
            self.thread.join(seconds)

    def abort_if_late(self, now: float) -> None:
        """Called by another thread: frees this one from a server that does not answer."""
        if now > self.late_at:
            self._session.abort_io()

    def allow(self, seconds: float) -> None:
        """For a round whose next statements may take longer than others."""
        self.late_at = time.monotonic() + seconds

    def _run(self) -> None:
        try:
            self._slot.occupy(-1, time.monotonic_ns())
            while not self._stopping.is_set() and self._attempt(self._opening) is None:
                self._stopping.wait(_RETRY_SECONDS)
            while not self._stopping.is_set():
                self._slot.enter(Phase.LEADING, time.monotonic_ns(), 0)
                pause = self._pass()
                self._slot.enter(Phase.RESTING, time.monotonic_ns(), 0)
                wait_for([self._pipe], pause)
                self._pipe.drain()
            if not self._session.lost():
                self._attempt(self._closing)
        except BaseException as error:
            self.ended_by = error
        finally:
            self._session.close()

    def _pass(self) -> float:
        """Returns the seconds until the next one."""
        pauses = []
        for round_ in self.rounds:
            pauses.append(self._attempt(round_))
            if pauses[-1] is None and self._session.lost():
                break
        self._passed(None not in pauses)
        return min(_RETRY_SECONDS if pause is None else pause for pause in pauses)

    def _attempt(self, round_: Round) -> float | None:
        """None if it failed: the next pass tries again, on a new session if this one is lost."""
        self.allow(ROUND_SECONDS)
        try:
            pause = round_(self._session.connection())
            self._end_outage()
            return pause
        except SchemaError:
            raise
        except (psycopg.Error, CmdbusError) as error:
            self._warn_once(reason(error))
            self._session.discard_if_read_only(error)
        except Exception as error:
            if isinstance(error, RuntimeError) and cannot_start_thread(error):
                raise
            logger.exception("the steward tries again")
            self._session.drop()
        finally:
            self.late_at = float("inf")
        if self._session.lost():
            self.away_since = self.away_since or time.monotonic()
            self._lost()
        return None

    def _end_outage(self) -> None:
        if self.away_since is not None:
            seconds = time.monotonic() - self.away_since
            self.away_since = None
            logger.info("the database is back after %.1f s", seconds)

    def _warn_once(self, why: str) -> None:
        """At most one warning in a while, as an outage may last."""
        now = time.monotonic()
        if not self._stopping.is_set() and now >= self._warned_at + _WARNING_SECONDS:
            self._warned_at = now
            logger.warning("the steward cannot work and keeps trying: %s", why)
