"""One supervisor of a name: the lock on its pidfile decides, not the number in it."""

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from cmdbus.errors import BoardError

#: A child that its supervisor has just forked still has the lock when that is killed: it leaves
#: as soon as it runs, and is waited for so many seconds.
_LEAVES_SECONDS = 10.0
_LOOK_SECONDS = 0.05


class NameTakenError(BoardError):
    """A supervisor of this name runs."""


class Pidfile:
    """Held until it is closed, or its process is gone; children must close `descriptor`."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        while True:
            self.descriptor = _locked(path, name)
            # Between opening it and having its lock, its last holder may have removed it.
            if self._is_there():
                break
            os.close(self.descriptor)
        try:
            os.ftruncate(self.descriptor, 0)
            os.pwrite(self.descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            self.close()
            raise BoardError(
                f"the pidfile {path} cannot be written: {error.strerror}; "
                f"choose another place with --runtime-dir"
            ) from error

    def close(self) -> None:
        with suppress(OSError):
            if self._is_there():
                self._path.unlink()
        os.close(self.descriptor)

    def _is_there(self) -> bool:
        """Under its name; somebody may have removed it, and another may have made a new one."""
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self.descriptor))
        except FileNotFoundError:
            return False


def pidfile_path(directory: Path, name: str) -> Path:
    return directory / f"{name}.pid"


def check_free(path: Path, name: str) -> None:
    """Or a NameTakenError; keeps nothing."""
    if os.path.lexists(path):
        os.close(_locked(path, name, os.O_RDONLY, fcntl.LOCK_SH))


def _locked(
    path: Path, name: str, flags: int = os.O_RDWR | os.O_CREAT, lock: int = fcntl.LOCK_EX
) -> int:
    deadline = time.monotonic() + _LEAVES_SECONDS
    while True:
        descriptor = _opened(path, flags)
        try:
            fcntl.flock(descriptor, lock | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            said = os.read(descriptor, 20).strip()
            os.close(descriptor)
        if not (said.isdigit() and _is_gone(int(said))) or time.monotonic() > deadline:
            pid = said.decode() if said.isdigit() else "unknown"
            raise NameTakenError(
                f"a supervisor named {name!r} runs already (pid {pid}): stop it, or "
                f"choose another --name or --runtime-dir"
            )
        time.sleep(_LOOK_SECONDS)


def _opened(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise BoardError(f"the pidfile {path} cannot be opened: {error.strerror}") from error


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass
    return False
