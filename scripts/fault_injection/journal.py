"""What a producer did, line by line, each on the disk before it goes on.

invoke   before a call: what it is about to send
ok       it was accepted          fail     it was refused: nothing was sent
unknown  its connection died before the reply; so is an invoke without an end
"""

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class Journal:
    """Appended to by one process; its threads take turns."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
        self._lock = threading.Lock()

    def write(self, what: str, call: str, **more: object) -> None:
        line = json.dumps({"what": what, "call": call, "at": time.time(), **more}, default=str)
        with self._lock:
            # After the end its number is another file's, or a connection's.
            if self._descriptor >= 0:
                os.write(self._descriptor, line.encode() + b"\n")
                os.fsync(self._descriptor)

    def close(self) -> None:
        with self._lock:
            os.close(self._descriptor)
            self._descriptor = -1


def lines_of(path: Path) -> Iterator[Mapping[str, Any]]:
    """Without a last one that a kill has cut."""
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue
