"""The processes of a fleet: what the supervisor knows of each, and how they start: the fork, and in
the child the main function of its role."""

import os
import random
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from cmdbus.board.board import Board
from cmdbus.board.records import Role
from cmdbus.board.wake_pipe import WakePipe
from cmdbus.clock import time
from cmdbus.failpoints import AFTER_FORK, BEFORE_FORK, failpoint
from cmdbus.proc import cpu_seconds, rss_bytes
from cmdbus.settings import Settings
from cmdbus.supervisor import signals
from cmdbus.supervisor.children import Child, fork
from cmdbus.supervisor.fleet_view import ProcessView
from cmdbus.supervisor.stacks import Stacks
from cmdbus.supervisor.systemd_notifier import clear_notify_env

#: Seconds between two measurements of memory and executions, which change slowly.
_MEASURE_SECONDS = 1.0
#: Share of their limits that recycled processes live longer, so that they do not all stop together.
_SPREAD = 0.1
#: Seconds within which a child shows itself on the board after the fork.
_ENTERS_SECONDS = 30.0


@dataclass(slots=True, kw_only=True)
class SupervisedProcess:
    child: Child
    #: Replaced by each observation and each order.
    view: ProcessView
    #: It survived SIGKILL: it counts as dead, but keeps its seat until it exits.
    undead: bool = False
    #: Executions on its seat before it started.
    executed_before: int = 0
    _measured_at: float = 0.0
    #: Processor seconds of its threads when it was ordered to stop or to write its stacks, and
    #: the time of that.
    cpu_seconds: dict[int, float] = field(default_factory=dict)
    cpu_read_at: float = 0.0

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def seat_role(self) -> Role:
        """The role that its seat shows."""
        if self.undead:
            return Role.DEAD
        return self.view.role if self.view.stop_by is None else Role.STOPPING

    def measure(self, board: Board, settings: Settings) -> None:
        """Reads its memory, which the board then shows, and its executions."""
        now, view = time.monotonic(), self.view
        if now < self._measured_at + _MEASURE_SECONDS or view.role is not Role.WORKER:
            return
        self._measured_at = now
        rss = rss_bytes(self.pid)
        board.seat(view.index).rss_bytes = rss
        over = settings.max_rss_bytes is not None and rss > settings.max_rss_bytes
        self.view = replace(
            view,
            rss_bytes=rss,
            rss_over=view.rss_over + 1 if over else 0,
            commands=self.executed(board) if settings.max_commands is not None else 0,
        )

    def measure_cpu(self, now: float) -> None:
        self.cpu_seconds, self.cpu_read_at = cpu_seconds(self.pid), now

    def executed(self, board: Board) -> int:
        return board.executed(self.view.index) - self.executed_before

    def __str__(self) -> str:
        return str(self.view)


class Spawner:
    def __init__(
        self,
        settings: Settings,
        board: Board,
        stacks: Stacks,
        *,
        private: Sequence[int] = (),
        http: socket.socket | None = None,
    ) -> None:
        self._settings = settings
        self._board = board
        self.stacks = stacks
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
        return run(self._settings, node, self.stacks.file(index), signals.unblock)
