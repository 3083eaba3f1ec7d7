"""Processes that are stopped by faults, of which several may stop the same one."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from fault_injection.undoing import RunEndsError


class Freezer:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Faults that hold a process.
        self._frozen: Counter[psutil.Process] = Counter()
        self._closed = False

    @contextmanager
    def frozen(self, pid: int) -> Iterator[None]:
        """Until the last fault that froze it releases it. A process that has got its pid since
        then is left alone."""
        try:
            process = psutil.Process(pid)
        except psutil.NoSuchProcess:
            yield
            return
        with self._lock:
            if self._closed:
                raise RunEndsError("the run ends")
            self._frozen[process] += 1
            with suppress(psutil.Error):
                process.suspend()
        try:
            yield
        finally:
            with self._lock:
                self._frozen[process] -= 1
                if not self._frozen[process]:
                    with suppress(psutil.Error):
                        process.resume()

    def close(self) -> None:
        """Releases all of them, for good."""
        with self._lock:
            self._closed = True
            for process in self._frozen:
                with suppress(psutil.Error):
                    process.resume()
