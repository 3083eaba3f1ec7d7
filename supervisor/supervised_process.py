"""A child process: its view for decisions, and what only the supervisor needs."""

from dataclasses import dataclass, field, replace

from cmdbus.board.board import Board
from cmdbus.board.records import Role
from cmdbus.clock import time
from cmdbus.proc import cpu_seconds, rss_bytes
from cmdbus.settings import Settings
from cmdbus.supervisor.children import Child
from cmdbus.supervisor.fleet_view import ProcessView

#: Seconds between two measurements of memory and executions, which change slowly.
_MEASURE_SECONDS = 1.0


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
