"""A private PostgreSQL for a first run, for tests and for development.

The cluster belongs to one OS user, is reached through a unix socket that only this user
(and root) can open, and is shared by all processes that name its directory. It is stopped
when the last of them leaves. Must never listen on TCP, trust anybody, import a database
driver, or change the permissions of a directory that it has not made.

What is in the directory:

    lock              held exclusively by whoever creates, starts or stops the server
    users             held shared by every user for as long as it is one; the kernel lets
                      go of a killed user's lock, so no list of pids can go stale
    data              the cluster; `data.tmp-*` until it is whole
    s                 the socket, unless its path would be too long
    postgresql.conf, pg_hba.conf, pg_ident.conf     written anew before each start
    log, log.1        what the server says, cut when a user comes or goes
"""

import fcntl
import hashlib
import logging
import os
import pwd
import re
import shlex
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import psutil

from cmdbus.binaries import (
    Account,
    EmbeddedError,
    find_programs,
    held,
    locked,
    make_directory,
    open_lock,
    server_account,
    within_reach,
)

__all__ = ["EmbeddedError", "EmbeddedPostgres", "state_directory"]

logger = logging.getLogger(__name__)

Setting = str | int | float | bool

_SOCKET = ".s.PGSQL.5432"
_SOCKET_PATH_BYTES = 107  # sun_path without its NUL
_CREATE_S = 120.0
_START_S = 60.0
_STOP_S = 60.0
_DOOR_S = _CREATE_S + _START_S + _STOP_S
_ORPHANS_S = 10.0
_POLL_S = 0.02
_LOG_BYTES = 4 * 1024 * 1024

_DEFAULTS: dict[str, Setting] = {
    "max_connections": 200,
    "jit": False,  # compiles for longer than our statements run
    "timezone": "UTC",
    # A container's /dev/shm has 64 MB, and systemd-logind empties it for a user who logs
    # out. The first 16 MB come out of the main memory segment, which is a plain mmap.
    "dynamic_shared_memory_type": "mmap",
    "min_dynamic_shared_memory": "16MB",
    "max_parallel_workers_per_gather": 0,
    "log_checkpoints": False,
    "log_min_error_statement": "panic",  # statements may carry payloads
    "log_line_prefix": "%m [%p] ",
}
# Prints whom it has sent what their postmaster would have sent.
_QUIT_ORPHANS = """
for process in /proc/[0-9]*; do
    [ "$process/cwd" -ef "$1" ] && read -r name < "$process/comm" && [ "$name" = postgres ] &&
        kill -QUIT "${process#/proc/}" && echo "${process#/proc/}"
done 2>/dev/null
"""
_VOLATILE: dict[str, Setting] = {
    "fsync": False,
    "synchronous_commit": False,
    "full_page_writes": False,
}
# What makes the server private is not for the caller to set.
_OURS = {
    "data_directory",
    "config_file",
    "hba_file",
    "ident_file",
    "listen_addresses",
    "port",
    "unix_socket_directories",
    "unix_socket_group",
    "unix_socket_permissions",
    "logging_collector",
    "log_destination",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Postmaster:
    """What a living postmaster has written into its postmaster.pid."""

    pid: int
    socket_directory: Path
    status: str  # starting, ready, stopping

    @classmethod
    def of(cls, data: Path) -> "_Postmaster | None":
        """None when no server of this directory is alive, whatever the file says."""
        try:
            lines = (data / "postmaster.pid").read_text().splitlines()
            process = psutil.Process(int(lines[0]))
            # A number is not a process: it may have been given to another one since. Of
            # the command line, because root in a container may not read another's cwd.
            if str(data) not in process.cmdline():
                return None
        except (OSError, ValueError, IndexError, psutil.Error):
            return None
        lines += [""] * (8 - len(lines))
        return cls(pid=process.pid, socket_directory=Path(lines[4]), status=lines[7].strip())


class EmbeddedPostgres:
    """One user's hold on a private server; `with` it, or call start() and close().

    `directory` defaults to `pg<major>` below state_directory(). Settings take effect when
    the server starts: whoever finds it running gets it as it is, with a warning if that
    differs, and an error if durability was asked for and is not there. A server without
    it may lose everything with the machine's power, but nothing with a killed process.

    Fork: a child inherits the parent's hold without being a user. close() does nothing in
    it, and when the parent closes and is the last, the server stops under the child.
    Should the parent be killed, its children keep the hold until they end. A child that
    wants the server for itself opens an EmbeddedPostgres of its own.

    No thread safety: one thread opens and closes.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        durable: bool = True,
        settings: Mapping[str, Setting] | None = None,
    ) -> None:
        self.durable = durable
        self._settings = _checked(settings or {})
        self._account = server_account()
        self._programs = find_programs()
        default = state_directory(self._account) / f"pg{self._programs.major}"
        self.directory = Path(directory or default).resolve()
        self._data = self.directory / "data"
        self._users: int | None = None
        self._opener = 0
        self._socket_directory: Path | None = None

    @property
    def bin(self) -> Path:
        """Where the server's programs are."""
        return self._programs.bin

    @property
    def version(self) -> str:
        return self._programs.version

    @property
    def dsn(self) -> str:
        """A conninfo string; the database `cmdbus` exists and its superuser is us."""
        if self._socket_directory is None:
            raise EmbeddedError("the embedded PostgreSQL has no DSN before start()")
        return f"host={self._socket_directory} user=cmdbus dbname=cmdbus"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Become a user of the server and bring it up; a user's second call only brings it up."""
        try:
            self._claim_directory()
            with held(self.directory / "lock", timeout=_DOOR_S):
                self._enter()
        except OSError as error:
            raise EmbeddedError(
                f"cannot use {self.directory}: {error.strerror}; make it writable, or set "
                "XDG_STATE_HOME to a directory that is"
            ) from error
        self._announce()

    def close(self) -> None:
        """Stop being a user; the last one stops the server. May be called again."""
        if self._users is None or self._opener != os.getpid():
            return
        if not self.directory.exists():  # a postmaster ends by itself when its files are gone
            self._leave()
            return
        with held(self.directory / "lock", timeout=_DOOR_S):
            try:
                if locked(self._users, fcntl.LOCK_EX):
                    self._shut_down("fast")
                self._cut_log()
            finally:
                self._leave()

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server under its users, for tests of what they do then; start() revives it."""
        with held(self.directory / "lock", timeout=_DOOR_S):
            self._shut_down(mode)

    def _claim_directory(self) -> None:
        """Make the directory, or see that it is one of ours and that its user can enter it."""
        if re.search(r'["$`\\\n]', str(self.directory)):
            raise EmbeddedError(f"choose a directory without quotes: {self.directory}")
        make_directory(self.directory.parent, mode=0o755 if os.geteuid() == 0 else 0o700)
        self.directory.mkdir(mode=0o700, exist_ok=True)
        self._check_ours()
        # For root, the server's group may pass through to `data`, and no one may look.
        os.chown(self.directory, -1, self._account.gid)
        self.directory.chmod(0o710 if os.geteuid() == 0 else 0o700)
        if not self._account.reaches(self.directory):
            raise EmbeddedError(
                f"the server's user {self._account.name} cannot reach {self.directory}: choose "
                "another directory, or another user in CMDBUS_RUN_AS"
            )

    def _check_ours(self) -> None:
        owner = self.directory.stat().st_uid
        if owner != os.geteuid():
            raise EmbeddedError(
                f"{self.directory} belongs to the user {_name_of(owner)}: choose another directory"
            )
        if any(self.directory.iterdir()) and not (self.directory / "lock").exists():
            raise EmbeddedError(
                f"{self.directory} holds something else already: choose an empty directory"
            )

    def _enter(self) -> None:
        self._programs = within_reach(self._programs, self._account, state_directory(self._account))
        joined = self._join()
        try:
            self._create()
            self._bring_up()
        except BaseException:
            if joined:
                self._leave()
            raise

    def _join(self) -> bool:
        """Take a user's lock, or say False when we have it."""
        if self._users is not None:
            if self._opener == os.getpid():
                return False
            os.close(self._users)  # a copy that fork made; the parent's lock stays
        self._users = open_lock(self.directory / "users")
        self._opener = os.getpid()
        # Only the one who holds the door tries for the exclusive lock, and that is us.
        fcntl.flock(self._users, fcntl.LOCK_SH)
        self._cut_log()
        return True

    def _leave(self) -> None:
        assert self._users is not None
        fcntl.flock(self._users, fcntl.LOCK_UN)  # also for the copies in forked children
        os.close(self._users)
        self._users = None

    def _create(self) -> None:
        """Make the cluster unless there is one; it has its name only when it is whole."""
        if self._data.exists():
            self._check_fits()
            return
        for left in self.directory.glob("data.tmp-*"):  # by somebody who was killed
            shutil.rmtree(left, ignore_errors=True)
        fresh = Path(tempfile.mkdtemp(prefix="data.tmp-", dir=self.directory))
        try:
            os.chown(fresh, self._account.uid, self._account.gid)
            self._initdb(fresh)
            fresh.rename(self._data)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def _initdb(self, fresh: Path) -> None:
        options = ["--username=cmdbus", "--auth-local=peer", "--auth-host=reject"]
        options += ["--encoding=UTF8", "--locale=C", "--data-checksums", "--no-instructions"]
        options += [] if self.durable else ["--no-sync"]
        self._run("initdb", *options, "-D", fresh, timeout=_CREATE_S)
        # A server of one session, before anybody can connect: no driver and no socket needed.
        single = ["--single", "-c", "exit_on_error=on", "-c", "log_checkpoints=off"]
        single += [] if self.durable else ["-F"]
        self._run(
            "postgres",
            *single,
            "-D",
            fresh,
            "postgres",
            timeout=_CREATE_S,
            stdin="CREATE DATABASE cmdbus;\n",
        )

    def _check_fits(self) -> None:
        owner = self._data.stat().st_uid
        if owner != self._account.uid:
            raise EmbeddedError(
                f"{self._data} belongs to the user {_name_of(owner)}: name that one in "
                "CMDBUS_RUN_AS, or choose another directory"
            )
        major = (self._data / "PG_VERSION").read_text().strip()
        if major != str(self._programs.major):
            raise EmbeddedError(
                f"{self._data} is of PostgreSQL {major} and the programs in {self.bin} are "
                f"{self.version}: point CMDBUS_PG_BIN to those of {major}, or choose "
                "another directory"
            )

    def _bring_up(self) -> None:
        postmaster = self._settled(time.monotonic() + _START_S)
        if postmaster is None:
            self._clear_remains()
            self._launch()
            postmaster = _Postmaster.of(self._data)
            if postmaster is None:
                raise EmbeddedError(f"PostgreSQL ended as soon as it ran: {self._last_words()}")
        else:
            self._compare_settings()
        self._socket_directory = postmaster.socket_directory

    def _settled(self, deadline: float) -> _Postmaster | None:
        """The running server, or None once there is none; waits while it is neither.

        Whoever started or stopped it may have been killed half-way.
        """
        while (postmaster := _Postmaster.of(self._data)) and postmaster.status != "ready":
            if time.monotonic() > deadline:
                raise EmbeddedError(
                    f"the server (pid {postmaster.pid}) has been {postmaster.status or 'starting'} "
                    f"for {_START_S:g} s: {self._last_words()}"
                )
            time.sleep(_POLL_S)
        return postmaster

    def _clear_remains(self) -> None:
        """Make way after a postmaster that was killed.

        Its backends may still run and hold the shared memory, and its number may be a
        zombie's or by now another process's: PostgreSQL refuses to start in all of these.
        """
        left = self._data / "postmaster.pid"
        if not left.exists():
            return
        deadline = time.monotonic() + _ORPHANS_S
        # Asked as the server's user, for the same reason as in _Postmaster.of.
        while orphans := self._account.run(
            "/bin/sh", "-c", _QUIT_ORPHANS, "sh", self._data, timeout=_ORPHANS_S
        ).stdout.split():
            if time.monotonic() > deadline:
                raise EmbeddedError(
                    f"processes of a killed server are still at work in {self._data}: "
                    f"run: kill -9 {' '.join(orphans)}"
                )
            time.sleep(_POLL_S)
        left.unlink(missing_ok=True)

    def _launch(self) -> None:
        sockets = self._make_socket_directory()
        self._write("pg_hba.conf", "local all all peer map=cmdbus\n")
        self._write("pg_ident.conf", self._identities())
        self._write("postgresql.conf", self._configuration(sockets))
        log = self.directory / "log"
        _create_file(log, self._account)
        configuration = shlex.quote(str(self.directory / "postgresql.conf"))
        options = ["-w", "-t", f"{_START_S:.0f}", "-o", f"-c config_file={configuration}"]
        self._run("pg_ctl", "start", "-D", self._data, "-l", log, *options, timeout=_START_S + 5)

    def _shut_down(self, mode: Literal["fast", "immediate"]) -> None:
        if self._settled(time.monotonic() + _START_S) is not None:
            self._stop_postmaster(mode)
        sockets = self._socket_directory
        if sockets is not None and sockets.parent != self.directory:
            _remove_sockets(sockets)
            with suppress(OSError):
                sockets.rmdir()

    def _stop_postmaster(self, mode: Literal["fast", "immediate"]) -> None:
        options = ["-D", str(self._data), "-w", "-t", f"{_STOP_S:.0f}"]
        try:
            self._run("pg_ctl", "stop", "-m", mode, *options, timeout=_STOP_S + 5)
        except EmbeddedError as error:
            logger.warning("%s; stopping it at once, the next start will recover", error)
            self._run("pg_ctl", "stop", "-m", "immediate", *options, timeout=_STOP_S + 5)

    def _make_socket_directory(self) -> Path:
        """A directory of mode 0700 that is the server's user's, short enough for a socket."""
        wanted = self._choose_socket_directory()
        try:
            wanted.mkdir(mode=0o700)
            # Root has made it and nobody else could have removed it since.
            os.chown(wanted, self._account.uid, self._account.gid, follow_symlinks=False)
        except FileExistsError:
            pass
        except OSError as error:
            raise EmbeddedError(f"cannot make {wanted} for the socket: {error.strerror}") from error
        found = wanted.lstat()
        private = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700
        if not private or found.st_uid != self._account.uid:
            raise EmbeddedError(
                f"{wanted} is not a directory that only the user {self._account.name} can enter: "
                "somebody else made it; remove it, or set TMPDIR to a directory of your own"
            )
        _remove_sockets(wanted)
        return wanted

    def _choose_socket_directory(self) -> Path:
        """In the cluster's directory; if its name is no good for a conninfo, elsewhere."""
        name = f"cmdbus-{hashlib.sha256(os.fsencode(self.directory)).hexdigest()[:16]}"
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
        places = [self.directory / "s", Path(tempfile.gettempdir()) / name]
        if os.geteuid() != 0 and os.access(runtime, os.W_OK | os.X_OK):
            places.insert(1, Path(runtime) / name)
        for place in places:
            plain = re.fullmatch(r"[\w./+@%=~-]+", str(place), re.ASCII)
            short = len(os.fsencode(place / _SOCKET)) <= _SOCKET_PATH_BYTES
            if plain and short and self._account.reaches(place.parent):
                return place
        raise EmbeddedError(
            f"no place for a socket whose path has at most {_SOCKET_PATH_BYTES} plain characters "
            f"and that {self._account.name} can reach, not even {places[-1]}: "
            "set TMPDIR to another directory"
        )

    def _identities(self) -> str:
        people = {self._account.name, _name_of(os.geteuid())}
        return "".join(f'cmdbus "{name}" cmdbus\n' for name in sorted(people))

    def _configuration(self, sockets: Path) -> str:
        values = _DEFAULTS | ({} if self.durable else _VOLATILE) | self._settings
        values |= {
            "listen_addresses": "",
            "unix_socket_directories": str(sockets),
            "unix_socket_permissions": "0700",
            "port": 5432,
            "hba_file": str(self.directory / "pg_hba.conf"),
            "ident_file": str(self.directory / "pg_ident.conf"),
        }
        return "".join(f"{name} = {_rendered(value)}\n" for name, value in values.items())

    def _compare_settings(self) -> None:
        running = (self.directory / "postgresql.conf").read_text().splitlines()
        if self.durable and "fsync = off" in running:
            raise EmbeddedError(
                f"the server in {self.directory} runs without durability for somebody else: "
                "choose another directory, or wait until its users have left"
            )
        differing = [
            name
            for name, value in self._settings.items()
            if f"{name} = {_rendered(value)}" not in running
        ]
        if differing:
            logger.warning(
                "the server in %s runs already: %s take effect when it next starts",
                self.directory,
                ", ".join(differing),
            )

    def _write(self, name: str, text: str) -> None:
        """Put a file in place whole, for the server to read and, under root, not to write."""
        fresh = self.directory / f"{name}.tmp"
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            os.fchown(file.fileno(), -1, self._account.gid)
            os.fchmod(file.fileno(), 0o640 if os.geteuid() == 0 else 0o600)
            file.write(text)
        fresh.replace(self.directory / name)

    def _cut_log(self) -> None:
        """Keep the last part of a long log. The server appends, so it may be running."""
        log = self.directory / "log"
        if not log.exists() or log.stat().st_size <= _LOG_BYTES:
            return
        with log.open("r+b") as file:
            file.seek(-_LOG_BYTES, os.SEEK_END)
            with suppress(OSError):  # a full disk needs the cut more than the copy
                (self.directory / "log.1").write_bytes(file.read())
                (self.directory / "log.1").chmod(0o600)
            file.truncate(0)

    def _run(self, program: str, *arguments: str | Path, timeout: float, stdin: str = "") -> None:
        answer = self._account.run(self.bin / program, *arguments, timeout=timeout, stdin=stdin)
        if answer.returncode == 0:
            return
        said = f"{answer.stdout}\n{self._last_words()}"
        if "No space left on device" in said:
            raise EmbeddedError(
                f"the disk that holds {self.directory} is full: free some of it, or set "
                "XDG_STATE_HOME to a directory on another"
            )
        raise EmbeddedError(
            f"{program} failed (exit {answer.returncode}) for {self.directory}: {_tail(said)}"
        )

    def _last_words(self) -> str:
        try:
            with (self.directory / "log").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
                return _tail(file.read().decode(errors="replace"))
        except OSError:
            return ""

    def _announce(self) -> None:
        logger.info(
            "embedded PostgreSQL %s, data in %s, %s",
            self.version,
            self._data,
            "durable" if self.durable else "not durable (fsync off)",
        )
        if "INVOCATION_ID" in os.environ:
            logger.warning(
                "the embedded PostgreSQL is for first runs and tests: systemd kills it together "
                "with the unit that started it; name a server of its own with --dsn"
            )


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


def _checked(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    for name in settings:
        if name in _OURS or not re.fullmatch(r"[a-z_][a-z0-9_.]*", name):
            raise ValueError(f"{name!r} is not a setting of the embedded PostgreSQL to choose")
    return dict(settings)


def _rendered(value: Setting) -> str:
    match value:
        case bool():
            return "on" if value else "off"
        case int() | float():
            return str(value)
        case str():
            return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _remove_sockets(directory: Path) -> None:
    """A killed postmaster leaves them, and its number may belong to a zombie or a stranger."""
    for name in (_SOCKET, f"{_SOCKET}.lock"):
        (directory / name).unlink(missing_ok=True)


def _create_file(path: Path, owner: Account) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    os.fchown(descriptor, owner.uid, owner.gid)
    os.close(descriptor)


def _tail(text: str) -> str:
    """The end of it as one line."""
    return " | ".join(line.strip() for line in text.splitlines() if line.strip())[-800:]
