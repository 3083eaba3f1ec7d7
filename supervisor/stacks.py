"""The stacks that processes write when they are asked for them, or crash: a file for each place."""

from pathlib import Path

#: So much of them goes into the log.
_MOST = 20_000


class Stacks:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def file(self, place: int) -> Path:
        return self._directory / str(place)

    def read(self, place: int) -> str:
        """All that its process has written so far."""
        try:
            return self.file(place).read_text(errors="replace").strip()
        except OSError:
            return ""

    def last(self, place: int) -> str:
        return self.read(place)[-_MOST:]
