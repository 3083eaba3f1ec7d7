"""The stacks that processes write when asked, or when they crash: a file for each seat."""

import logging
import os
from pathlib import Path

from cmdbus.board.stack_files import make_room, read_stacks, size_of

logger = logging.getLogger(__name__)

#: Bytes of a process's stacks in one log line, at most.
_MAX_BYTES = 20_000
#: Seconds that a process has to write its stacks before they are read.
DUMP_SECONDS = 0.5


class Stacks:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._is_writable = True
        #: Stacks to be logged: by index, the name of the process and the size of its file before.
        self._requested: dict[int, tuple[str, int]] = {}
        self._due = 0.0

    def check(self) -> None:
        """Warns once that the directory cannot be written, and once that it can be again."""
        is_writable = os.access(self._directory, os.W_OK | os.X_OK)
        if is_writable != self._is_writable:
            self._is_writable = is_writable
            logger.warning(
                "%s is there again"
                if is_writable
                else "%s is gone or cannot be written: stacks go to the log, and where the board "
                "is gone, too, cmdbus ps shows nothing",
                self._directory,
            )

    def file(self, index: int) -> Path:
        return self._directory / str(index)

    def make_room(self, index: int) -> None:
        make_room(self.file(index))

    def request(self, index: int, name: str, now: float) -> None:
        """The process is about to write its stacks: `log_requested` logs them."""
        self.make_room(index)
        self._requested[index] = name, size_of(self.file(index))
        self._due = now + DUMP_SECONDS

    def log_requested(self, now: float) -> None:
        if self._requested and now >= self._due:
            for index, (name, before) in self._requested.items():
                logger.info("the stacks of %s:\n%s", name, read_stacks(self.file(index), before))
            self._requested.clear()

    def read(self, index: int) -> str:
        """The end of what the process has written: stacks, or why it cannot start."""
        return read_stacks(self.file(index))[-_MAX_BYTES:]

    def log_last(self, name: object, index: int) -> None:
        if stack := self.read(index):
            logger.error("the stacks of %s:\n%s", name, stack)
