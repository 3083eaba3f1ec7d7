"""The users of the operating system that the embedded PostgreSQL may run as.

Runs programs as one of them, and asks what that user can reach. Must never let such a
program see our environment, and never create a user.
"""

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cmdbus.errors import EmbeddedError

_QUICK_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The OS user that the server runs as: ourselves, or somebody ordinary when we are root."""

    name: str
    uid: int
    gid: int

    def run(
        self, *command: str | Path, timeout: float, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as this user, output captured and joined.

        The environment is a new one: PGOPTIONS and its kin would change what the
        programs do, and the server, maybe another user's process, must not be able
        to read a DSN out of ours.
        """
        root = os.geteuid() == 0
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
                env=_environment(),
                umask=0o077,
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
        # Asked of the kernel as that user: modes alone know nothing of ACLs and mounts.
        answer = self.run("/bin/sh", "-c", 'test -x "$1"', "sh", path, timeout=_QUICK_S)
        return answer.returncode == 0


def server_account() -> Account:
    """Ourselves; for root, CMDBUS_RUN_AS, else `postgres`, else `nobody`."""
    if os.geteuid() != 0:
        return _ourselves()
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
    """The user's name, or the number of one that has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return {"PATH": "/usr/bin:/bin", **kept, "LC_ALL": "C"}


def _ourselves() -> Account:
    uid = os.geteuid()
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise EmbeddedError(
            f"the user id {uid} has no name, and PostgreSQL needs one: add it to /etc/passwd"
        ) from None
    return Account(name=entry.pw_name, uid=uid, gid=os.getegid())
