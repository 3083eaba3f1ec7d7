"""The directory of an embedded PostgreSQL: making its data, and running programs on it.

Must never touch data that are another user's or of another major version.

What is in the directory:

    lock              held exclusively by whoever creates, starts or stops the server
    users             held shared by every user for as long as it is one; the kernel lets
                      go of a killed user's lock, so no list of pids can go stale
    data              the cluster; `data.tmp-*` until it is whole
    s                 the socket, unless its path would be too long
    postgresql.conf, pg_hba.conf, pg_ident.conf     written anew before each start
    log, log.1        what the server says, cut when a user comes or goes
"""

import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cmdbus.database.statements import render
from cmdbus.embedded.accounts import Account, name_of
from cmdbus.embedded.binaries import Programs
from cmdbus.errors import EmbeddedError

CREATE_S = 120.0
_LOG_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A directory, the user that its server runs as, and the programs to use on it."""

    directory: Path
    account: Account
    programs: Programs

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    def create(self, *, durable: bool) -> None:
        """Make the cluster unless there is one; it has its name only when it is whole."""
        if self.data.exists():
            self._check_fits()
            return
        for left in self.directory.glob("data.tmp-*"):  # by somebody who was killed
            shutil.rmtree(left, ignore_errors=True)
        fresh = Path(tempfile.mkdtemp(prefix="data.tmp-", dir=self.directory))
        try:
            os.chown(fresh, self.account.uid, self.account.gid)
            self._initdb(fresh, durable)
            fresh.rename(self.data)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def run(self, program: str, *arguments: str | Path, timeout: float, stdin: str = "") -> None:
        """Run one of the programs as the server's user; an error unless it succeeds."""
        path = self.programs.bin / program
        answer = self.account.run(path, *arguments, timeout=timeout, stdin=stdin)
        if answer.returncode == 0:
            return
        text = f"{answer.stdout}\n{self.last_words()}"
        if "No space left on device" in text:
            raise EmbeddedError(
                f"the disk that holds {self.directory} is full: free some of it, or set "
                "XDG_STATE_HOME to a directory on another"
            )
        raise EmbeddedError(
            f"{program} failed (exit {answer.returncode}) for {self.directory}: {_tail(text)}"
        )

    def create_log(self) -> None:
        """For the server's user to write to, and nobody but root to read besides."""
        try:
            descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return
        os.fchown(descriptor, self.account.uid, self.account.gid)
        os.close(descriptor)

    def cut_log(self) -> None:
        """Keep the last part of a long log. The server appends, so it may be running."""
        if not self.log.exists() or self.log.stat().st_size <= _LOG_BYTES:
            return
        with self.log.open("r+b") as file:
            file.seek(-_LOG_BYTES, os.SEEK_END)
            with suppress(OSError):  # a full disk needs the cut more than the copy
                (self.directory / "log.1").write_bytes(file.read())
                (self.directory / "log.1").chmod(0o600)
            file.truncate(0)

    def last_words(self) -> str:
        """What the server said last, as one line."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
                return _tail(file.read().decode(errors="replace"))
        except OSError:
            return ""

    def _initdb(self, fresh: Path, durable: bool) -> None:
        options = ["--username=cmdbus", "--auth-local=peer", "--auth-host=reject"]
        options += ["--encoding=UTF8", "--locale=C", "--data-checksums", "--no-instructions"]
        options += [] if durable else ["--no-sync"]
        self.run("initdb", *options, "-D", fresh, timeout=CREATE_S)
        # A server of one session, before anybody can connect: no driver and no socket needed.
        single = ["--single", "-c", "exit_on_error=on", "-c", "log_checkpoints=off"]
        single += [] if durable else ["-F"]
        self.run(
            "postgres",
            *single,
            "-D",
            fresh,
            "postgres",
            timeout=CREATE_S,
            stdin=render("create_database", "cmdbus"),
        )

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


def _tail(text: str) -> str:
    """The end of it as one line."""
    return " | ".join(line.strip() for line in text.splitlines() if line.strip())[-800:]
