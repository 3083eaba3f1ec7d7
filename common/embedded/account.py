"""The OS user that the embedded PostgreSQL runs as, its directories, and locks on files.

Must never let a program that runs as this user see our environment, create a user, change the
permissions of a directory that we have not made, trust a directory that another user could have
made, or remove the file of a lock: two processes would each hold a lock of the same name.
"""

import fcntl
import hashlib
import os
import pwd
import re
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cmdbus.clock import time
from cmdbus.errors import EmbeddedError

_QUICK_SECONDS = 15.0
_POLL_SECONDS = 0.02
_SOCKET = ".s.PGSQL.5432"
#: Bytes of sun_path without its NUL.
_MAX_SOCKET_PATH = 107


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The current user; if that is root, an ordinary one."""

    name: str
    uid: int
    gid: int

    def run(
        self, *command: str | Path, timeout: float, stdin: str = "", in_terminal: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program as this user, with stdout and stderr captured together.

        Its environment is a new one: PGOPTIONS and similar variables would change what the
        programs do, and a server of another user must not read our DSN.
        `in_terminal`: whether signals of the terminal, like that of Ctrl-C, reach the program.
        """
        root = os.geteuid() == 0
        kept = {key: os.environ[key] for key in ("PATH", "LD_LIBRARY_PATH") if key in os.environ}
        try:
            return subprocess.run(
                command,
                input=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=timeout,
                cwd="/",
                env={"PATH": "/usr/bin:/bin", **kept, "LC_ALL": "C"},
                umask=0o077,
                process_group=None if in_terminal else 0,
                user=self.uid if root else None,
                group=self.gid if root else None,
                extra_groups=[] if root else None,
            )
        except subprocess.TimeoutExpired:
            raise EmbeddedError(f"{command[0]} did not finish within {timeout:g} s") from None
        except (OSError, subprocess.SubprocessError) as error:
            raise EmbeddedError(f"cannot run {command[0]} as {self.name}: {error}") from error

    def reaches(self, path: Path) -> bool:
        """Whether this user may enter the directory, or execute the program, at `path`."""
        if os.geteuid() != 0:
            return os.access(path, os.X_OK)
        # Only the kernel can answer for that user: file modes do not show ACLs and mounts.
        answer = self.run("/bin/sh", "-c", 'test -x "$1"', "sh", path, timeout=_QUICK_SECONDS)
        return answer.returncode == 0


def server_account() -> Account:
    """The current user; for root the one in CMDBUS_RUN_AS, else `postgres`, else `nobody`."""
    if (uid := os.geteuid()) != 0:
        try:
            return Account(name=pwd.getpwuid(uid).pw_name, uid=uid, gid=os.getegid())
        except KeyError:
            raise EmbeddedError(
                f"the user id {uid} has no name, and PostgreSQL needs one: add it to /etc/passwd"
            ) from None
    wanted = os.environ.get("CMDBUS_RUN_AS")
    for name in [wanted] if wanted else ["postgres", "nobody"]:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid == 0:
            raise EmbeddedError(
                "PostgreSQL refuses to run as root: name an ordinary user in CMDBUS_RUN_AS"
            )
        return Account(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid)
    raise EmbeddedError(
        f"there is no user {wanted or 'postgres or nobody'} that PostgreSQL could run as: "
        "name an ordinary user in CMDBUS_RUN_AS"
    )


def name_of(uid: int) -> str:
    """The user's name, or the number of a user without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


# Directories.


def state_directory(account: Account | None = None) -> Path:
    """The default directory of clusters: cmdbus in the user's state directory.

    For root that is XDG_STATE_HOME if root owns it and the server's user can reach it,
    else /var/lib/cmdbus; root's home is closed to other users, and we do not open it.
    """
    state_home = Path(os.environ.get("XDG_STATE_HOME", ""))
    if os.geteuid() != 0:
        home = state_home if state_home.is_absolute() else Path.home() / ".local" / "state"
        return home / "cmdbus"
    if state_home.is_absolute():
        existing = next(path for path in (state_home, *state_home.parents) if path.is_dir())
        if existing.stat().st_uid == 0 and (account or server_account()).reaches(existing):
            return state_home / "cmdbus"
    return Path("/var/lib/cmdbus")


def make_directory(path: Path, *, mode: int) -> None:
    """Makes `path` and the missing directories above it, whatever the umask."""
    if path.is_dir():
        return
    make_directory(path.parent, mode=mode)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return
    path.chmod(mode)


def claim_directory(directory: Path, account: Account) -> None:
    """Makes the directory, or checks that we have made it and that the account can enter it."""
    if re.search(r'["$`\\\n]', str(directory)):  # pg_ctl passes paths to a shell
        raise EmbeddedError(f"choose a directory without quotes: {directory}")
    make_directory(directory.parent, mode=0o755 if os.geteuid() == 0 else 0o700)
    directory.mkdir(mode=0o700, exist_ok=True)
    owner = directory.stat().st_uid
    if owner != os.geteuid():
        raise EmbeddedError(
            f"{directory} belongs to the user {name_of(owner)}: choose another directory"
        )
    if any(directory.iterdir()) and not (directory / "lock").exists():
        raise EmbeddedError(f"{directory} holds something else already: choose an empty directory")
    # Under root the server's group may pass through to `data`, and may not list the directory.
    os.chown(directory, -1, account.gid)
    directory.chmod(0o710 if os.geteuid() == 0 else 0o700)
    if not account.reaches(directory):
        raise EmbeddedError(
            f"the server's user {account.name} cannot reach {directory}: choose "
            "another directory, or another user in CMDBUS_RUN_AS"
        )


def make_socket_directory(directory: Path, account: Account) -> Path:
    """A directory of mode 0700 that belongs to the account, short enough for a socket."""
    chosen = _choose_socket_directory(directory, account)
    try:
        chosen.mkdir(mode=0o700)
        # Root has made it, and no other user can have replaced it since.
        os.chown(chosen, account.uid, account.gid, follow_symlinks=False)
    except FileExistsError:
        pass
    except OSError as error:
        raise EmbeddedError(f"cannot make {chosen} for the socket: {error.strerror}") from error
    status = chosen.lstat()
    is_private = stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o700
    if not is_private or status.st_uid != account.uid:
        raise EmbeddedError(
            f"{chosen} is not a directory that only the user {account.name} can enter: "
            "another user made it; remove it, or set TMPDIR to a directory of your own"
        )
    _remove_sockets(chosen)
    return chosen


def remove_socket_directory(directory: Path) -> None:
    """Of a stopped server; it stays if there are other files in it."""
    _remove_sockets(directory)
    with suppress(OSError):
        directory.rmdir()


def _choose_socket_directory(directory: Path, account: Account) -> Path:
    """In the cluster's directory, or elsewhere if its path does not suit a conninfo."""
    name = f"cmdbus-{hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]}"
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    candidates = [directory / "s", Path(tempfile.gettempdir()) / name]
    if os.geteuid() != 0 and os.access(runtime, os.W_OK | os.X_OK):
        candidates.insert(1, Path(runtime) / name)
    for path in candidates:
        is_plain = re.fullmatch(r"[\w./+@%=~-]+", str(path), re.ASCII)
        is_short = len(os.fsencode(path / _SOCKET)) <= _MAX_SOCKET_PATH
        if is_plain and is_short and account.reaches(path.parent):
            return path
    raise EmbeddedError(
        f"no directory for a socket whose path has at most {_MAX_SOCKET_PATH} plain characters "
        f"and that {account.name} can reach, not even {candidates[-1]}: "
        "set TMPDIR to another directory"
    )


def _remove_sockets(directory: Path) -> None:
    """A killed postmaster leaves them, and its pid may belong to another process by now."""
    for name in (_SOCKET, f"{_SOCKET}.lock"):
        (directory / name).unlink(missing_ok=True)


# Locks between processes: the kernel releases those of a killed process.


@contextmanager
def held(path: Path, *, timeout: float) -> Iterator[None]:
    descriptor = open_lock(path)
    try:
        deadline = time.monotonic() + timeout
        while not locked(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise EmbeddedError(
                    f"another process has held {path} for {timeout:g} s: "
                    f"find it with `fuser {path}` and stop it"
                )
            time.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            # Explicitly, as closing is not enough while a forked child has a copy.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def open_lock(path: Path) -> int:
    """A descriptor to lock with; no program that we start inherits it."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
