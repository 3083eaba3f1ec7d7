"""A server that a module's tests share and may stop, crash or configure."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cmdbus.embedded import EmbeddedPostgres

Settings = dict[str, str | int | float | bool]


@contextmanager
def own_server(
    memory: Path | None, durable: bool = False, settings: Settings | None = None
) -> Iterator[EmbeddedPostgres]:
    """Its data is below `memory`, or in /tmp, where the server's user can reach it."""
    path = Path(tempfile.mkdtemp(prefix="cmdbus-test-", dir=memory or "/tmp"))
    path.chmod(0o711)
    try:
        with EmbeddedPostgres(path / "pg", durable=durable, settings=settings) as server:
            yield server
    finally:
        shutil.rmtree(path)
