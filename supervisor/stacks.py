"""The stacks that processes write when they are asked for them, or crash: a file for each place."""

import logging
import os
from pathlib import Path

from cmdbus.board.stack_files import read_stacks, size_of

logger = logging.getLogger(__name__)

#: So much of them goes into the log.
_MAX_BYTES = 20_000


class Stacks:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._there = True

    def look(self) -> None:
        """Says once that nothing can be written there any more, and what comes of that."""
        there = os.access(self._directory, os.W_OK | os.X_OK)
        if there != self._there:
            self._there = there
            logger.warning(
                "%s is there again"
                if there
                else "%s is gone or cannot be written: stacks go to the log, and where the board "
                "is gone, too, cmdbus ps shows nothing",
                self._directory,
            )

    def file(self, index: int) -> Path:
        return self._directory / str(index)

    def size(self, index: int) -> int:
        return size_of(self.file(index))

    def read(self, index: int, since: int) -> str:
        """What its process has written since the file had this size."""
        return read_stacks(self.file(index), since)

    def last(self, index: int) -> str:
        return read_stacks(self.file(index))[-_MAX_BYTES:]
