"""The runtime directory: where a node's board, pidfile and stack dumps are, by the
supervisor's name.

Its writers and readers must find the same place, so only the user and the machine decide it. Must
never use a directory in which another user could put a file.
"""

import logging
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cmdbus.errors import BoardError

_logger = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
#: Files that a supervisor makes in its runtime directory.
_FILE = re.compile(r".*\.(board(\.\d+)?|pid|stacks|log)")
_ADVICE = "choose another one with --runtime-dir"
_SHARED_MEMORY = Path("/dev/shm")
_RUN = Path("/run")


def find_runtime_directory(chosen: Path | None = None) -> Path:
    """The chosen directory, or the first of the usual places. It may not exist yet."""
    if chosen is not None:
        return chosen if chosen.is_absolute() else working_directory() / chosen
    path = next(usual_places())
    if path.parent == Path(tempfile.gettempdir()):
        _logger.warning(
            "the runtime directory is %s, which may be on a disk and may be cleaned up; "
            "choose a better one with --runtime-dir",
            path,
        )
    return path


def working_directory() -> Path:
    """Refuses one that was removed."""
    try:
        return Path.cwd()
    except OSError as error:
        raise BoardError(
            f"the working directory of this process is gone ({error.strerror}): change to one that "
            f"exists"
        ) from None


def usual_places() -> Iterator[Path]:
    """Where this user's runtime directory may be on this machine, the first choice first."""
    uid = os.geteuid()
    path = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    # After su or sudo the variable may still name another user's directory.
    if path.is_absolute() and _is_own(path):
        yield path / "cmdbus"
    if uid == 0 and _is_writable(_RUN):
        yield _RUN / "cmdbus"
    if _is_writable(_SHARED_MEMORY):
        yield _SHARED_MEMORY / f"cmdbus-{uid}"
    yield Path(tempfile.gettempdir()) / f"cmdbus-{uid}"


def make_runtime_directory(directory: Path) -> Path:
    """Makes it and its missing parents, or checks that it is private to this user."""
    try:
        with suppress(FileExistsError):
            directory.parent.mkdir(parents=True, exist_ok=True)
            directory.mkdir(mode=0o700)
            directory.chmod(0o700)  # whatever the umask
    except OSError as error:
        raise _unusable(directory, f"cannot be made: {error.strerror}; {_ADVICE}") from error
    return check_runtime_directory(directory)


def check_runtime_directory(directory: Path) -> Path:
    """Refuses one that is missing, or in which another user could have put a file."""
    try:
        found = directory.lstat()
    except OSError as error:
        raise _unusable(directory, f"cannot be used: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "not a directory"
        raise _unusable(directory, f"is {kind}: {_ADVICE}")
    if found.st_uid != os.geteuid():
        owner = f"belongs to user {found.st_uid}, and this is user {os.geteuid()}"
        raise _unusable(directory, f"{owner}: {_ADVICE}")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise _unusable(directory, f"is open to others: {_closing(directory)}")
    return directory


def check_makeable(directory: Path) -> None:
    """Refuses a directory that cannot be made or written. Leaves nothing behind."""
    above = next(path for path in (directory, *directory.parents) if os.path.lexists(path))
    try:
        Path(tempfile.mkdtemp(dir=above)).rmdir()
    except OSError as error:
        does = "written" if above == directory else "made"
        raise _unusable(directory, f"cannot be {does}: {error.strerror}; {_ADVICE}") from error


def _unusable(directory: Path, problem: str) -> BoardError:
    return BoardError(f"the runtime directory {directory} {problem}")


def _closing(directory: Path) -> str:
    """The advice about an open directory. One that holds other files must stay as it is."""
    if all(_FILE.fullmatch(path.name) for path in directory.iterdir()):
        return f"run chmod 700 {directory}"
    return f"choose one of its own, for example --runtime-dir {directory / 'cmdbus'}"


def board_path(directory: Path, name: str) -> Path:
    return directory / f"{check_supervisor_name(name)}.board"


def check_supervisor_name(name: str) -> str:
    """Returns the name, after which files are named; ValueError if it is not valid."""
    if not _NAME.match(name):
        raise ValueError(
            f"name must be a letter or digit and up to 63 more of A-Z a-z 0-9 _ . - (ASCII), "
            f"not {name!a:.120}"
        )
    return name


def _is_own(directory: Path) -> bool:
    try:
        found = directory.stat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and _is_writable(directory)


def _is_writable(directory: Path) -> bool:
    return os.access(directory, os.W_OK | os.X_OK)
