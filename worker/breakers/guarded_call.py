"""One call to another system, inside `with context.breaker(name)`."""

from collections.abc import MutableMapping
from threading import Lock, get_ident
from types import TracebackType
from typing import Protocol

from cmdbus.breakers import Verdict
from cmdbus.clock import time
from cmdbus.errors import BreakerOpenError, InvalidOperationError
from cmdbus.worker.breakers.breakers import Breakers
from cmdbus.worker.breakers.reports import Report
from cmdbus.worker.claims.claim import Claim


class Caller(Protocol):
    """The execution of a command: see Execution."""

    claim: Claim
    #: A call of it was let through.
    has_called: bool

    @property
    def bound_to(self) -> str | None:
        """The breaker of its type."""

    def seconds_left(self) -> float: ...
    def is_cut_off(self, error: BaseException, /) -> bool: ...
    def count_denied(self) -> None: ...


#: The calls of an execution that are being made, by breaker and thread.
Calls = MutableMapping[tuple[str, int], "GuardedCall"]
#: For the thread, where the whole handler is the call: all threads of it are a part of that.
_ALL_THREADS = 0


class GuardedCall:
    """A call inside another one of the same breaker and thread is a part of that."""

    def __init__(self, breakers: Breakers, name: str, caller: Caller, calls: Calls) -> None:
        self._breakers, self._breaker = breakers, breakers.find(name)
        self._caller, self._calls = caller, calls
        self._key = name, _ALL_THREADS
        #: It is held from its begin to its end.
        self._block = Lock()
        self._probe_id: int | None = None
        #: It is a part of another one; or the whole execution, which a bound handler begins with.
        self._is_inner = self._is_whole = False

    def __enter__(self) -> None:
        if not self._block.acquire(blocking=False):
            raise InvalidOperationError(
                "a block of context.breaker() was entered again before its end: call "
                "context.breaker(name) for each block"
            )
        try:
            self._begin()
        except BaseException:
            self._block.release()
            raise

    def _begin(self) -> None:
        caller, name = self._caller, self._breaker.name
        is_bound = name == caller.bound_to
        self._key = name, _ALL_THREADS if is_bound else get_ident()
        self._is_inner = self._key in self._calls
        if not self._is_inner:
            self._is_whole = is_bound and not caller.has_called
            try:
                self._probe_id = self._breakers.enter(name, caller.claim, caller.seconds_left())
            except BreakerOpenError:
                caller.count_denied()
                raise
            caller.has_called = True
            self._calls[self._key] = self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._is_inner:
            is_cut_off = error is not None and self._caller.is_cut_off(error)
            self._end(Verdict.NOTHING if is_cut_off else self._breaker.verdict(error))
        self._block.release()

    def timed_out(self) -> None:
        """Called by another thread: the command has timed out meanwhile."""
        self._end(self._breaker.verdict(TimeoutError()))

    def _end(self, verdict: Verdict) -> None:
        # Only the first of two threads finds it.
        if self._calls.pop(self._key, None) is not None:
            report = Report(self._breaker.name, verdict, time.monotonic(), self._probe_id)
            self._breakers.ended(report, self._caller.claim if self._is_whole else None)
