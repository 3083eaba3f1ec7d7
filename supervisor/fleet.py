"""The processes of a fleet: looked at, started, told to leave, killed, buried.

Acts on what the policy decided, and says on the board and in the log what it did. Never
waits for a process.
"""

import json
import logging
import os
import random
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import assert_never

from cmdbus.board.board import Board
from cmdbus.board.health import Health
from cmdbus.board.records import NO_COMMAND, ExitRecord, Phase, Restart, Role, Verdict
from cmdbus.board.views import BoardView, SeatView, SlotView
from cmdbus.board.wake_pipe import WakePipe
from cmdbus.clock import time
from cmdbus.counting import count_of
from cmdbus.exits import Exit
from cmdbus.failpoints import AFTER_FORK, BEFORE_FORK, IN_REAP, failpoint
from cmdbus.proc import PidState, cpu_seconds, pid_state
from cmdbus.settings import Settings
from cmdbus.supervisor import gil_holder as guilt
from cmdbus.supervisor import signals
from cmdbus.supervisor.children import ExitStatus, fork
from cmdbus.supervisor.policy import (
    DUMP_SECONDS,
    UNDEAD_SECONDS,
    Action,
    Dump,
    FleetView,
    Kill,
    ProcessView,
    Start,
    Stop,
    is_ahead,
)
from cmdbus.supervisor.restarts import Restarts, died_early, is_busy, is_expected
from cmdbus.supervisor.stacks import Stacks
from cmdbus.supervisor.supervised_process import NS, SupervisedProcess
from cmdbus.supervisor.systemd_notifier import clear_notify_env

logger = logging.getLogger(__name__)

_CANNOT_START = "a process cannot start"
_MANY_CRASHES = "processes crash as soon as they start, too many of them"
#: Recycled processes live up to this part longer, so that they do not all go at once.
_SPREAD = 0.1


class Fleet:
    """Who is there, and who should be."""

    def __init__(self, settings: Settings, board: Board, stacks: Path) -> None:
        self._settings = settings
        self._board = board
        self._stacks = Stacks(stacks)
        for index in range(board.layout.seats):
            board.seat(index).clear(time.monotonic_ns())
        self._worker_pipe = WakePipe(2 * settings.procs)
        self._steward_pipe = WakePipe(1)
        self._restarts = Restarts()
        self._generations: dict[tuple[Role, int], int] = {}
        self._processes: dict[int, SupervisedProcess] = {}
        self.wanted = settings.procs
        #: Raised by each reload.
        self.app = 0
        #: Why the last process of a number had to go, until its successor starts.
        self._reasons: dict[tuple[Role, int], Restart] = {}
        #: Commands were killed, or given back while they ran.
        self.unfinished = False
        #: The latest application that a worker was ready with: it can be.
        self._proven = -1
        #: A process could not boot for a reason that no restart cures, and none is ready.
        self.cannot_boot = False
        #: Causes that the log names only once.
        self._reported: set[str] = set()
        #: Processes asked for stacks, with the size of the file before; and when they are logged.
        self._stacks_wanted: dict[int, int] = {}
        self._stacks_at = 0.0
        #: Descriptors of the supervisor's that no child may keep.
        self.private: list[int] = []
        #: Where the steward answers probes; no other child keeps it.
        self.http: socket.socket | None = None

    # Look.

    def look(self, now: float, *, judging: bool, stop_by: float | None) -> FleetView:
        for process in list(self._processes.values()):
            if exit_status := process.child.reap():
                failpoint(IN_REAP)
                # Looked at only now: what it did until its death counts.
                seat = self._board.seat_view(process.index)
                self._handle_exit(process, exit_status, seat, now, stop_by is not None)
            elif process.killed_at is not None and now >= process.killed_at + UNDEAD_SECONDS:
                self._give_up(process, now, stop_by is not None)
        if self._stacks_wanted and now >= self._stacks_at:
            self._log_stacks()
        view = self._board.snapshot(keys=False)
        if self._repair_seating(view, now):
            view = self._board.snapshot(keys=False)
        self._clear(view, now)
        # What began while this process stalled, after `now`, did not begin in the future.
        read_at = time.monotonic()
        return FleetView(
            processes=[
                self._view(s, view.seats[s.index], read_at) for s in self._processes.values()
            ],
            wanted=self.wanted,
            app=self.app,
            not_before={key: self._restarts.not_before(key) for key in self._generations},
            stop_by=stop_by,
            unrescued=sum(seat.role is Role.DEAD and not seat.rescued for seat in view.seats),
            suspects=view.suspects,
            can_judge=judging,
        )

    def _repair_seating(self, view: BoardView, now: float) -> bool:
        """Seats that do not show any more whose they are: something else wrote there."""
        unknown = [s for s in self._processes.values() if view.seats[s.index].role is None]
        for process in unknown:
            seat = self._board.seat(process.index)
            seat.set_identity(process.seating, process.number, process.generation, int(now * NS))
        return bool(unknown)

    def _view(self, process: SupervisedProcess, seat: SeatView, now: float) -> ProcessView:
        if seat.ready is not None and not process.was_ready:
            process.was_ready = True
            self._reported.discard(_CANNOT_START)
        if seat.ready is not None and process.role is Role.WORKER:
            self._proven = max(self._proven, process.app)
        process.measure_rss(self._board, self._settings, now)
        return process.view(seat, now)

    def is_crash_loop(self, now: float) -> bool:
        """Too many early deaths, and no worker that is ready: those go on."""
        if not self._restarts.too_many(self.wanted, now):
            self._reported.discard(_MANY_CRASHES)
            return False
        if self._has_ready_worker():
            self._report(_MANY_CRASHES)
            return False
        return True

    def _has_ready_worker(self) -> bool:
        workers = [s for s in self._processes.values() if s.role is Role.WORKER and s.is_staying]
        return any(self._board.seat_view(s.index).ready is not None for s in workers)

    def _report(self, what: str) -> None:
        """Once, until the cause is gone."""
        if what not in self._reported:
            logger.error("%s: those that are ready go on, the next start waits", what)
        self._reported.add(what)

    def change_wanted(self, by: int) -> None:
        most = (self._board.layout.seats - 4) * 2 // 3
        before, self.wanted = self.wanted, min(max(1, self.wanted + by), most)
        if self.wanted != before:
            logger.info("%s from now on", count_of(self.wanted, "worker process", "es"))
        elif by > 0:
            logger.warning(
                "%s worker processes stay: the board has no room for more; for more of them, "
                "start the supervisor with a larger --procs",
                before,
            )
        else:
            logger.warning("%s worker process stays: there is always one", before)

    def is_drained(self, since: float) -> bool:
        """All workers have waited since then, would have been woken, and hold no claim: what runs
        or is not settled counts as not done."""
        view = self._board.snapshot()
        if any(seat.role in (Role.QUARANTINE, Role.STOPPING, Role.DEAD) for seat in view.seats):
            return False
        workers = view.with_role(Role.WORKER)
        parked = [seat.parked for seat in workers if seat.ready is not None]
        return (
            len(parked) >= self.wanted
            and all(at is not None and at / NS < since for at in parked)
            and (view.armed > 0 or not self._settings.listen)
            and not view.suspects
            and not any(seat.claims for seat in workers)
        )

    def report(self) -> None:
        """The board into the log, and everybody's stacks as soon as they are written."""
        for process in self._processes.values():
            self._stacks_wanted[process.index] = self._stacks.size(process.index)
            process.child.send(signal.SIGUSR2)
        self._stacks_at = time.monotonic() + DUMP_SECONDS
        logger.info(
            "the board: %s", json.dumps(self._board.snapshot().to_dict(time.monotonic_ns()))
        )

    def _log_stacks(self) -> None:
        for index, before in self._stacks_wanted.items():
            if (process := self._processes.get(index)) is not None:
                stack = self._stacks.read(index, before)
                logger.info("the stacks of %s, pid %s:\n%s", process, process.child.pid, stack)
        self._stacks_wanted.clear()

    @property
    def pids(self) -> list[int]:
        return [process.child.pid for process in self._processes.values()]

    @property
    def descriptors(self) -> list[int]:
        """Each is readable when its child has died."""
        return [process.child.descriptor for process in self._processes.values()]

    def close(self) -> None:
        self._worker_pipe.close()
        self._steward_pipe.close()

    # Act.

    def act(self, action: Action, now: float) -> None:
        match action:
            case Start():
                self._start(action, now)
            case Stop():
                self._stop(action, now)
            case Dump():
                self._dump(self._processes[action.process.index], now)
            case Kill():
                self._kill(action, now)
            case _:
                assert_never(action)

    def _start(self, action: Start, now: float) -> None:
        index = self._free_index(action.role)
        if index is None:
            return  # All wait for what their dead held to be handed back.
        key = action.role, action.number
        generation = self._generations.get(key, 0) + 1
        at = int(now * NS)
        self._stacks.look()
        seat = self._board.seat(index)
        seat.assign(action.role, number=action.number, generation=generation, now=at)
        failpoint(BEFORE_FORK)
        try:
            child = fork(
                lambda: self._main(action.role, index, generation),
                close=[*self.private, *self.descriptors],
            )
        except OSError as error:
            seat.clear(at)
            pause = self._restarts.not_started(key, now, random.random())
            self._generations.setdefault(key, 0)
            logger.error("no process can be started (%s): again in %.0f s", error.strerror, pause)
            return
        failpoint(AFTER_FORK)
        self._generations[key] = generation
        reason = action.reason or self._reasons.pop(key, None)
        if reason is not None:
            self._board.count_restart(reason)
        self._processes[index] = process = SupervisedProcess(
            child=child,
            index=index,
            role=action.role,
            number=action.number,
            generation=generation,
            app=self.app,
            born=now,
            spread=random.uniform(0, _SPREAD),
            executed_before=self._board.executed(index),
        )
        why = f": {reason.name.lower()}" if reason is not None else ""
        why += f", as the process before it is used up: {action.why}" if action.why else ""
        logger.info("%s starts, pid %s, generation %s%s", process, child.pid, generation, why)

    def _main(self, role: Role, index: int, generation: int) -> int:
        """In the child. Only here is loaded what talks to the database, or is the user's."""
        from cmdbus.board.board import Node
        from cmdbus.worker.boot import process

        clear_notify_env()
        if self.http is not None and role is not Role.STEWARD:
            self.http.close()
        node = Node(
            board=self._board,
            seat=self._board.seat(index),
            generation=generation,
            parent=os.getppid(),
            worker_pipe=self._worker_pipe,
            steward_pipe=self._steward_pipe,
            http=self.http,
            quarantine=role is Role.QUARANTINE,
        )
        stacks = self._stacks.file(index)
        if role is Role.STEWARD:
            return process.run_steward(self._settings, node, stacks, signals.unblock)
        return process.run(self._settings, node, stacks, signals.unblock)

    def _stop(self, action: Stop, now: float) -> None:
        process = self._processes[action.process.index]
        if process.stop_by is None:
            process.stop_verdict = action.verdict
            process.cpu_seconds, process.cpu_read_at = cpu_seconds(process.child.pid), now
        process.stop_by = action.by
        if action.reason is not None:
            self._reasons[process.role, process.number] = action.reason
            why = _why(action, self._board.seat_view(process.index))
            planned = action.reason in (Restart.RELOADED, Restart.RECYCLED)
            level = logging.INFO if planned else logging.WARNING
            logger.log(level, "%s is told to leave: %s", process, why)
        seat = self._board.seat(process.index)
        at, by = int(now * NS), int(action.by * NS)
        seat.order_to_stop(
            process.number, process.generation, by=by, now=at, verdict=process.stop_verdict
        )
        if action.verdict is Verdict.STUCK:
            process.child.send(signal.SIGUSR2)  # its stacks, also while the GIL is held
        process.child.send(signal.SIGTERM)

    def _dump(self, process: SupervisedProcess, now: float) -> None:
        logger.warning("%s is late: asking for its stacks", process)
        process.dumped_at = process.cpu_read_at = now
        process.cpu_seconds = cpu_seconds(process.child.pid)
        process.child.send(signal.SIGUSR2)

    def _kill(self, action: Kill, now: float) -> None:
        """Compares before: whoever has moved on since it was judged is let live."""
        process = self._processes[action.process.index]
        view = self._board.seat_view(process.index)
        if action.verdict is Verdict.HUNG and self._is_back(view, now):
            process.dumped_at = None
            logger.warning("%s has come back in time", process)
            return
        self._find_cause(process, action, view, now)
        process.verdict = action.verdict
        if pid_state(process.child.pid) is PidState.STOPPED:
            process.verdict = Verdict.STOPPED
        process.killed_at = now
        if action.verdict is Verdict.HUNG:
            self._reasons[process.role, process.number] = Restart.HUNG
        logger.error(
            "%s is killed: %s%s", process, _SENTENCES[process.verdict], _running(view.slots)
        )
        if stack := self._stacks.last(process.index):
            logger.error("the stacks of %s:\n%s", process, stack)
        process.child.send(signal.SIGKILL)

    def _is_back(self, view: SeatView, now: float) -> bool:
        due, watchdog = view.due, self._settings.timeouts.watchdog
        return due is not None and is_ahead(due / NS, watchdog, now)

    def _find_cause(
        self, process: SupervisedProcess, action: Kill, view: SeatView, now: float
    ) -> None:
        """Finds the slot that the process is killed for, if it can be known."""
        if process.role is Role.STEWARD:
            return
        running = {slot.index: slot.thread for slot in view.slots if slot.command and slot.thread}
        burnt = cpu_seconds(process.child.pid)
        holder = guilt.gil_holder(process.cpu_seconds, burnt, now - process.cpu_read_at, running)
        if action.verdict is Verdict.HUNG:
            process.gil_holder = next((slot for slot in view.slots if slot.index == holder), None)
        elif action.verdict is not Verdict.CRITICAL and action.measured:
            process.gil_holder = guilt.stuck(view.slots, holder, int(now * NS))

    # Bury.

    def _give_up(self, process: SupervisedProcess, now: float, stopping: bool) -> None:
        """Where it waits no signal reaches it, and whatever it returns to, it dies at once: so
        all that it held is handed back as if it were dead."""
        if process.undead:
            return
        process.undead = True
        if stopping and is_busy(self._board.seat_view(process.index)):
            self.unfinished = True
        self._vacate_seat(process, ExitStatus(signal.SIGKILL, 0), False, now)
        self._steward_pipe.put()
        self._count_undead()
        logger.error(
            "%s, pid %s, does not die, as if in disk wait: it is given up, and what it held is "
            "handed back",
            process,
            process.child.pid,
        )

    def _count_undead(self) -> None:
        self._board.set_undead(sum(process.undead for process in self._processes.values()))

    def _handle_exit(
        self,
        process: SupervisedProcess,
        exit_status: ExitStatus,
        view: SeatView,
        now: float,
        stopping: bool,
    ) -> None:
        del self._processes[process.index]
        if process.undead:
            self._count_undead()
            logger.info("%s, pid %s, which was given up, is dead", process, process.child.pid)
            return
        key = process.role, process.number
        ordered = process.stop_by is not None or process.killed_at is not None
        left = exit_status.signal == 0 and is_expected(
            process.role, view, exit_status.code, ordered=ordered
        )
        if stopping and (exit_status.code == Exit.UNFINISHED if left else is_busy(view)):
            self.unfinished = True
        # Of a process that was ready, these codes are a handler's.
        boot_code = exit_status.code if exit_status.signal == 0 and view.ready is None else None
        no_room = not ordered and boot_code == Exit.NO_RESOURCES
        if left and process.stop_verdict is Verdict.STUCK:
            process.gil_holder = guilt.stuck(view.slots, None, int(now * NS))
        self._vacate_seat(process, exit_status, left, now)
        self._steward_pipe.put()
        if no_room:
            pause = self._restarts.not_started(key, now, random.random())
            what = "the system has no room for its threads"
            logger.error("%s, pid %s: %s: again in %.0f s", process, process.child.pid, what, pause)
            return
        if left:
            logger.info("%s has left, pid %s", process, process.child.pid)
            return
        ordered = ordered or left
        if not ordered:
            self._report_death(process, exit_status, view)
        if boot_code == Exit.CANNOT_START:
            self._could_not_boot(process)
        if not ordered and self._died_early(process, view, now):
            pause = self._restarts.died_early(key, now, random.random())
            if pause:
                logger.warning("%s died early again: the next in %.1f s", process, pause)

    def _report_death(
        self, process: SupervisedProcess, exit_status: ExitStatus, view: SeatView
    ) -> None:
        """Of a process that exited without an order."""
        key = process.role, process.number
        if exit_status == ExitStatus(0, Exit.TERMINATED):
            self._reasons[key] = Restart.TERMINATED
            logger.warning(
                "%s, pid %s, was stopped by a SIGTERM that the supervisor did not send",
                process,
                process.child.pid,
            )
            return
        self._reasons[key] = Restart.CRASHED
        running = _running(view.slots, timed_out=False)
        logger.error(
            "%s, pid %s, %s%s%s",
            process,
            process.child.pid,
            exit_status,
            running,
            _perhaps(exit_status),
        )
        if exit_status.signal in _STACKS_SECONDS and (stack := self._stacks.last(process.index)):
            logger.error("the stacks of %s:\n%s", process, stack)

    def _vacate_seat(
        self, process: SupervisedProcess, exit_status: ExitStatus, left: bool, now: float
    ) -> None:
        seat, at = self._board.seat(process.index), int(now * NS)
        if process.role is Role.STEWARD:
            # Its cells; leaders must not trust a dead listener.
            self._board.set_listening(False)
            self._board.set_armed(0)
        if (left and exit_status.code == Exit.DONE) or process.role is Role.STEWARD:
            seat.clear(at)
            return
        gil_holder = process.gil_holder
        command = gil_holder.command if gil_holder else None
        exit_record = ExitRecord(
            generation=process.generation,
            pid=process.child.pid,
            signal=exit_status.signal,
            code=exit_status.code,
            verdict=_verdict(process, left),
            slot=gil_holder.index if gil_holder else -1,
            token=command.token if command else 0,
            command_id=command.command_id if command else NO_COMMAND,
            quarantined=process.role is Role.QUARANTINE,
        )
        seat.record_exit(process.number, exit_record, now=at)

    def _could_not_boot(self, process: SupervisedProcess) -> None:
        """Whoever already runs goes on: a broken new application keeps the old fleet."""
        others = [
            s for s in self._processes.values() if s.role is Role.WORKER and s.app < process.app
        ]
        if others:
            self.app = max(other.app for other in others)
            logger.error("the new application cannot start: the fleet keeps the old one")
        elif self._has_ready_worker():
            self._report(_CANNOT_START)
        elif process.app > self._proven and not any(
            s.role is Role.WORKER for s in self._processes.values() if s.app == process.app
        ):
            self.cannot_boot = True

    def _died_early(self, process: SupervisedProcess, view: SeatView, now: float) -> bool:
        settled = self._board.executed(process.index) > process.executed_before
        return died_early(process.role, view, lived=now - process.born, settled=settled)

    def _clear(self, view: BoardView, now: float) -> None:
        for seat in view.seats:
            if seat.role is Role.DEAD and seat.rescued:
                self._board.seat(seat.index).clear(int(now * NS))

    def _free_index(self, role: Role) -> int | None:
        """Without a steward the last one is kept for it: places of the dead are free only after
        it has handed back what they held."""
        seats = self._board.snapshot(keys=False).seats
        indexes = [
            seat.index
            for seat in seats
            if seat.index not in self._processes and seat.role in (Role.SPARE, None)
        ]
        stewards = [s for s in self._processes.values() if s.role is Role.STEWARD and not s.undead]
        kept = 0 if role is Role.STEWARD or stewards else 1
        return indexes[0] if len(indexes) > kept else None


#: Signals at which a process writes its stacks before it dies.
_STACKS_SECONDS = (
    signal.SIGSEGV,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGILL,
    signal.SIGFPE,
)
_SENTENCES = {
    Verdict.NONE: "by order",
    Verdict.STUCK: "a command did not end",
    Verdict.HUNG: "its main thread did not come back",
    Verdict.LATE: "it was told to leave and has not in time",
    Verdict.STOPPED: "a signal stopped it",
    Verdict.CRITICAL: "it was critical, and has not left in time",
}


def _verdict(process: SupervisedProcess, left: bool) -> Verdict:
    """For the release of its claims. Of a process that stopped in time: why it had to."""
    if not left:
        return process.verdict
    return Verdict.LATE if process.stop_verdict is Verdict.NONE else process.stop_verdict


def _why(action: Stop, view: SeatView) -> str:
    levels, late = action.process.levels, action.process.latest_slot
    if action.reason is Restart.STUCK and levels.health is not Health.CRITICAL and late is not None:
        stuck = [slot for slot in view.slots if slot.index == late]
        return f"a slot is stuck{_running(stuck)}"
    return ", ".join(levels.reasons) or str(action.reason and action.reason.name.lower())


def _running(slots: Sequence[SlotView], *, timed_out: bool = True) -> str:
    """What they run; without `timed_out` only those whose attempt has not ended by its timeout."""
    running = [
        f"{slot.command.domain}/{slot.command.type} {slot.command.command_id} (attempt "
        f"{slot.command.attempt}, slot {slot.number})"
        for slot in slots
        if slot.command is not None and (timed_out or slot.phase is not Phase.STUCK)
    ]
    return f"; it ran {', '.join(running)}" if running else ""


def _perhaps(exit_status: ExitStatus) -> str:
    """Who did what we have not."""
    if exit_status.signal != signal.SIGKILL:
        return ""
    return "; by somebody else, or by the kernel, perhaps out of memory (OOM)"
