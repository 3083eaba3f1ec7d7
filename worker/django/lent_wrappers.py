"""Django's connection of one alias while a handler has it: an object of the alias's own class, that
works on the session of the worker's thread instead of opening one.

What the class does with a new connection it does with this one, so its adapters, its cursors and
its extensions (PostGIS) are there; the signal `connection_created` is sent.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, NoReturn

import psycopg
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg._preparing import PrepareManager

from cmdbus.database.executor import Executor
from cmdbus.database.statements import render
from cmdbus.errors import InvalidOperationError, TransientCommandError

#: Opens the session for a wrapper, at its first use.
Open = Callable[[], Any]

#: Of statements that name no schema.
_executor = Executor("cmdbus")
_INERROR = psycopg.pq.TransactionStatus.INERROR


class _Driver:
    """The driver that a wrapper calls, but for its `connect`."""

    def __init__(self, driver: Any, open: Open) -> None:
        self._driver, self._open = driver, open

    def connect(
        self, *, context: Any, cursor_factory: Any, prepare_threshold: Any, **_: object
    ) -> Any:
        """The session, as Django's own connections are; the other parameters are the worker's."""
        connection = self._open()
        connection._adapters = type(context)(context)
        connection.cursor_factory = cursor_factory
        connection.row_factory = psycopg.rows.tuple_row
        if prepare_threshold is None:
            connection._prepared = PrepareManager()
        connection.prepare_threshold = prepare_threshold
        return connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)


class _CommandsTransaction:
    """Stands for the handler's transaction among the blocks of `atomic()`."""

    @property
    def _from_testcase(self) -> NoReturn:
        raise RuntimeError(
            "atomic(durable=True) must commit at its end, and in a handler all commits together "
            "with the command: leave durable out, or let a command of its own do this"
        )


class LentWrapper(BaseDatabaseWrapper):
    """Mixed into the class of the alias, `own_class`."""

    own_class: Any
    #: The one that it is lent to.
    execution: Any
    connection: Any
    Database: Any
    run_on_commit: list[Any]
    #: With the setting `pool`, the worker's session would be put into Django's.
    pool = None

    def __init__(self, settings: Any, alias: str, open: Open) -> None:
        self.own_settings = settings
        super().__init__(self._adjusted(settings), alias)
        self.Database = _Driver(self.Database, open)
        self._pid = os.getpid()

    def connect(self) -> None:
        if self.is_forked:
            self._become_own()
            self.connect()
        else:
            super().connect()

    def _adjusted(self, settings: Any) -> Any:
        return settings

    def release(self) -> None:
        """Forgets the session, without a word to the server: it is the worker's."""
        self.connection = None
        self.Database = _Driver(self.Database, _refuse_late)

    def close_if_health_check_failed(self) -> None:
        """The worker sees to its session."""

    @property
    def is_forked(self) -> bool:
        return os.getpid() != self._pid

    def _become_own(self) -> None:
        """In a process that the handler has forked, this becomes Django's own wrapper, which opens
        a connection of its own."""
        fresh = self.own_class(self.own_settings, self.alias)
        self.__dict__.clear()
        # The class that follows has no is_forked, which the block around the handler still reads.
        self.__dict__.update(fresh.__dict__, is_forked=True)
        self.__class__ = self.own_class


class LentSession(LentWrapper):
    """The session in autocommit mode."""

    def _adjusted(self, settings: Any) -> Any:
        return {**settings, "AUTOCOMMIT": True}

    def _close(self) -> None:
        """As the end of a connection does, it rolls back; the session stays open."""
        if self.is_forked:
            self._become_own()
        elif self.connection is not None:
            with suppress(psycopg.Error):
                self.connection.rollback()


class LentTransaction(LentWrapper):
    """The session in the command's transaction. To Django that is an `atomic()` block that does not
    end here."""

    #: The time zone of the session, if Django has another one.
    _other_zone: str | None = None
    _has_role = False
    _is_connecting = False

    def __init__(self, settings: Any, alias: str, open: Open) -> None:
        super().__init__(settings, alias, open)
        self.in_atomic_block = True
        self.atomic_blocks = [_CommandsTransaction()]

    def _adjusted(self, settings: Any) -> Any:
        """The isolation level of the command's transaction is fixed."""
        options = settings["OPTIONS"]
        if "isolation_level" not in options:
            return settings
        others = {name: options[name] for name in options if name != "isolation_level"}
        return {**settings, "OPTIONS": others}

    def connect(self) -> None:
        """What Django has noted before its first statement stays."""
        names = "in_atomic_block", "atomic_blocks", "savepoint_ids", "needs_rollback"
        kept = {name: getattr(self, name) for name in (*names, "run_on_commit")}
        self._is_connecting = True
        try:
            super().connect()
        finally:
            if isinstance(self, LentTransaction):  # In no process that was forked.
                self.__dict__.update(kept, autocommit=False, _is_connecting=False)

    def finish(self) -> list[Any]:
        """Before the transaction commits. Returns what Django must call after that."""
        is_lost = self.connection is not None and self.connection.closed
        if self.needs_rollback and not is_lost:  # A lost one cannot commit.
            raise TransientCommandError(
                "TRANSACTION_ABORTED",
                "the handler returned after an error, or set_rollback(True), had marked Django's "
                "transaction to be rolled back: let the error out, or use a savepoint (with "
                "transaction.atomic())",
            ) from self.rollback_exc
        if self._has_role and self.connection.info.transaction_status is not _INERROR:
            _executor.execute(self.connection, "reset_role")
        functions, self.run_on_commit = self.run_on_commit, []
        return functions

    def set_autocommit(self, autocommit: bool, *options: Any, **named: Any) -> None:
        if not self._is_connecting:
            _refuse(f"set_autocommit({autocommit})")
        super().set_autocommit(autocommit, *options, **named)

    def _set_autocommit(self, autocommit: bool) -> None:
        """The worker has begun the transaction."""

    def commit(self) -> None:
        _refuse("commit()")

    def rollback(self) -> None:
        _refuse("rollback()")

    def close(self) -> None:
        """The session stays open, and what is written in it."""
        if self.is_forked:
            self._become_own()

    def close_if_unusable_or_obsolete(self) -> None:
        self.close()

    def create_cursor(self, name: str | None = None) -> Any:
        if self._other_zone is not None:
            self._check_zone(self.connection.info)
        return super().create_cursor(name)

    def _check_zone(self, info: Any) -> None:
        """Times are read in the session's time zone. A rollback to a savepoint that was made by
        `context.connection` may have undone that."""
        if (
            info.parameter_status("TimeZone") == self._other_zone
            and info.transaction_status is not _INERROR
        ):
            self._configure_timezone(self.connection)

    def _configure_timezone(self, connection: Any) -> bool:
        """Until the end of the transaction."""
        zone = connection.info.parameter_status("TimeZone")
        if not self.timezone_name or zone == self.timezone_name:
            return False
        self._other_zone = zone
        _executor.execute(connection, "set_time_zone", {"zone": self.timezone_name})
        return True

    def _configure_role(self, connection: Any) -> bool:
        """Until the end of the transaction."""
        role = self.settings_dict["OPTIONS"].get("assume_role")
        if role:
            name = psycopg.sql.Identifier(role).as_string(connection)
            connection.execute(render("set_role", _executor.schema, identifier=name).encode())
            self._has_role = True
        return bool(role)

    def init_connection_state(self) -> None:
        """Without the commit that follows the settings of a connection of Django's own."""
        self.autocommit = True
        super().init_connection_state()

    def _savepoint(self, sid: str) -> None:
        super()._savepoint(sid)
        self.connection.enter_savepoint()

    def _savepoint_commit(self, sid: str) -> None:
        self.connection.leave_savepoint()
        super()._savepoint_commit(sid)


def lent_wrapper(kind: Any, own: Any, open: Open) -> Any:
    """A wrapper to use instead of `own`, with its log of queries and its `execute_wrappers`; those
    that a handler adds end with this one."""
    is_lent = isinstance(own, LentWrapper)  # By a block around this one.
    mixed = _mixed(kind, own.own_class if is_lent else own.__class__)
    made = mixed(own.own_settings if is_lent else own.settings_dict, own.alias, open)
    made.force_debug_cursor = own.force_debug_cursor
    made.queries_log = own.queries_log
    made.execute_wrappers = [*own.execute_wrappers]
    return made


@cache
def _mixed(kind: Any, own_class: Any) -> Any:
    """Signals name it as their sender."""
    return type(own_class.__name__, (kind, own_class), {"own_class": own_class})


def _refuse(what: str) -> NoReturn:
    raise InvalidOperationError(
        f"{what} of Django's connection would end the command's transaction: it commits when the "
        f"handler returns and rolls back when it raises; for a part that may fail use a savepoint "
        f"(with transaction.atomic())"
    )


def _refuse_late() -> NoReturn:
    raise InvalidOperationError(
        "Django's connection was used after the handler returned: finish all database work before "
        "you return"
    )
