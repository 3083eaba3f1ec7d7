"""Lends Django's connection of an alias to a handler: for the time of a block it is the session of
the worker's thread, in the command's transaction or in autocommit mode. It opens at its first use.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from django.db import connections

from cmdbus.context import Context
from cmdbus.django.lent_wrappers import LentSession, LentTransaction, lent_wrapper
from cmdbus.errors import InvalidOperationError
from cmdbus.surroundings import SurroundedExecution, execution_of
from cmdbus.worker.claims.outcomes import Outcome, OutcomeKind

logger = logging.getLogger(__name__)


@contextmanager
def lent(context: Context, alias: str, *, atomic: bool = True) -> Iterator[None]:
    """In the thread of the execution. `atomic`: in its transaction, where `atomic()` makes
    savepoints and functions of `on_commit` are called once the command is settled. Without it each
    statement commits, and an `atomic()` block at its end."""
    execution, own = execution_of(context), connections[alias]
    kind = LentTransaction if atomic else LentSession
    if isinstance(own, kind) and own.execution is execution:
        yield  # A block around this one has it already.
    elif not atomic and execution.is_in_a_tests_transaction:
        yield  # Django's own connection has that, and no other can see what is written.
    elif atomic:
        with _lent_transaction(context, execution, own):
            yield
    else:
        with _lent_session(execution, own):
            yield


@contextmanager
def _lent_transaction(context: Context, execution: SurroundedExecution, own: Any) -> Iterator[None]:
    def open() -> Any:
        connection = execution.second_connection()
        _check_database(own, connection)
        connection._autocommit = False  # Else its named cursors would outlive the transaction.
        return connection

    made = lent_wrapper(LentTransaction, own, open)
    made.execution = execution
    with _in_place_of(own, made):
        yield
        # A process that was forked has nothing to finish.
        functions = [] if made.is_forked else made.finish()
    if functions:
        execution.after_settlement(partial(_committed, context, own.alias, functions))


@contextmanager
def _lent_session(execution: SurroundedExecution, own: Any) -> Iterator[None]:
    def open() -> Any:
        connection = execution.autocommit()
        _check_database(own, connection)
        return connection

    made = lent_wrapper(LentSession, own, open)
    made.execution = execution
    try:
        with _in_place_of(own, made):
            yield
    finally:
        execution.end_autocommit()


@contextmanager
def _in_place_of(own: Any, made: Any) -> Iterator[None]:
    connections[own.alias] = made
    try:
        yield
    finally:
        connections[own.alias] = own
        if not made.is_forked:
            made.release()


def _check_database(own: Any, connection: Any) -> None:
    """Whatever the server is called: Django may reach it through a pooler."""
    wanted, found = own.settings_dict["NAME"], connection.info.dbname
    if wanted and wanted != found:
        raise InvalidOperationError(
            f"DATABASES[{own.alias!r}] is the database {wanted!r}, and the worker's is {found!r}: "
            f"run the worker with the DSN of this database, or name the alias of the worker's "
            f"database in TASKS as the option using"
        )


def _committed(
    context: Context,
    alias: str,
    functions: list[Any],
    outcome: Outcome,
    error: BaseException | None,
) -> None:
    if error is None and outcome.kind is not OutcomeKind.TROUBLE:
        with lent(context, alias, atomic=False):
            _call_all(functions)


def _call_all(functions: list[Any]) -> None:
    """As Django does: an error of one that is not robust keeps the others from being called."""
    for number, (_, function, robust) in enumerate(functions, 1):
        try:
            function()
        except Exception:
            left = 0 if robust else len(functions) - number
            logger.exception(
                "a function of on_commit() failed: %r; the command stays as it is%s",
                function,
                f", and {left} more are not called" if left else "",
            )
            if not robust:
                return
