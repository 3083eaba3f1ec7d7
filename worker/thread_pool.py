"""The threads of one worker process: their start, their deadlines and their end."""

from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import RLock, current_thread

from cmdbus.clock import time
from cmdbus.worker.claims.connections import ThreadConnection
from cmdbus.worker.claims.rejections import reason
from cmdbus.worker.execution.execution import Execution
from cmdbus.worker.pipeline.local_queue import LEADERSHIP, RECHECK, STOP
from cmdbus.worker.pipeline.pipeline import Pipeline
from cmdbus.worker.pipeline.setup import Setup
from cmdbus.worker.pipeline.worker_thread import RoundTrip, Work, WorkerThread

#: Seconds until the process takes part, although threads are still preparing their sessions.
_PREPARES_SECONDS = 2.0
#: A thread that has begun a command within these seconds will soon draw the next one.
_PROGRESS_SECONDS = 0.005
#: Round trips in a row that fail for a reason other than the database, one second apart, before
#: the process is replaced.
_MAX_FAULTS = 5


class ThreadPool:
    """Starts, watches and replaces threads; each operation is atomic."""

    def __init__(self, setup: Setup) -> None:
        self._source, self._telemetry = setup.source, setup.telemetry
        self.pipeline = Pipeline(
            setup,
            ends_as_surplus=self._ends_as_surplus,
            other_has_session=self._other_has_session,
        )
        self.in_flight, self.unsettled = self.pipeline.in_flight, self.pipeline.unsettled
        self._queue, self._stopping = self.pipeline.queue, self.pipeline.stopping
        #: One element for each thread that may have a turn.
        self._prepared: SimpleQueue[None] = SimpleQueue()
        #: For whatever changes the number of threads. Reentrant, for signal handlers that do.
        self._lock = RLock()
        #: The key is the number. The main thread, housekeeping and callers of set_concurrency add
        #: threads, which remove themselves.
        self._threads: dict[int, WorkerThread] = {}
        #: Threads that have ended as there was no session for them.
        self.refused = 0
        #: The exception that ended a thread unexpectedly.
        self._ended_by: BaseException | None = None

    def wait_until_prepared(self) -> None:
        """Returns once each thread has prepared its session, or soon if some cannot."""
        deadline = time.monotonic() + _PREPARES_SECONDS
        with suppress(Empty):
            for _ in range(self._queue.threads):
                self._prepared.get(timeout=max(0.0, deadline - time.monotonic()))

    def begin(self) -> None:
        """Queues the leadership, so that a thread claims. Called once the process has shown that
        it is ready: before, its exit codes have other meanings."""
        self._queue.put(LEADERSHIP)

    def set_concurrency(self, threads: int, *, need_sessions: bool = False) -> None:
        """`need_sessions`: further threads that get no session end, and count as refused."""
        with self._lock:
            self._queue.threads = threads
            # Numbers below may be free, as surplus threads end in any order.
            staying = self._staying()
            free = [number for number in range(threads) if number not in staying]
            for number in free[: max(0, threads - len(staying))]:
                self._fill(number, needs_session=need_sessions)
            surplus = len(staying) - threads
        for _ in range(surplus):
            self._queue.put(RECHECK)

    def _staying(self) -> set[int]:
        return {number for number, thread in self._threads.items() if not thread.is_surplus}

    def _ends_as_surplus(self, thread: WorkerThread) -> bool:
        """Whether the thread must end, as there are too many: then the next one sees fewer."""
        with self._lock:
            thread.is_surplus = len(self._staying()) > self._queue.threads
            return thread.is_surplus

    def _other_has_session(self, thread: WorkerThread) -> bool:
        others = [each for each in self._all() if each is not thread and not each.given_up]
        return any(not each.is_surplus and not each.connection.lost() for each in others)

    def _fill(self, number: int, *, needs_session: bool = False) -> None:
        """Starts the thread with this number, or a fresh one in its place."""
        slot = self._telemetry.acquire_slot()
        connection = ThreadConnection(self._source.get, self._source.put, slot.session)
        before = self._threads.get(number)
        thread = WorkerThread(
            number,
            connection,
            slot,
            self._stopping,
            self._run_thread,
            self.pipeline.breakers,
            self.in_flight.is_lost,
        )
        thread.needs_session = needs_session
        self._threads[number] = thread
        try:
            thread.thread.start()
        except RuntimeError:  # The system is out of threads.
            self._telemetry.release_slot(slot)
            del self._threads[number]
            if before is not None:
                self._threads[number] = before
            raise

    @property
    def fault(self) -> str:
        """Why this process must be replaced; empty if it need not be."""
        faults = self.pipeline.leader.faults
        if len(faults) >= _MAX_FAULTS:
            return f"{len(faults)} round trips in a row have failed: {reason(faults[-1])}"
        error = self._ended_by
        return "" if error is None else f"a thread was ended by {type(error).__name__}"

    @property
    def count(self) -> int:
        """Threads that have not ended, also surplus ones that still run a command."""
        return len(self._threads)

    @property
    def is_waiting_for_sessions(self) -> bool:
        """Whether threads prepare that take part only if they get one."""
        return any(thread.needs_session and not thread.given_up for thread in self._all())

    def running_seconds(self, now: float) -> float:
        """For which the commands that run have run, summed."""
        works = [thread.work for thread in self._all() if not thread.given_up]
        return sum(now - work.began for work in works if isinstance(work, Execution))

    def next_due(self) -> float:
        return min((thread.due for thread in self._all()), default=float("inf"))

    def put_off(self, seconds: float) -> None:
        """Moves all deadlines by the time for which the process stalled."""
        for thread in self._all():
            thread.put_off(seconds)

    def give_up_late(self, now: float) -> list[tuple[WorkerThread, Work]]:
        """The overdue threads, with the work that has timed out; housekeeping replaces them."""
        threads = self._all()
        late = [(thread, work) for thread in threads if (work := thread.give_up_if_late(now))]
        for thread, work in late:
            if isinstance(work, RoundTrip):
                thread.connection.abort_io()  # so that it puts its outcomes back
        return late

    def cut_all(self) -> None:
        for thread in self._all():
            thread.connection.abort_io()

    def replace(self, thread: WorkerThread, *, with_lead: bool = False) -> None:
        """Starts a fresh thread for one that has timed out, and gives it the leadership of one
        that led; the old thread ends without putting it back."""
        with self._lock:
            if self._threads.get(thread.number) is not thread or self._stopping.is_set():
                return
            self._fill(thread.number)
        if with_lead:
            self._queue.put(LEADERSHIP)

    def _all(self) -> list[WorkerThread]:
        return list(self._threads.values())

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is one of them."""
        return any(each.thread is current_thread() for each in self._all())

    def join(self, deadline: float) -> list[WorkerThread]:
        """Waits until the deadline; returns the threads that have neither ended nor timed out."""
        for thread in self.left():
            if not thread.given_up:
                thread.thread.join(max(0.0, deadline - time.monotonic()))
        return [thread for thread in self.left() if not thread.given_up]

    def left(self) -> list[WorkerThread]:
        """Threads that have not ended."""
        return [thread for thread in self._all() if thread.thread.is_alive()]

    def help_queued(self) -> None:
        """Wakes a thread for commands that wait behind one that takes longer than its type did."""
        if self._queue.needs_help:
            since = time.monotonic() - _PROGRESS_SECONDS
            works = [thread.work for thread in self._all()]
            if not any(isinstance(work, Execution) and work.began > since for work in works):
                self._queue.wake()

    def _run_thread(self, thread: WorkerThread) -> None:
        thread.slot.occupy(thread.number, time.monotonic_ns())
        try:
            stays = self.pipeline.leader.prepare_session(thread)
            self._prepared.put(None)
            if thread.needs_session:
                with self._lock:
                    if thread.connection.lost():
                        self.refused, stays = self.refused + 1, False
                    thread.needs_session = False
            while stays:
                stays = self.pipeline.take_turn(thread)
        except BaseException as error:
            if not thread.given_up:
                self._ended_by = error
            if self._stopping.is_set():
                self._queue.put(STOP)  # It may have been drawn.
        finally:
            with self._lock:
                # Housekeeping replaces a thread that has timed out.
                if self._threads.get(thread.number) is thread and not thread.given_up:
                    del self._threads[thread.number]
            if thread.given_up or thread.is_surplus:
                # Housekeeping ends the session of the former: no other thread may get it. That of
                # the latter is not needed any longer.
                thread.connection.drop()
            thread.connection.close()
            self._telemetry.release_slot(thread.slot)
