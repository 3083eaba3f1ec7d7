"""One supervisor of a name: the lock on its pidfile decides, not the number in it."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from cmdbus.errors import BoardError


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
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, f"{os.getpid()}\n".encode(), 0)

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


def _locked(path: Path, name: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise BoardError(f"the pidfile {path} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        said = os.read(descriptor, 20).strip()
        os.close(descriptor)
        pid = said.decode() if said.isdigit() else "unknown"
        raise BoardError(
            f"a supervisor named {name!r} runs already (pid {pid}): stop it, or "
            f"choose another --name or --runtime-dir"
        ) from None
    return descriptor
