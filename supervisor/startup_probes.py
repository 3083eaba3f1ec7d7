"""Answers probes before a steward does, in a child: the supervisor itself starts no thread.

A start may wait for its database for hours: all that time it is live and not ready.
"""

import logging
import os
from collections.abc import Iterable
from signal import SIGKILL
from socket import socket

from cmdbus.board.board import Board
from cmdbus.board.health import HealthReport
from cmdbus.board.records import Role, SupervisorState
from cmdbus.clock import time
from cmdbus.exits import Exit
from cmdbus.settings import Settings
from cmdbus.supervisor.children import Child, fork
from cmdbus.supervisor.systemd_notifier import clear_notify_env

logger = logging.getLogger(__name__)


class StartupProbes:
    """Closed before the steward starts: probes in between wait a moment."""

    def __init__(self, settings: Settings, listener: socket | None, close: Iterable[int]) -> None:
        """`close`: descriptors that the child must not keep. Without a listener no child starts."""
        self._settings = settings
        self._listener = listener
        self._close = list(close)
        #: Shows a supervisor that starts, and a steward that knows whether the database is away.
        self._board = Board.in_memory(1, 1, command_types=1, name=settings.name)
        self._since = time.monotonic_ns()
        self._steward = self._board.seat(0)
        self._steward.assign(Role.STEWARD, number=0, generation=1)
        self._steward.enter(pid=0, generation=1, now=self._since)
        self._child: Child | None = None
        #: Why no probe is answered; logged once.
        self._why = ""

    def expect(self, seconds: float, *, away: bool) -> None:
        """`seconds` until the supervisor's next step at the latest; `away`: the database is."""
        due = time.monotonic_ns() + int(seconds * 1e9)
        self._board.supervise(
            pid=os.getpid(),
            state=SupervisorState.STARTING,
            since=self._since,
            due=due,
            wanted=self._settings.procs,
        )
        self._steward.beat(due, HealthReport(database_away=away))
        if self._listener is not None:
            self._start(self._listener)

    def _start(self, listener: socket) -> None:
        try:
            exited = self._child.reap() if self._child is not None else None
            if exited is not None:
                self._child = None
                no_thread = exited.signal == 0 and exited.code == Exit.NO_RESOURCES
                why = "found no thread left" if no_thread else str(exited)
                self._warn(f"the process that answers them {why}")
            if self._child is None:
                self._child = fork(lambda: self._answer(listener), close=self._close)
        except OSError as error:
            self._warn(f"cannot start a process ({error.strerror})")

    def _warn(self, why: str) -> None:
        if why != self._why:
            logger.warning("probes are not answered for the moment: %s; trying again", why)
        self._why = why

    def close(self) -> None:
        if self._child is not None:
            self._child.send(SIGKILL)
            self._child.wait()

    def _answer(self, listener: socket) -> int:
        """In the child."""
        from cmdbus.worker.probes.endpoints import serve_startup_probes

        clear_notify_env()
        serve_startup_probes(self._settings, self._board, listener)
        return Exit.ERROR
