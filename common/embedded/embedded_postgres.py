"""A private PostgreSQL for a first run, for tests and for development.

The cluster belongs to one OS user, is reached through a unix socket that only this user
(and root) can open, and is shared by all processes that name its directory. It is stopped
when the last of them leaves. Must never listen on TCP, trust anybody, import a database
driver, or change the permissions of a directory that it has not made.
"""

import fcntl
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from cmdbus.embedded.accounts import server_account
from cmdbus.embedded.binaries import find_programs, within_reach
from cmdbus.embedded.cluster import CREATE_S, Cluster
from cmdbus.embedded.cluster_configuration import Configuration, Setting
from cmdbus.embedded.directories import claim_directory, remove_socket_directory, state_directory
from cmdbus.embedded.locks import held, locked, open_lock
from cmdbus.embedded.postmaster import START_S, STOP_S, bring_down, bring_up, is_running
from cmdbus.errors import EmbeddedError

__all__ = ["EmbeddedError", "EmbeddedPostgres", "state_directory"]

logger = logging.getLogger(__name__)

_DOOR_S = CREATE_S + START_S + STOP_S


_ADDRESS = "hostaddr='' port=5432"
_CLOSED = (
    "options='' target_session_attrs=read-write sslmode=disable gssencmode=disable"
    " channel_binding=disable requirepeer=''"
)


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
        self._configuration = Configuration(durable=durable, settings=dict(settings or {}))
        account, programs = server_account(), find_programs()
        default = state_directory(account) / f"pg{programs.major}"
        self._cluster = Cluster(
            directory=Path(directory or default).resolve(), account=account, programs=programs
        )
        self._users: int | None = None
        self._opener = 0
        self._sockets: Path | None = None

    @property
    def directory(self) -> Path:
        return self._cluster.directory

    @property
    def durable(self) -> bool:
        return self._configuration.durable

    @property
    def bin(self) -> Path:
        """Where the server's programs are."""
        return self._cluster.programs.bin

    @property
    def version(self) -> str:
        return self._cluster.programs.version

    @property
    def dsn(self) -> str:
        """A conninfo string; the database `cmdbus` exists and its superuser is us. It names what
        the environment (PGPORT, PGSERVICE, PGOPTIONS ...) would else say of another server."""
        if self._sockets is None:
            raise EmbeddedError("the embedded PostgreSQL has no DSN before start()")
        return f"host={self._sockets} {_ADDRESS} user=cmdbus dbname=cmdbus {_CLOSED}"

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
        with self._usable_directory(), self._claimed_directory():
            started = self._enter()
        self._announce(logging.INFO if started else logging.DEBUG)

    def join(self) -> bool:
        """Become a user of the server if it is running; returns whether it is.

        Never creates a cluster and never starts a server.
        """
        with self._usable_directory():
            if not (self._cluster.data / "postmaster.pid").exists():
                return False
            with self._claimed_directory():
                if not is_running(self._cluster):
                    return False
                self._enter()
        return True

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
                self._cluster.cut_log()
            finally:
                self._leave()

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server under its users, for tests of what they do then; start() revives it."""
        with held(self.directory / "lock", timeout=_DOOR_S):
            self._shut_down(mode)

    @contextmanager
    def _usable_directory(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise EmbeddedError(
                f"cannot use {self.directory}: {error.strerror}; make it writable, or set "
                "XDG_STATE_HOME to a directory that is"
            ) from error

    @contextmanager
    def _claimed_directory(self) -> Iterator[None]:
        claim_directory(self.directory, self._cluster.account)
        with held(self.directory / "lock", timeout=_DOOR_S):
            yield

    def _enter(self) -> bool:
        """Whether the server had to be started."""
        cluster = self._cluster
        programs = within_reach(cluster.programs, cluster.account, state_directory(cluster.account))
        self._cluster = replace(cluster, programs=programs)
        joined = self._join()
        try:
            self._cluster.create(durable=self.durable)
            postmaster, started = bring_up(self._cluster, self._configuration)
        except BaseException:
            if joined:
                self._give_up()
            raise
        self._sockets = postmaster.socket_directory
        return started

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
        self._cluster.cut_log()
        return True

    def _give_up(self) -> None:
        """Whoever was to start the server may be dead, and the server on its way up."""
        assert self._users is not None
        try:
            if locked(self._users, fcntl.LOCK_EX):
                self._shut_down("fast")
        except EmbeddedError as error:
            logger.warning("after a start that failed: %s", error)
        finally:
            self._leave()

    def _leave(self) -> None:
        assert self._users is not None
        fcntl.flock(self._users, fcntl.LOCK_UN)  # also for the copies in forked children
        os.close(self._users)
        self._users = None

    def _shut_down(self, mode: Literal["fast", "immediate"]) -> None:
        bring_down(self._cluster, mode)
        if self._sockets is not None and self._sockets.parent != self.directory:
            remove_socket_directory(self._sockets)

    def _announce(self, level: int) -> None:
        logger.log(
            level,
            "embedded PostgreSQL %s, data in %s, %s",
            self.version,
            self._cluster.data,
            "durable" if self.durable else "not durable (fsync off)",
        )
        if "INVOCATION_ID" in os.environ:
            logger.warning(
                "the embedded PostgreSQL is for first runs and tests: systemd kills it together "
                "with the unit that started it; name a server of its own with --dsn"
            )
