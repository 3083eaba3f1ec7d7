"""The processes of a fleet: reaped, observed, started, ordered to stop, killed.

Acts on what the policy decided, and shows it on the board and in the log. Never waits for a
process.
"""

import json
import logging
import random
import signal
from dataclasses import replace
from typing import assert_never

from cmdbus.board.board import Board
from cmdbus.board.exit_reasons import exit_reason
from cmdbus.board.records import Restart, Role, Verdict
from cmdbus.board.views import BoardView, SeatView
from cmdbus.clock import time
from cmdbus.counting import count_of
from cmdbus.exits import Exit, ExitStatus
from cmdbus.failpoints import IN_REAP, failpoint
from cmdbus.settings import Settings
from cmdbus.supervisor.aftermath import Aftermath, Ending, aftermath
from cmdbus.supervisor.boot_failures import BootFailures
from cmdbus.supervisor.children import Child
from cmdbus.supervisor.fleet_view import UNDEAD_SECONDS, FleetView, Post, ProcessView, updated
from cmdbus.supervisor.policy import Action, Dump, Kill, Start, Stop, max_procs
from cmdbus.supervisor.processes import Spawner, SupervisedProcess, running_commands
from cmdbus.supervisor.restarts import Restarts

logger = logging.getLogger(__name__)

_CANNOT_START = "a process cannot start"
_MANY_CRASHES = "too many processes exit as soon as they start"
#: Share of their limits that recycled processes live longer, so that they do not all stop together.
_SPREAD = 0.1
#: Seconds within which a child shows itself on the board after the fork.
_ENTERS_SECONDS = 30.0
#: Signals at which a process writes its stacks before it dies.
_STACK_SIGNALS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


class Fleet:
    def __init__(self, settings: Settings, board: Board, spawner: Spawner) -> None:
        self._settings = settings
        self._board = board
        for index in range(board.layout.seats):
            board.seat(index).clear()
        self._spawner = spawner
        self._stacks = spawner.stacks
        self._restarts = Restarts()
        self._generations: dict[Post, int] = {}
        self._processes: dict[int, SupervisedProcess] = {}
        self.wanted = settings.procs
        #: The whole fleet stops.
        self.stopping = False
        #: The application to run: the number of the latest reload that did not fail.
        self.app = 0
        self._reloads = 0
        #: The stop has left commands without an outcome.
        self.unfinished = False
        self._boot_failures = BootFailures()
        #: Conditions that the log has named, once each.
        self._reported: set[str] = set()

    # Reap and observe.

    def reap(self, now: float) -> None:
        """Handles the exits, and gives up processes that survive SIGKILL."""
        for process in list(self._processes.values()):
            if exit_status := process.child.reap():
                failpoint(IN_REAP)
                self._handle_exit(process, exit_status, now)
            elif not process.undead and (process.child.held or not process.view.is_alive(now)):
                self._give_up(process, now)
        self._stacks.log_requested(now)
        self._board.undead = sum(process.undead for process in self._processes.values())

    def observe(self) -> FleetView:
        view = self._read_board()
        # Later than the board was read: what it shows did not begin in the future.
        read_at = time.monotonic()
        for process in self._processes.values():
            self._update(process, view.seats[process.view.index], read_at)
        return FleetView(
            processes=self._views(),
            wanted=self.wanted,
            app=self.app,
            not_before=dict(self._restarts.not_before),
            unrescued=sum(seat.may_have_claims for seat in view.seats),
            suspects=view.suspects,
        )

    def _read_board(self) -> BoardView:
        """Repairs roles that something overwrote, and frees seats whose claims are released."""
        view = self._board.snapshot(claims=False)
        unknown = [p for p in self._processes.values() if view.seats[p.view.index].role is None]
        if unknown:
            for process in unknown:
                process.repair_seat()
            view = self._board.snapshot(claims=False)
        for seat in view.seats:
            if seat.role is Role.DEAD and seat.rescued:
                self._board.seat(seat.index).clear()
        return view

    def _views(self) -> list[ProcessView]:
        return [process.view for process in self._processes.values()]

    def _update(self, process: SupervisedProcess, seat: SeatView, now: float) -> None:
        was_ready, was_staying = process.view.ready, process.view.is_staying
        process.view = updated(process.view, seat, now)
        if was_staying and process.view.terminated:
            process.repair_seat()
            self._restarts.reasons[process.view.post] = Restart.TERMINATED
        if process.view.ready and not was_ready:
            self._boot_failures.ready(process.view)
            self._reported.discard(_CANNOT_START)
        process.measure(self._settings)

    def failure(self, now: float) -> Exit | None:
        """Why it should not go on."""
        if self._boot_failures.is_final(self.wanted):
            return Exit.CANNOT_START
        return Exit.CRASH_LOOP if self._is_crash_loop(now) else None

    def _is_crash_loop(self, now: float) -> bool:
        """Too many early exits, the latest among them, and no ready worker that could continue."""
        if not self._restarts.too_many(self.wanted, now):
            self._reported.discard(_MANY_CRASHES)
            return False
        if self._has_ready_worker():
            self._report(_MANY_CRASHES)
            return False
        return self._restarts.latest_was_early

    def _has_ready_worker(self) -> bool:
        workers = [v for v in self._views() if v.role is Role.WORKER and v.is_staying]
        return any(self._board.seat_view(v.index).ready is not None for v in workers)

    def _report(self, condition: str) -> None:
        """Once, until the condition has ended."""
        if condition not in self._reported:
            logger.error("%s: the ready ones continue, the next start waits", condition)
        self._reported.add(condition)

    def change_wanted(self, by: int) -> None:
        maximum = max_procs(self._board.layout.seats)
        before, self.wanted = self.wanted, min(max(1, self.wanted + by), maximum)
        if self.wanted != before:
            logger.info("%s from now on", count_of(self.wanted, "worker process", "es"))
        elif by > 0:
            logger.warning(
                "%s worker processes stay: the board has no seat for more; for more of them, "
                "start the supervisor with a larger --procs",
                before,
            )
        else:
            logger.warning("%s worker process stays: there is always one", before)

    def reload(self) -> None:
        """The number is new also after a reload that failed for some of the processes only."""
        self._reloads += 1
        self.app = self._reloads

    def report(self) -> None:
        """The board into the log, and the stacks of all processes as soon as they are written."""
        for index, process in self._processes.items():
            self._stacks.request(index, f"{process}, pid {process.pid}", time.monotonic())
            process.child.send(signal.SIGUSR2)
        board = self._board.snapshot().to_dict(time.monotonic_ns())
        logger.info("the board: %s", json.dumps(board))

    @property
    def children(self) -> list[Child]:
        return [process.child for process in self._processes.values()]

    @property
    def descriptors(self) -> list[int]:
        """Those that a process which is none of the fleet's must not keep."""
        return [*self._spawner.descriptors, *[child.descriptor for child in self.children]]

    # Act.

    def act(self, action: Action, now: float) -> None:
        if isinstance(action, Start):
            self._start(action, now)
            return
        process = self._processes[action.process.index]
        match action:
            case Stop():
                process.stop(action, now)
                if action.reason is not None:
                    self._restarts.reasons[process.view.post] = action.reason
            case Dump():
                self._stacks.make_room(process.view.index)
                process.dump(now)
            case Kill():
                if process.kill(action, self._settings.timeouts.watchdog, now):
                    self._stacks.log_last(process, process.view.index)
                    if action.verdict is Verdict.HUNG and process.view.stop_by is None:
                        self._restarts.reasons[process.view.post] = Restart.HUNG
            case _:
                assert_never(action)

    def _start(self, action: Start, now: float) -> None:
        index = self._free_index(action.role)
        if index is None:
            return  # All other seats wait until the claims of their dead processes are released.
        post = action.role, action.number
        generation = self._generations.get(post, 0) + 1
        self._stacks.check()
        view = ProcessView(
            index=index,
            role=action.role,
            number=action.number,
            generation=generation,
            app=self.app,
            born=now,
            due=now + _ENTERS_SECONDS,
            spread=random.uniform(0, _SPREAD),
        )
        try:
            process = self._spawner.spawn(view, self.children)
        except OSError as error:
            pause = self._restarts.not_started(post, now, random.random())
            logger.error(
                "cannot start a process (%s): trying again in %.0f s", error.strerror, pause
            )
            return
        self._generations[post] = generation
        self._processes[index] = process
        reason = action.reason or self._restarts.reasons.pop(post, None)
        if reason is not None:
            self._board.count_restart(reason)
        why = f": {reason.name.lower()}" if reason is not None else ""
        why += f", as its predecessor has reached a limit: {action.why}" if action.why else ""
        logger.info("%s starts, pid %s, generation %s%s", process, process.pid, generation, why)

    def _free_index(self, role: Role) -> int | None:
        """Without a steward the last free seat is kept for it: it must release the claims of dead
        processes before their seats are free."""
        seats = self._board.snapshot(claims=False).seats
        indexes = [
            seat.index
            for seat in seats
            if seat.index not in self._processes and seat.role in (Role.SPARE, None)
        ]
        has_steward = any(
            p.view.role is Role.STEWARD and not p.undead for p in self._processes.values()
        )
        kept = 0 if role is Role.STEWARD or has_steward else 1
        return indexes[0] if len(indexes) > kept else None

    # Exits.

    def _give_up(self, process: SupervisedProcess, now: float) -> None:
        """In uninterruptible sleep SIGKILL stays pending, so the process never runs user code
        again: treats it as dead and releases its claims. So it does with one that has exited, and
        that a debugger holds."""
        process.undead = True
        after = self._record_exit(process, ExitStatus(signal.SIGKILL, 0), process.seat, now)
        if after.restart is not None:
            self._restarts.reasons[process.view.post] = after.restart
        if process.view.killed_at is None:
            process.view = replace(process.view, killed_at=now - UNDEAD_SECONDS)
        held = process.child.held
        logger.error(
            "%s, pid %s, %s: giving up on it and releasing its claims",
            process,
            process.pid,
            "has exited, but a debugger holds it" if held else "survived SIGKILL (disk wait?)",
        )

    def _handle_exit(self, process: SupervisedProcess, exit_status: ExitStatus, now: float) -> None:
        del self._processes[process.view.index]
        if process.undead:
            logger.info("%s, pid %s, which was given up, has exited", process, process.pid)
            return
        # Read after the exit: everything that the process did counts.
        seat = process.seat
        after = self._record_exit(process, exit_status, seat, now)
        post = process.view.post
        if after.ending is Ending.STOPPED:
            logger.info("%s has stopped, pid %s", process, process.pid)
        elif after.ending is Ending.NO_RESOURCES:
            pause = self._restarts.not_started(post, now, random.random())
            text = "%s, pid %s: the system has no thread left for it: trying again in %.0f s"
            logger.error(text, process, process.pid, pause)
        elif process.view.killed_at is None:
            self._log_crash(process, after, seat)
        if after.restart is not None and not process.view.terminated:
            self._restarts.reasons[post] = after.restart
        if after.boot_failed:
            self._handle_boot_failure(process.view)
        if after.early and (pause := self._restarts.exited_early(post, now, random.random())):
            logger.warning("%s exited early again: the next starts in %.1f s", process, pause)
        if seat.ready is not None and not after.early:
            self._note_late_exit(process.view, after, now)

    def _note_late_exit(self, process: ProcessView, after: Aftermath, now: float) -> None:
        if after.ran_nothing:
            self._restarts.ran_nothing(process.post, now, random.random())
        elif process.role is Role.QUARANTINE:
            self._restarts.ran(process.post)
        elif process.role is Role.WORKER:
            self._restarts.exited_late(now)

    def _record_exit(
        self, process: SupervisedProcess, exit_status: ExitStatus, seat: SeatView, now: float
    ) -> Aftermath:
        """Wakes the steward, which releases the claims of the dead process."""
        view = replace(process.view, commands=process.executed())
        after = aftermath(view, exit_status, seat, now, stopping=self.stopping)
        self.unfinished |= after.unfinished
        if view.role is Role.STEWARD:
            self._board.disarm()  # Leaders must not trust a dead listener.
        writer = self._board.seat(view.index)
        if after.needs_rescue:
            writer.record_exit(view.number, after.exit_record)
        else:
            writer.clear()
        self._spawner.wake_steward()
        return after

    def _log_crash(self, process: SupervisedProcess, after: Aftermath, seat: SeatView) -> None:
        reason = exit_reason(after.exit_record)
        if after.ending is Ending.TERMINATED:
            logger.warning("%s, pid %s, %s", process, process.pid, reason)
            return
        more = running_commands(seat.slots, timed_out=False)
        if after.boot_failed:
            more = self._boot_failures.failed(process.view, self._stacks.read(process.view.index))
        logger.error("%s, pid %s, %s%s", process, process.pid, reason, more)
        if after.exit_record.signal in _STACK_SIGNALS:
            self._stacks.log_last(process, process.view.index)

    def _handle_boot_failure(self, process: ProcessView) -> None:
        """A broken new application keeps the old one."""
        workers = [view for view in self._views() if view.role is Role.WORKER]
        older = [view.app for view in workers if view.app < process.app]
        if older:
            self.app = max(older)
            logger.error("the new application cannot start: the fleet keeps the old one")
        elif self._has_ready_worker():
            self._report(_CANNOT_START)
