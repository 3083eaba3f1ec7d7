"""The directories of the embedded PostgreSQL: for its state, for a cluster, for its socket.

Must never change the permissions of a directory that it has not made, nor trust one that
somebody else could have made.
"""

import hashlib
import os
import re
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from cmdbus.embedded.accounts import Account, name_of, server_account
from cmdbus.errors import EmbeddedError

_SOCKET = ".s.PGSQL.5432"
_SOCKET_PATH_BYTES = 107  # sun_path without its NUL


def state_directory(account: Account | None = None) -> Path:
    """Where clusters live unless told otherwise: the user's state directory.

    For root that is XDG_STATE_HOME if root owns it and the server's user can reach it,
    else /var/lib/cmdbus; root's home is closed to others, and we do not open it.
    """
    told = Path(os.environ.get("XDG_STATE_HOME", ""))
    if os.geteuid() != 0:
        home = told if told.is_absolute() else Path.home() / ".local" / "state"
        return home / "cmdbus"
    if told.is_absolute():
        existing = next(path for path in (told, *told.parents) if path.is_dir())
        if existing.stat().st_uid == 0 and (account or server_account()).reaches(existing):
            return told / "cmdbus"
    return Path("/var/lib/cmdbus")


def make_directory(path: Path, *, mode: int) -> None:
    """Make `path` and what is missing above it, whatever the umask; leave alone what exists."""
    if path.is_dir():
        return
    make_directory(path.parent, mode=mode)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return
    path.chmod(mode)


def claim_directory(directory: Path, account: Account) -> None:
    """Make the directory, or see that it is one of ours and that its user can enter it."""
    if re.search(r'["$`\\\n]', str(directory)):
        raise EmbeddedError(f"choose a directory without quotes: {directory}")
    make_directory(directory.parent, mode=0o755 if os.geteuid() == 0 else 0o700)
    directory.mkdir(mode=0o700, exist_ok=True)
    _check_ours(directory)
    # For root, the server's group may pass through to `data`, and no one may look.
    os.chown(directory, -1, account.gid)
    directory.chmod(0o710 if os.geteuid() == 0 else 0o700)
    if not account.reaches(directory):
        raise EmbeddedError(
            f"the server's user {account.name} cannot reach {directory}: choose "
            "another directory, or another user in CMDBUS_RUN_AS"
        )


def make_socket_directory(directory: Path, account: Account) -> Path:
    """A directory of mode 0700 that is the server's user's, short enough for a socket."""
    wanted = _choose_socket_directory(directory, account)
    try:
        wanted.mkdir(mode=0o700)
        # Root has made it and nobody else could have removed it since.
        os.chown(wanted, account.uid, account.gid, follow_symlinks=False)
    except FileExistsError:
        pass
    except OSError as error:
        raise EmbeddedError(f"cannot make {wanted} for the socket: {error.strerror}") from error
    found = wanted.lstat()
    private = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700
    if not private or found.st_uid != account.uid:
        raise EmbeddedError(
            f"{wanted} is not a directory that only the user {account.name} can enter: "
            "somebody else made it; remove it, or set TMPDIR to a directory of your own"
        )
    _remove_sockets(wanted)
    return wanted


def remove_socket_directory(directory: Path) -> None:
    """Remove a stopped server's, unless there is by now something else in it."""
    _remove_sockets(directory)
    with suppress(OSError):
        directory.rmdir()


def _check_ours(directory: Path) -> None:
    owner = directory.stat().st_uid
    if owner != os.geteuid():
        raise EmbeddedError(
            f"{directory} belongs to the user {name_of(owner)}: choose another directory"
        )
    if any(directory.iterdir()) and not (directory / "lock").exists():
        raise EmbeddedError(f"{directory} holds something else already: choose an empty directory")


def _choose_socket_directory(directory: Path, account: Account) -> Path:
    """In the cluster's directory; if its name is no good for a conninfo, elsewhere."""
    name = f"cmdbus-{hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]}"
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    places = [directory / "s", Path(tempfile.gettempdir()) / name]
    if os.geteuid() != 0 and os.access(runtime, os.W_OK | os.X_OK):
        places.insert(1, Path(runtime) / name)
    for path in places:
        plain = re.fullmatch(r"[\w./+@%=~-]+", str(path), re.ASCII)
        short = len(os.fsencode(path / _SOCKET)) <= _SOCKET_PATH_BYTES
        if plain and short and account.reaches(path.parent):
            return path
    raise EmbeddedError(
        f"no place for a socket whose path has at most {_SOCKET_PATH_BYTES} plain characters "
        f"and that {account.name} can reach, not even {places[-1]}: "
        "set TMPDIR to another directory"
    )


def _remove_sockets(directory: Path) -> None:
    """A killed postmaster leaves them, and its number may belong to a zombie or a stranger."""
    for name in (_SOCKET, f"{_SOCKET}.lock"):
        (directory / name).unlink(missing_ok=True)
