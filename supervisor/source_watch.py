"""Watches the files of the application, for `--reload`: those of its modules, and which modules
there are next to them. In a child, as the supervising process runs no user code; and the child has
a child of its own import the application, again after each change.
"""

import logging
import os
import signal
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from cmdbus.clock import time
from cmdbus.exits import Exit
from cmdbus.settings import Settings
from cmdbus.supervisor.children import fork, wait
from cmdbus.supervisor.imports import without_collections
from cmdbus.supervisor.systemd_notifier import clear_notify_env
from cmdbus.timeouts import BOOT_SECONDS

logger = logging.getLogger(__name__)

#: Seconds between two checks of the files.
_POLL_SECONDS = 0.2
#: A change is over after these seconds without another: editors write a file several times.
_SETTLE_SECONDS = 0.3
#: The line after the last file. The end of the pipe may not come, as a process that the application
#: has started may keep it open.
_END = "."
_STDOUT, _STDERR = 1, 2
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
            self.child = fork(lambda: _watch(app, writer), close=[self._pipe, *close])
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


def _watch(app: str, pipe: int) -> int:
    """In the child, until it is killed."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    clear_notify_env()
    files: set[Path] = set()
    while True:
        # Read before the import: what changes meanwhile has changed.
        before = _snapshot(files)
        files |= set(_files_of(app, pipe))
        changed = _await_change(files, {**_snapshot(files), **before})
        os.write(pipe, f"{changed}\n".encode())


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


def _await_change(files: Iterable[Path], before: Snapshot) -> Path:
    """Returns a file that has changed, once no other changes."""
    while (now := _snapshot(files)) == before:
        time.sleep(_POLL_SECONDS)
    changed = min(difference(before, now))
    unchanged_since = time.monotonic()
    while time.monotonic() < unchanged_since + _SETTLE_SECONDS:
        time.sleep(_SETTLE_SECONDS / 5)
        latest = _snapshot(files)
        if latest != now:
            now, unchanged_since = latest, time.monotonic()
    return changed


def difference(before: Snapshot, now: Snapshot) -> set[Path]:
    """The files that are new, gone or written."""
    missing = -1
    return {file for file in {*before, *now} if before.get(file, missing) != now.get(file, missing)}


def _files_of(app: str, close: int) -> list[Path]:
    """The files of the application's modules; if its import fails, of those that were loaded."""
    reader, writer = os.pipe()
    try:
        child = fork(lambda: _list_files(app, writer), close=[reader, close])
    except OSError:  # No process is left: the files that are known are watched.
        os.close(reader)
        return []
    finally:
        os.close(writer)
    deadline, text = time.monotonic() + BOOT_SECONDS, ""
    while not text.endswith(f"\n{_END}\n") and (left := deadline - time.monotonic()) > 0:
        wait([reader], left)
        if not (more := os.read(reader, 65536) if time.monotonic() < deadline else b""):
            break
        text += more.decode()
    child.kill()
    os.close(reader)
    return [Path(line) for line in text.splitlines() if line not in ("", _END)]


def _list_files(app: str, pipe: int) -> int:
    """In a child of the child. The preflight shows what the application prints, and its errors."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        for descriptor in (_STDOUT, _STDERR):
            os.dup2(nowhere.fileno(), descriptor)
    with without_collections():
        from cmdbus.worker.boot.app import load
    found: set[str] = set()
    try:
        load(app)
    except BaseException as error:
        found.update(_files_in(error))
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] != "cmdbus" and (file := getattr(module, "__file__", None)):
            found.add(file)
    lines = [*sorted(file for file in found if is_watched(Path(file))), _END]
    os.write(pipe, "\n".join(["", *lines, ""]).encode())
    return Exit.DONE


def _files_in(error: BaseException | None) -> Iterator[str]:
    """The files in which an import has failed: their modules are not loaded."""
    while error is not None:
        if isinstance(error, SyntaxError) and error.filename:
            yield error.filename
        trace: TracebackType | None = error.__traceback__
        while trace is not None:
            yield trace.tb_frame.f_code.co_filename
            trace = trace.tb_next
        error = error.__cause__ or error.__context__


_OWN = Path(__file__).resolve().parent.parent
#: Folders of Python itself. A folder of installed packages has one of these names.
_INSTALLED = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
_PACKAGES = {"site-packages", "dist-packages"}


def is_watched(file: Path) -> bool:
    """Whether a developer of the application may change it."""
    if file.suffix != ".py" or not file.is_absolute() or _PACKAGES & {*file.parts}:
        return False
    parents = {*file.resolve().parents}
    rooms = {_OWN / room for room in ("common", "worker", "supervisor")}
    return not parents & (_INSTALLED | rooms)
