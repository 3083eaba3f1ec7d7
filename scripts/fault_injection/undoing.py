"""What is to be undone: by the fault that did it, or by the end of the run if that comes first."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class RunEndsError(OSError):
    """The run ends, and nothing would undo what is done now."""


class _Deed:
    def __init__(self, undo: Callable[[], object]) -> None:
        self._undo = undo
        self._lock = threading.Lock()
        self._begun = self._over = False

    def do(self, what: Callable[[], object]) -> None:
        with self._lock:
            if self._over:
                raise RunEndsError("the run ends")
            self._begun = True
            what()

    def undo(self) -> None:
        """Once."""
        with self._lock:
            self._over = True
            begun, self._begun = self._begun, False
            if begun:
                self._undo()


class Undoing:
    def __init__(self) -> None:
        self._deeds: dict[_Deed, None] = {}
        self._closed = False

    @contextmanager
    def __call__(self, do: Callable[[], object], undo: Callable[[], object]) -> Iterator[None]:
        """`undo` also undoes the half of `do` that was done when it failed."""
        deed = _Deed(undo)
        self._deeds[deed] = None
        try:
            # First in the list, then this look; the end does the opposite.
            if self._closed:
                raise RunEndsError("the run ends")
            deed.do(do)
            yield
        finally:
            deed.undo()
            del self._deeds[deed]

    def close(self) -> None:
        """Whatever is done now is undone, the latest first, and nothing more is done."""
        self._closed = True
        for deed in reversed([*self._deeds]):
            with suppress(Exception):
                deed.undo()
