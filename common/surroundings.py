"""What a registry puts around each call of a handler, as a web framework has middleware around each
request: a context manager, entered before the handler is called and left before its command is
settled. An error of it is the handler's."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, cast

from cmdbus.command import Command
from cmdbus.context import Context

if TYPE_CHECKING:
    import psycopg

#: Called with the command and its context.
Surroundings = Callable[[Command[Any], Context], AbstractContextManager[object]]
#: Called with the outcome that is committed, and the error that has led to it.
AfterSettlement = Callable[[Any, BaseException | None], object]


class SurroundedExecution(Protocol):
    """What a worker does for the surroundings of a handler."""

    @property
    def is_first(self) -> bool:
        """Whether no worker has claimed the command before, so that there is no history of it."""

    @property
    def worker(self) -> str:
        """The name under which the view `command` shows the worker."""

    @property
    def is_in_a_tests_transaction(self) -> bool:
        """What it commits is a part of that: there is no autocommit mode."""

    def second_connection(self) -> "psycopg.Connection[Any]":
        """One more object for the session of `context.connection`, in the same transaction."""

    def autocommit(self) -> "psycopg.Connection[Any]":
        """The thread's session in autocommit mode: what is written through it commits by itself.
        For a handler without a transaction, and for what is called after the settlement. Always the
        same object while the handler runs, and another one from then on."""

    def end_autocommit(self) -> None:
        """Ends autocommit mode, so that the handler may have its transaction. The object for it
        refuses every use from then on."""

    def after_settlement(self, function: AfterSettlement, /) -> None:
        """Has the execution's own thread settle the command, whatever the outcome, as soon as the
        surroundings are left, and call this function once that is committed: for a failure while
        its exception is being handled. What the function raises is logged, and changes nothing. It
        is not called if the process dies or the database goes away meanwhile, if another worker
        has the lease, or if the execution has timed out."""


def execution_of(context: Context) -> SurroundedExecution:
    return cast(SurroundedExecution, context._execution)


def surrounded(
    run: Callable[[Command[Any], Context], Any], surroundings: Surroundings
) -> Callable[[Command[Any], Context], Any]:
    """`run` inside of what this registry's surroundings are for the execution."""

    def inside(command: Command[Any], context: Context) -> Any:
        with surroundings(command, context):
            return run(command, context)

    return inside
