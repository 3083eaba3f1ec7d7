"""The processes of a fleet: what the supervisor knows of each, the orders that it gives them, and
how they start: the fork, and in the child the main function of its role."""

import logging
import os
import signal
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from cmdbus.board.board import Board, Node
from cmdbus.board.exit_reasons import VERDICT_REASONS
from cmdbus.board.health import Health
from cmdbus.board.records import Phase, Restart, Role, Verdict
from cmdbus.board.views import SeatView, SlotView
from cmdbus.board.wake_pipe import WakePipe
from cmdbus.clock import time
from cmdbus.failpoints import AFTER_FORK, BEFORE_FORK, failpoint
from cmdbus.proc import PidState, cpu_seconds, pid_state, rss_bytes
from cmdbus.settings import Settings
from cmdbus.supervisor import signals
from cmdbus.supervisor.aftermath import gil_holder, stuck
from cmdbus.supervisor.children import Child, fork
from cmdbus.supervisor.fleet_view import NS, ProcessView
from cmdbus.supervisor.imports import without_collections
from cmdbus.supervisor.policy import Kill, Stop, is_ahead
from cmdbus.supervisor.stacks import Stacks
from cmdbus.supervisor.systemd_notifier import clear_notify_env

logger = logging.getLogger(__name__)

#: Seconds between two measurements of memory and executions, which change slowly.
_MEASURE_SECONDS = 1.0


@dataclass(slots=True, kw_only=True)
class SupervisedProcess:
    child: Child
    board: Board
    #: Replaced by each observation and each order.
    view: ProcessView
    #: It survived SIGKILL: it counts as dead, but keeps its seat until it exits.
    undead: bool = False
    #: The deadline of its latest order to stop was that order's own time.
    ends_at_once: bool = False
    #: Executions on its seat before it started.
    executed_before: int = 0
    _measured_at: float = 0.0
    #: Processor seconds of its threads when it was ordered to stop or to write its stacks, and
    #: the time of that.
    _cpu_seconds: dict[int, float] = field(default_factory=dict)
    _cpu_read_at: float = 0.0

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def seat(self) -> SeatView:
        return self.board.seat_view(self.view.index)

    def repair_seat(self) -> None:
        """After something else has overwritten the role that the seat shows, or as the process
        stops without an order."""
        view, role = self.view, self.view.role
        if self.undead:
            role = Role.DEAD
        elif view.stop_by is not None or view.terminated:
            role = Role.STOPPING
        self.board.seat(view.index).set_identity(role, view.number, view.generation)

    def measure(self, settings: Settings) -> None:
        """Reads its memory, which the board then shows, and its executions."""
        now, view = time.monotonic(), self.view
        if now < self._measured_at + _MEASURE_SECONDS or view.role is not Role.WORKER:
            return
        self._measured_at = now
        rss = rss_bytes(self.pid)
        self.board.seat(view.index).rss_bytes = rss
        over = settings.max_rss_bytes is not None and rss > settings.max_rss_bytes
        self.view = replace(
            view,
            rss_bytes=rss,
            rss_over=view.rss_over + 1 if over else 0,
            commands=self.executed() if settings.max_commands is not None else 0,
        )

    def executed(self) -> int:
        return self.board.executed(self.view.index) - self.executed_before

    def stop(self, order: Stop, now: float) -> None:
        view = self.view
        if view.stop_by is None:
            view = replace(view, stop_verdict=order.verdict)
            self._measure_cpu(now)
        self.view = replace(view, stop_by=order.by)
        self.ends_at_once = order.by <= time.monotonic()
        if order.reason is not None:
            level = logging.INFO if order.reason is Restart.RELOADED else logging.WARNING
            logger.log(level, "%s is ordered to stop: %s", self, _stop_reason(order, self.seat))
        self.board.seat(view.index).order_to_stop(
            view.number, view.generation, by=int(order.by * NS), verdict=view.stop_verdict
        )
        if order.verdict is Verdict.STUCK:
            self.child.send(signal.SIGUSR2)  # its stacks, also while the GIL is held
        self.child.send(signal.SIGTERM)

    def dump(self, now: float) -> None:
        logger.warning("%s is overdue: asking for its stacks", self)
        self.view = replace(self.view, dumped_at=now)
        self._measure_cpu(now)
        self.child.send(signal.SIGUSR2)

    def kill(self, order: Kill, watchdog: float, now: float) -> bool:
        """False if it has recovered since the decision, and lives on."""
        seat = self.seat
        if order.verdict is Verdict.HUNG and seat.due and is_ahead(seat.due / NS, watchdog, now):
            self.view = replace(self.view, dumped_at=None)
            logger.warning("%s has recovered in time", self)
            return False
        stopped = pid_state(self.pid) is PidState.STOPPED
        verdict = Verdict.STOPPED if stopped else order.verdict
        cause = self._cause(order, seat, now)
        self.view = replace(self.view, killed_at=now, kill_verdict=verdict, cause=cause)
        level, why = logging.ERROR, VERDICT_REASONS[verdict]
        if self.ends_at_once and verdict is Verdict.LATE:
            level, why = logging.WARNING, "it was ordered to stop at once"
        logger.log(level, "%s is killed: %s%s", self, why, running_commands(seat.slots))
        self.child.send(signal.SIGKILL)
        return True

    def _measure_cpu(self, now: float) -> None:
        self._cpu_seconds, self._cpu_read_at = cpu_seconds(self.pid), now

    def _cause(self, order: Kill, seat: SeatView, now: float) -> SlotView | None:
        """The slot that the process is killed for, if it can be known."""
        if self.view.role is Role.STEWARD:
            return None
        running = {slot.index: slot.thread for slot in seat.slots if slot.command and slot.thread}
        used, seconds = cpu_seconds(self.pid), now - self._cpu_read_at
        holder = gil_holder(self._cpu_seconds, used, seconds, running)
        if order.verdict is Verdict.HUNG:
            return next((slot for slot in seat.slots if slot.index == holder), None)
        if order.verdict is not Verdict.CRITICAL and order.measured:
            return stuck(seat.slots, holder, int(now * NS))
        return None

    def __str__(self) -> str:
        return str(self.view)


def _stop_reason(order: Stop, seat: SeatView) -> str:
    levels, late = order.process.levels, order.process.latest_slot
    if order.reason is Restart.STUCK and levels.health is not Health.CRITICAL:
        slots = [slot for slot in seat.slots if slot.index == late]
        return f"a slot is stuck{running_commands(slots)}"
    return ", ".join(levels.reasons) or str(order.reason and order.reason.name.lower())


def running_commands(slots: Sequence[SlotView], *, timed_out: bool = True) -> str:
    """`timed_out`: also the commands whose attempts have ended by their timeouts."""
    commands = [
        f"{slot.command.domain}/{slot.command.type} {slot.command.command_id} (attempt "
        f"{slot.command.attempt}, slot {slot.number})"
        for slot in slots
        if slot.command is not None and (timed_out or slot.phase is not Phase.STUCK)
    ]
    return f"; it ran {', '.join(commands)}" if commands else ""


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

    @property
    def descriptors(self) -> list[int]:
        return [*self._private, *([self._http.fileno()] if self._http is not None else [])]

    def spawn(self, view: ProcessView, siblings: Iterable[Child]) -> SupervisedProcess:
        """OSError if the system has none left. The child keeps no descriptor of its siblings."""
        seat = self._board.seat(view.index)
        seat.assign(view.role, number=view.number, generation=view.generation)
        failpoint(BEFORE_FORK)
        try:
            others = [sibling.descriptor for sibling in siblings]
            child = fork(lambda: self._main(view), close=[*self._private, *others])
        except OSError:
            seat.clear()
            raise
        failpoint(AFTER_FORK)
        return SupervisedProcess(
            child=child,
            board=self._board,
            view=replace(view, pid=child.pid),
            executed_before=self._board.executed(view.index),
        )

    def wake_steward(self) -> None:
        self._steward_pipe.put()

    def close(self) -> None:
        self._worker_pipe.close()
        self._steward_pipe.close()

    def _main(self, view: ProcessView) -> int:
        """In the child. The database driver and the application are imported only here."""
        with without_collections():
            if view.role is Role.STEWARD:
                from cmdbus.worker.boot.steward_entry import run
            else:
                from cmdbus.worker.boot.worker_entry import run

        clear_notify_env()
        if self._http is not None and view.role is not Role.STEWARD:
            self._http.close()
        node = Node(
            board=self._board,
            seat=self._board.seat(view.index),
            generation=view.generation,
            parent=os.getppid(),
            worker_pipe=self._worker_pipe,
            steward_pipe=self._steward_pipe,
            http=self._http,
            listens=self._settings.listen,
            quarantine=view.role is Role.QUARANTINE,
        )
        return run(self._settings, node, self.stacks.file(view.index), signals.unblock)
