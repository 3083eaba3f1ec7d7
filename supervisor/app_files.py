"""The files of the application's modules, which a child finds as it imports the application."""

import os
import signal
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from cmdbus.clock import time
from cmdbus.exits import Exit
from cmdbus.supervisor.children import fork
from cmdbus.supervisor.imports import without_collections
from cmdbus.timeouts import BOOT_SECONDS

#: Seconds between two reports of a child whose import goes on: it may hang.
_REPORT_SECONDS = 0.5
#: After each file, in which it cannot be.
_SEPARATOR = b"\0"
#: After the last file. The end of the pipe may not come, as a process that the application has
#: started may keep it open.
_END = b"."
_STDOUT, _STDERR = 1, 2


class AppFiles:
    """Those that are known so far."""

    def __init__(self, app: str, close: int) -> None:
        """`close`: a descriptor that the child must not keep. Without a process left it finds
        none."""
        self._pipe, writer = os.pipe()
        os.set_blocking(self._pipe, False)
        self._deadline, self._unread = time.monotonic() + BOOT_SECONDS, b""
        self._child = None
        try:
            self._child = fork(lambda: _report(app, writer), close=[self._pipe, close])
        except OSError:
            pass
        finally:
            os.close(writer)

    def read(self) -> set[Path]:
        """The files that were reported since the last call."""
        if self._child is None:
            return set()
        with suppress(BlockingIOError):
            while more := os.read(self._pipe, 65536):
                self._unread += more
        *names, self._unread = self._unread.split(_SEPARATOR)
        if _END in names or time.monotonic() > self._deadline:
            self._kill()
        return {Path(os.fsdecode(name)) for name in names if name != _END}

    def close(self) -> None:
        self._kill()
        os.close(self._pipe)

    def _kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None


def _report(app: str, pipe: int) -> int:
    """In the child. The preflight shows what the application prints, and its errors."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        for descriptor in (_STDOUT, _STDERR):
            os.dup2(nowhere.fileno(), descriptor)
    with without_collections():
        from cmdbus.worker.boot.app import load
    report, is_over = _Report(pipe), threading.Event()

    def go_on() -> None:
        while not is_over.wait(_REPORT_SECONDS):
            report.add(_loaded())

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    found: set[str] = set()
    try:
        load(app)
    except BaseException as error:
        found.update(_files_in(error))
    is_over.set()
    thread.join()
    report.add({*_loaded(), *found}, _END)
    return Exit.DONE


class _Report:
    """Each file once."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._known: set[str] = set()

    def add(self, files: set[str], *more: bytes) -> None:
        new = {file for file in files - self._known if is_watched(Path(file))}
        self._known |= files
        for name in [*map(os.fsencode, sorted(new)), *more]:
            os.write(self._pipe, name + _SEPARATOR)


def _loaded() -> set[str]:
    """The files of all modules but those of cmdbus, also of one whose import goes on."""
    modules = list(sys.modules.items())
    files = {_file_of(module) for name, module in modules if name.split(".")[0] != "cmdbus"}
    return {file for file in files if isinstance(file, str)}


def _file_of(module: object) -> object:
    """Not by getattr, which loads a module that is lazy."""
    try:
        return object.__getattribute__(module, "__dict__").get("__file__")
    except AttributeError:
        return None


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
