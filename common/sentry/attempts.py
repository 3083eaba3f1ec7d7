"""The attempts of this process that run, and those that are to be settled."""

from threading import Lock
from typing import NamedTuple
from uuid import UUID

from sentry_sdk import Scope

#: A settlement follows within seconds, but for those that an outage keeps from it.
_MAX_ENDED = 1_000


class Attempt(NamedTuple):
    command_id: UUID
    #: From 1.
    number: int


class Attempts:
    """An attempt has one event: with the exception that its handler let out, if that counts, and
    else once its failure is settled. Called by any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: dict[Attempt, Scope] = {}
        #: The oldest first; those without an event with their scope.
        self._ended: dict[Attempt, Scope | None] = {}

    def begin(self, attempt: Attempt, scope: Scope) -> None:
        self._running[attempt] = scope

    def end(self, attempt: Attempt, scope: Scope) -> None:
        with self._lock:  # Another thread may run it meanwhile, after this one has lost its lease.
            if self._running.get(attempt) is scope:
                del self._running[attempt]

    def keep(self, attempt: Attempt, scope: Scope | None) -> None:
        """Until it is settled: the scope for its event, or None if it has that."""
        with self._lock:
            self._ended[attempt] = scope
            if len(self._ended) > _MAX_ENDED:
                del self._ended[next(iter(self._ended))]

    def settled(self, attempt: Attempt) -> tuple[bool, Scope | None]:
        """Whether it has its event, and its scope, if it has one."""
        with self._lock:
            if attempt in self._ended:
                scope = self._ended.pop(attempt)
                return scope is None, scope
        return False, self._running.get(attempt)  # It hangs, or another process has run it.
