"""Watches the files of the application, for `--reload`: those of its modules, and which modules
there are next to them. In a child, as the supervising process runs no user code; and the child has
a child of its own import the application, again after each change.
"""

import logging
import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path

from cmdbus.clock import time
from cmdbus.settings import Settings
from cmdbus.supervisor.app_files import AppFiles
from cmdbus.supervisor.children import fork
from cmdbus.supervisor.systemd_notifier import clear_notify_env

logger = logging.getLogger(__name__)

#: Seconds between two checks of the files.
_POLL_SECONDS = 0.2
#: A change is over after these seconds without another: editors write a file several times.
_SETTLE_SECONDS = 0.3
#: The time of the latest change of each file; None for files of which only the presence counts.
Snapshot = Mapping[Path, int | None]


class SourceWatch:
    def __init__(self, app: str, close: Iterable[int]) -> None:
        """`close`: descriptors that the child must not keep. OSError if the system has no process
        left."""
        self._closed = False
        self._pipe, writer = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            since = time.time_ns()
            self.child = fork(lambda: _watch(app, writer, since), close=[self._pipe, *close])
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(writer)

    def has_changed(self) -> bool:
        """Whether a file has changed since the last call."""
        if self._closed:
            return False
        if self.child.reap() is not None:
            logger.error("files are no longer watched: the process that watched them has exited")
            self.close()
            return False
        try:
            files = os.read(self._pipe, 65536).decode(errors="replace").split("\n")
        except BlockingIOError:
            return False
        logger.info("%s has changed", files[0])
        return True

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.child.kill()
            os.close(self._pipe)


def watch_sources(settings: Settings, close: Iterable[int]) -> SourceWatch | None:
    """None if the settings ask for none."""
    if not settings.reload or settings.app is None:
        return None
    try:
        return SourceWatch(settings.app, close)
    except OSError as error:
        logger.error("files are not watched, cannot start a process: %s", error.strerror)
        return None


def _watch(app: str, pipe: int, since: int) -> int:
    """In the child, until it is killed. `since`: when the fleet began to import the application."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    clear_notify_env()
    files: set[Path] = set()
    while True:
        # Read before the import: what changes meanwhile has changed.
        before = _snapshot(files)
        with closing(AppFiles(app, pipe)) as imported:
            changed = _await_change(files, before, imported, since)
        since = time.time_ns()
        os.write(pipe, os.fsencode(changed) + b"\n")


def _snapshot(files: Iterable[Path]) -> dict[Path, int | None]:
    snapshot: dict[Path, int | None] = {}
    for folder in {file.parent for file in files}:
        with suppress(OSError):
            near = (each for each in folder.glob("*.py") if not each.name.startswith("."))
            snapshot.update(dict.fromkeys(near))
    for file in files:
        with suppress(OSError):
            snapshot[file] = file.stat().st_mtime_ns
    return snapshot


def _await_change(files: set[Path], before: Snapshot, imported: AppFiles, since: int) -> Path:
    """Returns a file that has changed, once no other changes. Adds to `files` those that are
    imported meanwhile: an import that hangs ends with a change, too."""
    while True:
        if new := imported.read() - files:
            files |= new
            before = {**_snapshot(files), **before, **at_import(_snapshot(new), new, since)}
        if (now := _snapshot(files)) != before:
            break
        time.sleep(_POLL_SECONDS)
    changed = min(difference(before, now))
    unchanged_since = time.monotonic()
    while time.monotonic() < unchanged_since + _SETTLE_SECONDS:
        time.sleep(_SETTLE_SECONDS / 5)
        latest = _snapshot(files)
        if latest != now:
            now, unchanged_since = latest, time.monotonic()
    return changed


def at_import(now: Snapshot, files: Iterable[Path], since: int) -> Snapshot:
    """These files as they were when they were imported, which was after `since`: one that was
    written after that may have been another one then."""
    written = {file: now.get(file) for file in files}
    return {file: at if at is None or at <= since else None for file, at in written.items()}


def difference(before: Snapshot, now: Snapshot) -> set[Path]:
    """The files that are new, gone or written."""
    missing = -1
    return {file for file in {*before, *now} if before.get(file, missing) != now.get(file, missing)}
