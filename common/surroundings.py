"""What is around each call of a handler, as a web framework has middleware around each request: it
is entered before the handler is called, and left before the command is settled. An error of it is
the handler's.

Each layer is a function that runs what is inside of it:

    instruments     the outermost; they see everything, and change nothing
    Django          lends the session of `context.connection`, in a registry for Django
    middleware      of `registry.around`, in the order of its declaration
    the handler     in its breaker, with its payload read
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, cast

from cmdbus.execution_outcome import ExecutionOutcome

if TYPE_CHECKING:
    import psycopg

    from cmdbus.command import Command
    from cmdbus.context import Context

#: A handler, or all that is inside of a layer.
Run = Callable[["Command[Any]", "Context"], Any]
#: Makes of a function the same one within something.
Layer = Callable[[Run], Run]
#: Called with the command and its context for each execution; see `managed`.
ManagerFactory = Callable[["Command[Any]", "Context"], AbstractContextManager[object]]
#: Called with the outcome that is committed, and the error that has led to it.
AfterSettlement = Callable[[Any, BaseException | None], object]


class SurroundedExecution(Protocol):
    """What a worker does for the surroundings of a handler."""

    def returned(self, result: object, /) -> ExecutionOutcome:
        """What becomes of the command if the handler has returned this. Raises if it cannot be
        stored."""

    def raised(self, error: BaseException, middleware: str = "", /) -> ExecutionOutcome:
        """What becomes of the command with this error, which is that of the `middleware`, if one
        is named."""

    @property
    def is_first(self) -> bool:
        """Whether no worker has claimed the command before, so that there is no history of it."""

    @property
    def worker(self) -> str:
        """The name under which the view `command` shows the worker."""

    @property
    def waited(self) -> float:
        """Seconds between being due and being claimed."""

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


def execution_of(context: "Context") -> SurroundedExecution:
    return cast(SurroundedExecution, context._execution)


def within(layers: Sequence[Layer]) -> Layer:
    """All these as one, the first of which is the outermost. Each sees `context.outcome` of what is
    inside of it."""

    def surround(run: Run) -> Run:
        surrounded = _noting_outcome(run)
        for layer in reversed(layers):
            surrounded = layer(surrounded)
        return _forgetting_outcome(surrounded)

    return surround


def _forgetting_outcome(run: Run) -> Run:
    """The error of the outcome has the frames of its traceback, and these have the context: a
    circle, by which the command would be in memory until the garbage collector comes."""

    def inside(command: "Command[Any]", context: "Context") -> Any:
        try:
            return run(command, context)
        finally:
            context.outcome = None

    return inside


def _noting_outcome(run: Run) -> Run:
    def inside(command: "Command[Any]", context: "Context") -> Any:
        execution = execution_of(context)
        try:
            result = run(command, context)
            context.outcome = execution.returned(result)
        except BaseException as error:
            context.outcome = execution.raised(error)
            raise
        return result

    return inside


def managed(factory: ManagerFactory, run: Run) -> Run:
    """`run` within a context manager that is made for each execution."""

    def inside(command: "Command[Any]", context: "Context") -> Any:
        try:
            with factory(command, context):
                return run(command, context)
        except BaseException as error:
            note_error(context, error)
            raise
        note_swallowed(context)
        return None

    return inside


def note_error(context: "Context", error: BaseException, middleware: str = "") -> None:
    """Of the `middleware`, or whatever has no name; unless it is that of what is inside, for which
    it may have asked for another pause."""
    outcome = context.outcome
    if outcome is None or outcome.error is not error:
        context.outcome = execution_of(context).raised(error, middleware)
    elif outcome.status == "RETRY" and context._execution.retry_delay is not None:
        context.outcome = execution_of(context).raised(error)


def note_given_back(context: "Context", result: object) -> None:
    """A middleware may have given the command back after what is inside had returned."""
    if context._execution.again_in is not None:
        context.outcome = execution_of(context).returned(result)


def note_swallowed(context: "Context") -> None:
    """An error of what is inside is none of the command's any longer."""
    context.outcome = execution_of(context).returned(None)
