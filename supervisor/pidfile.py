"""One supervisor of a name: the lock on its pidfile decides, not the number in it."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from cmdbus.errors import BoardError


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
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise BoardError(f"the pidfile {path} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, lock | fcntl.LOCK_NB)
    except BlockingIOError:
        said = os.read(descriptor, 20).strip()
        os.close(descriptor)
        pid = said.decode() if said.isdigit() else "unknown"
        raise NameTakenError(
            f"a supervisor named {name!r} runs already (pid {pid}): stop it, or "
            f"choose another --name or --runtime-dir"
        ) from None
    return descriptor
