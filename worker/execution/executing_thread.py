"""What an execution knows of its thread, and of the type of its command."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from cmdbus.handlers import Handler, HandlerFunction
from cmdbus.surroundings import Layer
from cmdbus.worker.breakers.breakers import Breakers
from cmdbus.worker.claims.claim import Connection

Work = TypeVar("Work", contravariant=True)


class Handled(Protocol):
    """What applies to all commands of a type: see HandledType."""

    handler: Handler
    #: Around each call, if there are any.
    surroundings: Layer | None
    run: HandlerFunction
    #: Names of headers.
    forward_headers: Sequence[str]
    max_attempts: int
    timeout: float


class ExecutingThread(Protocol[Work]):
    """The thread that an execution runs in: see WorkerThread."""

    #: That of the worker; the handler may fork.
    pid: int
    breakers: Breakers

    @property
    def is_stopping(self) -> bool: ...
    def has_lost(self, work: Work, /) -> bool: ...
    def connect(self) -> Connection: ...
    def connect_once(self) -> Connection: ...
    def extend(self, work: Work, seconds: float, /) -> None: ...
    def count_denied(self) -> None: ...
