"""The queue of a process's threads: claimed commands, and control items, one of which is the
leadership. Its order decides which thread does what next; there is no dispatcher.

A thread that finds the queue empty idles until its bell rings. If an item is left in the queue,
either the bell has rung, or a thread that is awake will draw the item or wake another one. For
commands that are shorter than a wake-up no other thread is woken, unless housekeeping sees that
they wait.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue

from cmdbus.clock import time
from cmdbus.worker.pipeline.in_flight import Entry, InFlight

#: Seconds within which a claimed command is started, or released.
_STARTED_WITHIN = 1.0


class ControlItem:
    def __init__(self, name: str) -> None:
        self.name = name


#: RECHECK lets a thread end if there are too many.
LEADERSHIP, STOP, RECHECK = ControlItem("leadership"), ControlItem("stop"), ControlItem("recheck")

Item = Entry | ControlItem


class LocalQueue:
    """Used by every thread; each operation is atomic."""

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        #: Number of threads that draw from it.
        self.threads = 0
        self._items: deque[Item] = deque()
        #: One element for each thread that idles; the thread that wakes one removes it.
        self._idle: deque[None] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._filled_at = 0.0
        #: Number of pauses of domains that were known when the claim of these commands began.
        self.domain_pauses = 0

    def draw(self) -> Item | None:
        """Returns None if the queue is empty."""
        try:
            return self._items.popleft()
        except IndexError:
            return None

    def wait(self) -> Item:
        """Idles until there is an item."""
        while True:
            # First idle, then draw again: the thread that puts an item does the opposite.
            self._idle.append(None)
            if (item := self.draw()) is not None:
                with suppress(IndexError):  # the bell has rung, and wakes a thread for nothing
                    self._idle.pop()
                return item
            self._bell.get()
            if (item := self.draw()) is not None:
                return item

    @property
    def needs_help(self) -> bool:
        """Items wait while threads idle."""
        return bool(self._idle and self._items)

    def wake(self) -> None:
        """Wakes an idle thread, if there is one."""
        with suppress(IndexError):
            self._idle.pop()
            self._bell.put(None)

    def put(self, item: ControlItem) -> None:
        self._items.append(item)
        self.wake()

    def put_back(self, item: ControlItem) -> None:
        """Called by a thread that draws next."""
        self._items.append(item)

    def draw_group(self, first: Entry, joins: Callable[[Entry], bool], most: int) -> list[Entry]:
        """Further entries that join an entry that was drawn, as long as the next one does."""
        drawn, domain_pauses = [first], self.domain_pauses
        while len(drawn) < most and (item := self.draw()) is not None:
            if not (isinstance(item, Entry) and joins(item)):
                self.put_first([item], domain_pauses)
                break
            drawn.append(item)
        return drawn

    def put_first(self, items: Sequence[Item], domain_pauses: int) -> None:
        """Puts back what was drawn, when `domain_pauses` had this value. Another thread may have
        found the queue empty meanwhile."""
        self.domain_pauses = min(self.domain_pauses, domain_pauses)
        self._items.extendleft(reversed(items))
        if items:
            self.wake()

    def fill(self, entries: Sequence[Entry], domain_pauses: int) -> None:
        """`domain_pauses`: their number when the claim began. Wakes no thread."""
        self._filled_at = time.monotonic()
        if self._items:  # Claims that join older ones count as equally old.
            domain_pauses = min(self.domain_pauses, domain_pauses)
        self.domain_pauses = domain_pauses
        self._items.extend(entries)

    def __bool__(self) -> bool:
        return bool(self._items)

    def mark_stale_released(self) -> None:
        """Marks commands that were claimed ahead of the threads and not started in time,
        because a type that was quick has become slow."""
        late = time.monotonic() - self._filled_at >= _STARTED_WITHIN
        if late and len(self._items) >= 2:
            self.mark_released()

    def mark_released(self, *drawn: Entry) -> None:
        """Marks all commands that no thread has started as released, and those that were just
        drawn. Control items stay."""
        items: list[Item] = [*drawn]
        while (item := self.draw()) is not None:
            items.append(item)
        self._in_flight.mark_released([item.claim for item in items if isinstance(item, Entry)])
        for item in items:
            if isinstance(item, ControlItem):
                self.put(item)
