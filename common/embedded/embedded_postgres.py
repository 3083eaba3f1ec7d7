"""A private PostgreSQL for a first run, for tests and for development.

The cluster belongs to one OS user, is reached through a unix socket that only this user
(and root) can open, and is shared by all processes that name its directory. It stops when
the last of them closes it. Must never import a database driver.
"""

import fcntl
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, Self

from cmdbus.embedded.account import (
    claim_directory,
    held,
    locked,
    open_lock,
    remove_socket_directory,
    server_account,
    state_directory,
)
from cmdbus.embedded.cluster import (
    CREATE_SECONDS,
    START_SECONDS,
    STOP_SECONDS,
    Cluster,
    Setting,
    check_settings,
)
from cmdbus.embedded.programs import find_programs, within_reach
from cmdbus.errors import CmdbusError, EmbeddedError, SchemaError

logger = logging.getLogger(__name__)

#: Seconds to wait for the lock: another process may create, start and stop the server meanwhile.
_LOCK_SECONDS = CREATE_SECONDS + START_SECONDS + STOP_SECONDS
_ADDRESS = "hostaddr='' port=5432"
_CLOSED = (
    "options='' target_session_attrs=read-write sslmode=disable gssencmode=disable"
    " channel_binding=disable requirepeer=''"
)


class EmbeddedPostgres:
    """A user's handle of a private server; use it in `with`, or call start() and close().

    `directory` defaults to `pg<major>` below state_directory(). Settings take effect when
    the server starts, and not for a server that is running; to ask a running server without
    durability for a durable one is an error. A server without durability may lose all data
    with the machine's power, but none with a killed process.

    Fork: a child inherits the handle without being a user: close() does nothing there, and when
    the last user closes, the server stops under the child. A child that needs the server opens an
    EmbeddedPostgres of its own. If the parent is killed, its children keep the server.

    Not thread-safe: one thread opens and closes.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        durable: bool = True,
        settings: Mapping[str, Setting] | None = None,
    ) -> None:
        check_settings(settings or {})
        account, programs = server_account(), find_programs()
        default = state_directory(account) / f"pg{programs.major}"
        self._cluster = Cluster(
            directory=Path(directory or default).resolve(),
            account=account,
            programs=programs,
            durable=durable,
            settings=dict(settings or {}),
        )
        self._users: int | None = None
        self._opener = 0
        self._sockets: Path | None = None

    @property
    def directory(self) -> Path:
        return self._cluster.directory

    @property
    def bin(self) -> Path:
        """The directory of the server's programs."""
        return self._cluster.programs.bin

    @property
    def version(self) -> str:
        return self._cluster.programs.version

    @property
    def dsn(self) -> str:
        """A conninfo string of the database `cmdbus`, whose superuser is the current user. It names
        all that the environment (PGPORT, PGSERVICE, PGOPTIONS ...) could set for another server."""
        if self._sockets is None:
            raise EmbeddedError("the embedded PostgreSQL has no DSN before start()")
        return f"host={self._sockets} {_ADDRESS} user=cmdbus dbname=cmdbus {_CLOSED}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Makes this a user of the server and starts it; a second call only starts it."""
        with self._locked_directory():
            started = self._enter()
        if started:
            self._announce()

    def join(self) -> bool:
        """Makes this a user of the server if it is running; returns whether it is.

        Never creates a cluster and never starts a server.
        """
        if not os.access(self._cluster.data / "postmaster.pid", os.F_OK):
            return False
        with self._locked_directory():
            is_running = self._cluster.postmaster() is not None
            if is_running:
                self._enter()
        return is_running

    def install(self, schema: str = "cmdbus") -> None:
        """Installs or upgrades the schema of a bus. Loads the database driver."""
        from cmdbus.database.schema import install
        from cmdbus.database.sentences import in_one_sentence

        try:
            with in_one_sentence():
                install(self.dsn, schema)
        except SchemaError as error:
            raise SchemaError(f"{error}; on this embedded server: rm -r {self.directory}") from None
        except CmdbusError as error:
            raise CmdbusError(f"the schema could not be installed: {error}") from None

    def close(self) -> None:
        """The last user stops the server. May be called again."""
        if self._users is None or self._opener != os.getpid():
            return
        if not self.directory.exists():  # a postmaster whose files are gone ends by itself
            self._leave()
            return
        with held(self.directory / "lock", timeout=_LOCK_SECONDS):
            self._release()

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stops the server under its users, for their tests; start() starts it again."""
        with held(self.directory / "lock", timeout=_LOCK_SECONDS):
            self._shut_down(mode)

    @contextmanager
    def _locked_directory(self) -> Iterator[None]:
        try:
            claim_directory(self.directory, self._cluster.account)
            with held(self.directory / "lock", timeout=_LOCK_SECONDS):
                yield
        except OSError as error:
            raise EmbeddedError(
                f"cannot use {self.directory}: {error.strerror}; make it writable, or set "
                "XDG_STATE_HOME to a directory that is"
            ) from error

    def _enter(self) -> bool:
        """Returns whether the server had to be started."""
        cluster = self._cluster
        cluster.programs = within_reach(cluster.programs, cluster.account, self.directory)
        is_new = self._users is None
        if is_new:
            self._users, self._opener = open_lock(self.directory / "users"), os.getpid()
            # Does not wait: only a holder of `lock`, which we are, takes the exclusive lock.
            fcntl.flock(self._users, fcntl.LOCK_SH)
            cluster.shorten_log()
        try:
            cluster.create()
            postmaster, started = cluster.start()
        except BaseException:
            if is_new:
                # pg_ctl may be dead, and the server still starting.
                with suppress(EmbeddedError):
                    self._release()
            raise
        self._sockets = postmaster.socket_directory
        return started

    def _release(self) -> None:
        """The last user stops the server."""
        assert self._users is not None
        try:
            if locked(self._users, fcntl.LOCK_EX):
                self._shut_down("fast")
            self._cluster.shorten_log()
        finally:
            self._leave()

    def _leave(self) -> None:
        assert self._users is not None
        fcntl.flock(self._users, fcntl.LOCK_UN)  # also for the copies in forked children
        os.close(self._users)
        self._users = None

    def _shut_down(self, mode: Literal["fast", "immediate"]) -> None:
        self._cluster.stop(mode)
        if self._sockets is not None and self._sockets.parent != self.directory:
            remove_socket_directory(self._sockets)

    def _announce(self) -> None:
        durable = "durable" if self._cluster.durable else "not durable (fsync off)"
        text = "embedded PostgreSQL %s, data in %s, %s"
        logger.info(text, self.version, self._cluster.data, durable)
        if "INVOCATION_ID" in os.environ:
            logger.warning(
                "the embedded PostgreSQL is for first runs and tests: systemd kills it together "
                "with the unit that started it; use a separate server, with --dsn"
            )
