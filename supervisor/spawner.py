"""Starts the processes of a fleet: the fork, and in the child the main function of its role."""

import os
import random
import socket
from collections.abc import Iterable, Sequence

from cmdbus.board.board import Board
from cmdbus.board.records import Role
from cmdbus.board.wake_pipe import WakePipe
from cmdbus.failpoints import AFTER_FORK, BEFORE_FORK, failpoint
from cmdbus.settings import Settings
from cmdbus.supervisor import signals
from cmdbus.supervisor.children import fork
from cmdbus.supervisor.fleet_view import ProcessView
from cmdbus.supervisor.stacks import Stacks
from cmdbus.supervisor.supervised_process import SupervisedProcess
from cmdbus.supervisor.systemd_notifier import clear_notify_env

#: Share of their limits that recycled processes live longer, so that they do not all stop together.
_SPREAD = 0.1
#: Seconds within which a child shows itself on the board after the fork.
_ENTERS_SECONDS = 30.0


class Spawner:
    def __init__(
        self,
        settings: Settings,
        board: Board,
        stacks: Stacks,
        *,
        private: Sequence[int],
        http: socket.socket | None,
    ) -> None:
        self._settings = settings
        self._board = board
        self._stacks = stacks
        #: Descriptors of the supervisor that no child may keep.
        self._private = private
        #: The socket on which the steward answers probes; no other child keeps it.
        self._http = http
        self._worker_pipe = WakePipe(2 * settings.procs)
        self._steward_pipe = WakePipe(1)

    def spawn(
        self,
        role: Role,
        number: int,
        index: int,
        generation: int,
        app: int,
        now: float,
        siblings: Iterable[int],
    ) -> SupervisedProcess:
        """OSError if the system has no process left. `siblings`: the descriptors of the other
        children, which this one must not keep."""
        seat = self._board.seat(index)
        seat.assign(role, number=number, generation=generation)
        failpoint(BEFORE_FORK)
        try:
            child = fork(
                lambda: self._main(role, index, generation), close=[*self._private, *siblings]
            )
        except OSError:
            seat.clear()
            raise
        failpoint(AFTER_FORK)
        view = ProcessView(
            index=index,
            role=role,
            number=number,
            generation=generation,
            pid=child.pid,
            app=app,
            born=now,
            due=now + _ENTERS_SECONDS,
            spread=random.uniform(0, _SPREAD),
        )
        executed = self._board.executed(index)
        return SupervisedProcess(child=child, view=view, executed_before=executed)

    def wake_steward(self) -> None:
        self._steward_pipe.put()

    def close(self) -> None:
        self._worker_pipe.close()
        self._steward_pipe.close()

    def _main(self, role: Role, index: int, generation: int) -> int:
        """In the child. The database driver and the application are imported only here."""
        from cmdbus.board.board import Node
        from cmdbus.worker.boot import process

        clear_notify_env()
        if self._http is not None and role is not Role.STEWARD:
            self._http.close()
        node = Node(
            board=self._board,
            seat=self._board.seat(index),
            generation=generation,
            parent=os.getppid(),
            worker_pipe=self._worker_pipe,
            steward_pipe=self._steward_pipe,
            http=self._http,
            quarantine=role is Role.QUARANTINE,
        )
        run = process.run_steward if role is Role.STEWARD else process.run
        return run(self._settings, node, self._stacks.file(index), signals.unblock)
