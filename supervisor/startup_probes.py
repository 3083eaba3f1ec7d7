"""Who answers probes before there is a steward: a child, as everything is that needs a thread.

A start may wait for its database for hours. It is live all that time, and not ready.
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
from cmdbus.exits import Exit, cannot_start_thread
from cmdbus.settings import Settings
from cmdbus.supervisor.children import Child, fork
from cmdbus.supervisor.systemd_notifier import clear_notify_env

logger = logging.getLogger(__name__)


class StartupProbes:
    """Close it when there is a steward to come; whoever asks in between waits a moment."""

    def __init__(self, settings: Settings, listener: socket | None, close: Iterable[int]) -> None:
        """`close`: descriptors that are only ours. Without a listener there is nobody."""
        self._settings = settings
        self._listener = listener
        self._close = list(close)
        #: One that shows what there is: a supervisor, and a steward to come that knows whether
        #: the database is there.
        self._board = Board.in_memory(1, 1, command_types=1, name=settings.name)
        self._since = time.monotonic_ns()
        self._steward = self._board.seat(0)
        self._steward.assign(Role.STEWARD, number=0, generation=1, now=self._since)
        self._steward.enter(pid=0, generation=1, now=self._since)
        self._child: Child | None = None
        #: Why no probe is answered, which is logged once.
        self._why = ""

    def expect(self, seconds: float, *, away: bool) -> None:
        """The supervisor is back within so long; `away`: the database is."""
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
        """Also again, after a failed fork or an early exit of the child."""
        try:
            exited = self._child.reap() if self._child is not None else None
            if exited is not None:
                self._child = None
                no_room = exited.signal == 0 and exited.code == Exit.NO_RESOURCES
                why = "has no room for its threads" if no_room else str(exited)
                self._warn(f"the process that answers them {why}")
            if self._child is None:
                self._child = fork(lambda: self._answer(listener), close=self._close)
        except OSError as error:
            self._warn(f"no process can be started ({error.strerror})")

    def _warn(self, why: str) -> None:
        if why != self._why:
            logger.warning("probes are not answered for the moment: %s; trying again", why)
        self._why = why

    def close(self) -> None:
        if self._child is not None:
            self._child.send(SIGKILL)
            self._child.wait()
            self._child = None

    def _answer(self, listener: socket) -> int:
        """In the child."""
        from cmdbus.worker.probes.endpoints import serve_startup_probes

        clear_notify_env()
        try:
            serve_startup_probes(self._settings, self._board, listener)
        except RuntimeError as error:
            if cannot_start_thread(error):
                return Exit.NO_RESOURCES
            raise
        return Exit.ERROR
