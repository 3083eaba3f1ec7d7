"""Handles several commands in one transaction, which settles them together.

A shortcut: whatever goes wrong, nothing of it has happened, and each command runs by itself.
"""

import logging
import os
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, cast

from cmdbus.clock import time
from cmdbus.command import Command
from cmdbus.data import Undecodable, decode
from cmdbus.failpoints import AFTER_COMMIT, BEFORE_EFFECT, failpoint
from cmdbus.groups import Group
from cmdbus.headers import NO_HEADERS
from cmdbus.worker.claims.claim import Claim, Finished
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.outcomes import completed
from cmdbus.worker.execution.application_code import command_of, leave_fork, run_after
from cmdbus.worker.execution.executing_thread import ExecutingThread, Handled
from cmdbus.worker.execution.execution import Execution

if TYPE_CHECKING:
    from cmdbus.worker.execution.surrounded_execution import SurroundedExecution

logger = logging.getLogger(__name__)


class GroupFailedError(Exception):
    """A group cannot go on."""


class GroupExecution:
    def __init__(
        self,
        handled: Handled,
        claims: Sequence[Claim],
        thread: ExecutingThread[Execution],
        statements: ClaimStatements,
        begin: Callable[[Claim], Execution | None],
    ) -> None:
        """`begin` shows that a command is being executed, with a deadline of its own; None: the
        one before has timed out."""
        self._handled, self._claims = handled, claims
        self._thread, self._statements = thread, statements
        self._begin = begin

    def run(self) -> list[Finished]:
        """Returns the outcomes, which are settled, of all commands but those that must run by
        themselves."""
        try:
            executions = self._run()
        except BaseException as error:
            logger.debug("%s commands run singly: %r", len(self._claims), error)
            return []
        if self._handled.surroundings is not None:
            for execution, finished in executions:
                cast("SurroundedExecution", execution).call_afterwards(finished.outcome)
        return [finished for _, finished in executions]

    def _run(self) -> list[tuple[Execution, Finished]]:
        commands = [_command(claim) for claim in self._claims]
        execution = self._next(self._claims[0])
        transaction = execution.transaction()
        try:
            make = self._handled.handler.group
            assert make is not None
            group = make(commands, transaction.connection, self._statements.schema)
            taken = [
                (claim, command)
                for claim, command in zip(self._claims, commands, strict=True)
                if group.takes(command)
            ]
            executions, first = [], execution
            for claim, command in taken:
                if claim is not execution.claim:
                    execution = self._next(claim)
                failpoint(BEFORE_EFFECT)
                self._handle(group, command, execution, first)
                executions.append(execution)
            if not taken:
                return []
            group.write()
            now = time.monotonic()
            seconds = (now - executions[0].began) / len(executions)
            done = [
                Finished(each.claim, completed(None), each.max_attempts, now, seconds)
                for each in executions
            ]
            transaction.complete(*done)
            failpoint(AFTER_COMMIT)
            return list(zip(executions, done, strict=True))
        finally:
            transaction.end()

    def _handle(
        self, group: Group, command: Command, execution: Execution, first: Execution
    ) -> None:
        try:
            if self._handled.surroundings is None:
                if command.headers is NO_HEADERS:
                    copy_context().run(group.handle, command)
                else:
                    forward = partial(execution.forward, command.headers)
                    copy_context().run(run_after, forward, group.handle, command)
            else:
                cast("SurroundedExecution", execution).handle_within(first, group.handle, command)
        finally:
            if os.getpid() != self._thread.pid:
                leave_fork()
        if execution.again_in is not None:
            raise GroupFailedError("a middleware gives one of them back")

    def _next(self, claim: Claim) -> Execution:
        execution = self._begin(claim)
        if execution is None:
            raise GroupFailedError("one of them has timed out")
        return execution


def _command(claim: Claim) -> Command:
    data = decode(claim.data)
    if isinstance(data, Undecodable):
        raise GroupFailedError(data.reason)
    return command_of(claim, data)
