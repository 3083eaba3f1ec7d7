"""The executions of this process whose spans may still be changed: those that run, and those whose
settlement is not known yet."""

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from opentelemetry.trace import SpanContext

if TYPE_CHECKING:
    from cmdbus.otel.process_span import ProcessSpan

#: Executions whose settlement is awaited. More are in flight in no process, and some are never
#: settled: those of tests, and of groups that failed.
_MAX_ENDED = 2000
#: The command's id as a number, whose hash takes less time than a UUID's, and the attempt.
Key = tuple[int, int]


class EndedSpan(NamedTuple):
    """The span of an execution, and the one that sent its command."""

    #: None if it is not sampled.
    context: SpanContext | None
    creation: SpanContext | None
    #: Monotonic time.
    began: float
    ended: float


class Executions:
    """Spans by their execution. Any thread may use them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: dict[Key, ProcessSpan] = {}
        self._ended: OrderedDict[Key, EndedSpan] = OrderedDict()

    def start(self, key: Key, span: "ProcessSpan") -> None:
        with self._lock:
            self._running[key] = span

    def end(self, key: Key, span: "ProcessSpan", ended: EndedSpan) -> bool:
        """Whether the caller has to end the span. A hung execution is ended by its settlement."""
        with self._lock:
            if span.is_taken:
                return False
            if self._running.get(key) is span:
                del self._running[key]
            self._ended[key] = ended
            if len(self._ended) > _MAX_ENDED:
                self._ended.popitem(last=False)
            return True

    def take(self, key: Key) -> "ProcessSpan | None":
        """The span of an execution that runs: from now on its own thread does not end it."""
        with self._lock:
            span = self._running.pop(key, None)
            if span is not None:
                span.is_taken = True
            return span

    def settled(self, key: Key) -> EndedSpan | None:
        with self._lock:
            return self._ended.pop(key, None)
