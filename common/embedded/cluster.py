"""The cluster of an embedded PostgreSQL: its data, its configuration, and its server process.

Must never touch data of another user or of another major version, listen on TCP, trust a client,
or believe a pid file: the process that it names may be dead, or another one by now.

Files in the directory:

    lock              held exclusively by the process that creates, starts or stops the server
    users             held shared by each user of the server; the kernel releases the lock of
                      a killed user, so no list of pids can become stale
    data              the cluster; `data.tmp` until it is whole
    s                 the socket, unless its path would be too long
    postgresql.conf, pg_hba.conf, pg_ident.conf     written before each start
    log, log.1        the server's log, shortened when a user arrives or leaves
"""

import logging
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from cmdbus.clock import time
from cmdbus.database.statements import render
from cmdbus.embedded.account import Account, make_socket_directory, name_of
from cmdbus.embedded.programs import Programs
from cmdbus.errors import EmbeddedError

logger = logging.getLogger(__name__)

Setting = str | int | float | bool

CREATE_SECONDS = 120.0
START_SECONDS = 60.0
STOP_SECONDS = 60.0
_ORPHANS_SECONDS = 10.0
_POLL_SECONDS = 0.02
_MAX_LOG_BYTES = 4 * 1024 * 1024

_DEFAULTS: dict[str, Setting] = {
    "max_connections": 200,
    "jit": False,  # compiles for longer than our statements run
    "timezone": "UTC",
    # A container's /dev/shm has 64 MB, and systemd-logind empties it when its user logs
    # out. The first 16 MB come out of the main memory segment, which is a plain mmap.
    "dynamic_shared_memory_type": "mmap",
    "min_dynamic_shared_memory": "16MB",
    "max_parallel_workers_per_gather": 0,
    "log_checkpoints": False,
    "log_min_error_statement": "panic",  # statements may carry payloads
    "log_line_prefix": "%m [%p] ",
}
_VOLATILE: dict[str, Setting] = {
    "fsync": False,
    "synchronous_commit": False,
    "full_page_writes": False,
}
#: These make the server private.
_PRIVATE: dict[str, Setting] = {
    "listen_addresses": "",
    "unix_socket_directories": "",
    "unix_socket_permissions": "0700",
    "port": 5432,
    "hba_file": "",
    "ident_file": "",
}

# Sends the server processes below a directory the signal that their postmaster would have sent,
# and prints their pids.
_QUIT_ORPHANS = """
for process in /proc/[0-9]*; do
    [ "$process/cwd" -ef "$1" ] && read -r name < "$process/comm" && [ "$name" = postgres ] &&
        kill -QUIT "${process#/proc/}" && echo "${process#/proc/}"
done 2>/dev/null
"""


def check_settings(settings: Mapping[str, Setting]) -> None:
    for name in settings:
        if name in _PRIVATE or not re.fullmatch(r"[a-z_][a-z0-9_.]*", name):
            raise ValueError(f"the embedded PostgreSQL does not allow the setting {name!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Postmaster:
    """The contents of a living postmaster's postmaster.pid."""

    pid: int
    socket_directory: Path
    status: str  # starting, ready, stopping

    @classmethod
    def of(cls, data: Path) -> "Postmaster | None":
        """None if no server of this directory is alive, whatever the file contains."""
        try:
            lines = (data / "postmaster.pid").read_text().splitlines()
            process = psutil.Process(int(lines[0]))
            # The pid may belong to another process by now. The command line shows that also
            # to root in a container, which may not read another user's cwd.
            if str(data) not in process.cmdline():
                return None
        except (OSError, ValueError, IndexError, psutil.Error):
            return None
        lines += [""] * (8 - len(lines))
        return cls(pid=process.pid, socket_directory=Path(lines[4]), status=lines[7].strip())


@dataclass(slots=True, kw_only=True)
class Cluster:
    """Callers of the methods that create, start or stop hold the directory's `lock`."""

    directory: Path
    account: Account
    programs: Programs
    durable: bool
    settings: dict[str, Setting]

    @property
    def data(self) -> Path:
        return self.directory / "data"

    # Data.

    def create(self) -> None:
        """Makes the data unless they exist; they have their name only when they are whole."""
        if self.data.exists():
            self._check_fits()
            return
        fresh = self.directory / "data.tmp"
        shutil.rmtree(fresh, ignore_errors=True)  # of a killed process
        fresh.mkdir(mode=0o700)
        os.chown(fresh, self.account.uid, self.account.gid)
        self._initdb(fresh)
        fresh.rename(self.data)

    def _check_fits(self) -> None:
        owner = self.data.stat().st_uid
        if owner != self.account.uid:
            raise EmbeddedError(
                f"{self.data} belongs to the user {name_of(owner)}: name that one in "
                "CMDBUS_RUN_AS, or choose another directory"
            )
        major = (self.data / "PG_VERSION").read_text().strip()
        if major != str(self.programs.major):
            raise EmbeddedError(
                f"{self.data} is of PostgreSQL {major} and the programs in {self.programs.bin} are "
                f"{self.programs.version}: point CMDBUS_PG_BIN to those of {major}, or choose "
                "another directory"
            )

    def _initdb(self, fresh: Path) -> None:
        options = ["--username=cmdbus", "--auth-local=peer", "--auth-host=reject"]
        options += ["--encoding=UTF8", "--locale=C", "--data-checksums", "--no-instructions"]
        options += [] if self.durable else ["--no-sync"]
        self._run("initdb", *options, "-D", fresh, timeout=CREATE_SECONDS)
        options = ["--single"] + ([] if self.durable else ["-F"])
        database = render("create_database", "cmdbus")
        self._run(
            "postgres", *options, "-D", fresh, "postgres", timeout=CREATE_SECONDS, stdin=database
        )

    # Server.

    def start(self) -> tuple[Postmaster, bool]:
        """Returns the running server, and whether it had to be started."""
        postmaster = self.postmaster()
        if postmaster is not None:
            self._check_durable()
            return postmaster, False
        self._end_orphans()
        sockets = make_socket_directory(self.directory, self.account)
        self._configure(sockets)
        self._create_log()
        file = shlex.quote(str(self.directory / "postgresql.conf"))
        options = ["-w", "-t", f"{START_SECONDS:.0f}", "-o", f"-c config_file={file}"]
        options += ["-D", str(self.data), "-l", str(self._log)]
        self._run("pg_ctl", "start", *options, timeout=START_SECONDS + 5)
        postmaster = Postmaster.of(self.data)
        if postmaster is None:
            raise EmbeddedError(f"PostgreSQL ended as soon as it ran: {self._last_words()}")
        return postmaster, True

    def stop(self, mode: Literal["fast", "immediate"]) -> None:
        """Stops the server, if one runs; returns when it has ended."""
        if self.postmaster() is None:
            return
        try:
            self._stop(mode)
        except EmbeddedError as error:
            logger.warning("%s; stopping it immediately, the next start will recover", error)
            self._stop("immediate")

    def _stop(self, mode: Literal["fast", "immediate"]) -> None:
        """Ctrl-C does not reach pg_ctl: an impatient user's second one would end it."""
        options = ["-m", mode, "-D", self.data, "-w", "-t", f"{STOP_SECONDS:.0f}"]
        try:
            self._run("pg_ctl", "stop", *options, timeout=STOP_SECONDS + 5, in_terminal=False)
        except EmbeddedError:
            if Postmaster.of(self.data) is not None:
                raise

    def postmaster(self) -> Postmaster | None:
        """The running server, or None. Waits while it starts or stops: the process that ordered
        that may have been killed meanwhile."""
        deadline = time.monotonic() + START_SECONDS
        while (found := Postmaster.of(self.data)) and found.status != "ready":
            if time.monotonic() > deadline:
                raise EmbeddedError(
                    f"the server (pid {found.pid}) has been {found.status or 'starting'} "
                    f"for {START_SECONDS:g} s: {self._last_words()}"
                )
            time.sleep(_POLL_SECONDS)
        return found

    def _end_orphans(self) -> None:
        """Backends of a killed postmaster hold its shared memory, and its pid may belong to a
        zombie or to another process by now: PostgreSQL refuses to start in each case."""
        left = self.data / "postmaster.pid"
        if not left.exists():
            return
        deadline = time.monotonic() + _ORPHANS_SECONDS
        # As the server's user, for the same reason as in Postmaster.of.
        while orphans := self.account.run(
            "/bin/sh", "-c", _QUIT_ORPHANS, "sh", self.data, timeout=_ORPHANS_SECONDS
        ).stdout.split():
            if time.monotonic() > deadline:
                raise EmbeddedError(
                    f"processes of a killed server are still at work in {self.data}: "
                    f"run: kill -9 {' '.join(orphans)}"
                )
            time.sleep(_POLL_SECONDS)
        left.unlink(missing_ok=True)

    # Configuration.

    def _check_durable(self) -> None:
        """Settings take effect at the next start; durability cannot wait for that."""
        running = (self.directory / "postgresql.conf").read_text().splitlines()
        if self.durable and "fsync = off" in running:
            raise EmbeddedError(
                f"the server in {self.directory} runs without durability for another user: "
                "choose another directory, or wait until its users have left"
            )

    def _configure(self, sockets: Path) -> None:
        hba, ident = self.directory / "pg_hba.conf", self.directory / "pg_ident.conf"
        values = _DEFAULTS | ({} if self.durable else _VOLATILE) | self.settings | _PRIVATE
        values |= {"unix_socket_directories": str(sockets)}
        values |= {"hba_file": str(hba), "ident_file": str(ident)}
        people = sorted({self.account.name, name_of(os.geteuid())})
        self._write(hba, "local all all peer map=cmdbus\n")
        self._write(ident, "".join(f'cmdbus "{name}" cmdbus\n' for name in people))
        text = "".join(f"{name} = {_rendered(value)}\n" for name, value in values.items())
        self._write(self.directory / "postgresql.conf", text)

    def _write(self, path: Path, text: str) -> None:
        """Replaces a file, which the server may read and, under root, not write."""
        fresh = path.with_name(f"{path.name}.tmp")
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            os.fchown(file.fileno(), -1, self.account.gid)
            os.fchmod(file.fileno(), 0o640 if os.geteuid() == 0 else 0o600)
            file.write(text)
        fresh.replace(path)

    # Programs, and the server's log.

    def _run(
        self,
        program: str,
        *arguments: str | Path,
        timeout: float,
        stdin: str = "",
        in_terminal: bool = True,
    ) -> None:
        """Runs one of the programs as the server's user; an error unless it succeeds."""
        path = self.programs.bin / program
        answer = self.account.run(
            path, *arguments, timeout=timeout, stdin=stdin, in_terminal=in_terminal
        )
        if answer.returncode:
            text = _last_line(f"{answer.stdout}\n{self._last_words()}")
            raise EmbeddedError(
                f"{program} failed (exit {answer.returncode}) for {self.directory}: {text}"
            )

    @property
    def _log(self) -> Path:
        return self.directory / "log"

    def _create_log(self) -> None:
        """The server's user writes it; besides, only root may read it."""
        try:
            descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return
        os.fchown(descriptor, self.account.uid, self.account.gid)
        os.close(descriptor)

    def shorten_log(self) -> None:
        """Keeps the last part of a long log. The server appends, so it may be running."""
        if not self._log.exists() or self._log.stat().st_size <= _MAX_LOG_BYTES:
            return
        with self._log.open("r+b") as file:
            file.seek(-_MAX_LOG_BYTES, os.SEEK_END)
            with suppress(OSError):  # on a full disk, the free space matters more than the copy
                (self.directory / "log.1").write_bytes(file.read())
                (self.directory / "log.1").chmod(0o600)
            file.truncate(0)

    def _last_words(self) -> str:
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
                return _last_line(file.read().decode(errors="replace"))
        except OSError:
            return ""


def _last_line(text: str) -> str:
    """The end of it as one line."""
    return " | ".join(line.strip() for line in text.splitlines() if line.strip())[-800:]


def _rendered(value: Setting) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
    return str(value)
