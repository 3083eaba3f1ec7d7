"""What a supervisor takes of its host: its name and the port of --http.

At most one supervisor of a name: the locks on its pidfile and its board decide that, not the
process id in the file. The socket of probes, metrics and status is made before the fork, so that it
outlives every process that answers on it.
"""

import errno
import fcntl
import ipaddress
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from cmdbus.board.board import Board
from cmdbus.board.stack_files import open_ordinary
from cmdbus.clock import time
from cmdbus.errors import BoardError, CmdbusError
from cmdbus.proc import PidState, pid_state
from cmdbus.readiness import Check, Finding
from cmdbus.settings import Settings
from cmdbus.supervisor.runtime import (
    board_path,
    check_makeable,
    check_runtime_directory,
    find_runtime_directory,
)

logger = logging.getLogger(__name__)

#: Seconds to wait for the lock: a child forked just before its supervisor was killed holds it until
#: the child exits.
_EXIT_SECONDS = 10.0
#: Seconds that a running supervisor waits for a lock that `check_free` holds for a moment.
_CHECK_SECONDS = 0.2
_POLL_SECONDS = 0.01
#: Seconds to wait for the port: the steward of a supervisor that was just killed has it until that
#: process is dead, too.
_FREED_SECONDS = 2.0
#: Connections that wait while one steward follows another.
_BACKLOG = 128
_REASONS = {
    errno.EADDRINUSE: "the port is taken by another process",
    errno.EACCES: "ports below 1024 need a privilege that this user does not have",
    errno.EADDRNOTAVAIL: "this machine has no such address",
}


class NameTakenError(BoardError):
    """A supervisor of this name runs."""

    def __init__(self, name: str, pid: int | None) -> None:
        self.pid = pid
        super().__init__(
            f"a supervisor named {name!r} runs already (pid {pid or 'unknown'}): stop it, or "
            f"choose another --name or --runtime-dir"
        )


class Pidfile:
    """Held until it is closed, or its process is gone; children must close `descriptors`."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._name = name
        #: The descriptor of the board, once that is held.
        self._board: list[int] = []
        while True:
            self.descriptor = _locked(path, name)
            # Between opening it and having its lock, its last holder may have removed it.
            if self._is_there():
                break
            os.close(self.descriptor)
        try:
            self._write()
        except OSError as error:
            self.close()
            raise BoardError(
                f"the pidfile {path} cannot be written: {error.strerror}; "
                f"choose another place with --runtime-dir"
            ) from error

    @property
    def descriptors(self) -> list[int]:
        return [self.descriptor, *self._board]

    def hold_board(self, path: Path) -> None:
        """Locks the board, too: a second supervisor of this name would take it for a dead one's
        once the pidfile is removed."""
        self._board = [_locked(path, self._name, os.O_RDONLY)]

    def keep(self) -> None:
        """Keeps the files from looking old to programs that remove old ones, and puts the pidfile
        back if it was removed. NameTakenError if another supervisor has made one meanwhile."""
        with suppress(OSError):
            for descriptor in self.descriptors:
                os.utime(descriptor)
            if self._is_there():
                return
        new = _locked(self._path, self._name, within=_CHECK_SECONDS)
        # The same number: children close it.
        os.dup2(new, self.descriptor, inheritable=False)
        os.close(new)
        self._write()

    def _write(self) -> None:
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        with suppress(OSError):
            if self._is_there():
                self._path.unlink()
        for descriptor in self.descriptors:
            os.close(descriptor)

    def _is_there(self) -> bool:
        """Whether the path still names the locked file, which may have been removed or replaced."""
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self.descriptor))
        except FileNotFoundError:
            return False


def _holder(path: Path) -> int | None:
    """The supervisor that a pidfile or a board names."""
    with suppress(BoardError), closing(Board.open(path)) as board:
        return board.snapshot(claims=False).pid
    with suppress(OSError):
        text = path.read_bytes()[:20].strip()
        return int(text) if text.isdigit() else None
    return None


def pidfile_path(directory: Path, name: str) -> Path:
    return directory / f"{name}.pid"


def check_free(path: Path, name: str) -> None:
    """NameTakenError if a supervisor holds the pidfile or the board `path`. Keeps no lock."""
    try:
        os.close(_locked(path, name, os.O_RDONLY, fcntl.LOCK_SH))
    except BoardError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise


def _locked(
    path: Path,
    name: str,
    flags: int = os.O_RDWR | os.O_CREAT,
    lock: int = fcntl.LOCK_EX,
    within: float = _EXIT_SECONDS,
) -> int:
    deadline = time.monotonic() + within
    while True:
        try:
            descriptor = open_ordinary(path, flags)
        except OSError as error:
            raise BoardError(
                f"{path} cannot be opened: {error.strerror}; "
                f"remove it, or choose another --runtime-dir"
            ) from error
        try:
            if _lock(descriptor, lock):
                return descriptor
        except OSError as error:
            os.close(descriptor)
            raise BoardError(
                f"{path} cannot be locked: {error.strerror}; "
                f"choose a --runtime-dir on another file system"
            ) from error
        # One that can be shared is held by `check_free` alone, and only for a moment.
        is_held = not _lock(descriptor, fcntl.LOCK_SH)
        os.close(descriptor)
        pid = _holder(path)
        is_running = is_held and (pid is None or pid_state(pid) is not PidState.GONE)
        if is_running or time.monotonic() > deadline:
            raise NameTakenError(name, pid)
        time.sleep(_POLL_SECONDS)


def _lock(descriptor: int, lock: int) -> bool:
    try:
        fcntl.flock(descriptor, lock | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class ListenError(CmdbusError):
    """The address cannot be bound."""

    #: Whether another process has it now.
    in_use = False


def listen(host: str, port: int) -> socket.socket:
    """A socket on which accept() never blocks."""
    deadline = time.monotonic() + _FREED_SECONDS
    while True:
        try:
            listener = bound(host, port, backlog=_BACKLOG)
            break
        except ListenError as error:
            if not error.in_use or time.monotonic() > deadline:
                raise
        time.sleep(_POLL_SECONDS)
    logger.info("probes, metrics and status are at %s", _url(listener))
    if _is_open(listener):
        logger.warning("%s", _open_text(listener))
    return listener


def _url(listener: socket.socket) -> str:
    return f"http://{address_text(*listener.getsockname()[:2])}"


def _is_open(listener: socket.socket) -> bool:
    """Whether other machines can reach it."""
    return not ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def _open_text(listener: socket.socket) -> str:
    return (
        f"any client that reaches {_url(listener)} can read which commands run here, without "
        f"their data: restrict access to it with a firewall or a network policy"
    )


def bound(host: str, port: int, backlog: int | None = None) -> socket.socket:
    """Without a `backlog` it is only bound: no client can connect."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        with ExitStack() as stack:
            listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            # A port stays usable while its last connections close.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            if backlog is not None:
                listener.listen(backlog)
            listener.setblocking(False)
            stack.pop_all()
            return listener
    except OSError as error:
        # Errors of getaddrinfo have numbers of their own.
        reason = _REASONS.get(error.errno or 0) if not isinstance(error, socket.gaierror) else None
        refusal = ListenError(
            f"cannot listen on {address_text(host, port)} (--http): {reason or error.strerror}"
        )
        refusal.in_use = error.errno == errno.EADDRINUSE
        raise refusal from None


def address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_host(settings: Settings) -> Iterator[Check]:
    """Keeps nothing. What a supervisor of this name has is only a warning: another one can
    start as soon as that has stopped."""
    directory = find_runtime_directory(settings.runtime_dir)
    taken = Finding.FATAL
    try:
        if os.path.lexists(directory):
            check_runtime_directory(directory)
        check_makeable(directory)
        check_free(pidfile_path(directory, settings.name), settings.name)
        check_free(board_path(directory, settings.name), settings.name)
        yield Check("name", Finding.OK, f"no supervisor named {settings.name!r} runs here")
    except NameTakenError as error:
        taken = Finding.WARNING
        yield Check("name", taken, str(error))
    except BoardError as error:
        yield Check("name", Finding.FATAL, str(error))
    if settings.http is None:
        return
    try:
        with closing(bound(*settings.http)) as listener:
            yield Check("http", Finding.OK, "its address is free")
            if _is_open(listener):
                yield Check("http", Finding.WARNING, _open_text(listener))
    except ListenError as error:
        yield Check("http", taken if error.in_use else Finding.FATAL, str(error))
