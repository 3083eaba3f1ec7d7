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
from cmdbus.board.seats import NO_COMMAND, Ended, Role, Verdict
from cmdbus.board.slots import Phase
from cmdbus.board.views import BoardView, Restart, SeatView, SlotView
from cmdbus.board.wake_pipe import Wire
from cmdbus.clock import time
from cmdbus.counting import count_of
from cmdbus.exits import Exit
from cmdbus.failpoints import AFTER_FORK, BEFORE_FORK, IN_REAP, reach
from cmdbus.settings import Settings
from cmdbus.supervisor import gil_holder as guilt
from cmdbus.supervisor import signals
from cmdbus.supervisor.children import Death, fork
from cmdbus.supervisor.policy import (
    DUMP_SECONDS,
    UNDEAD_SECONDS,
    Action,
    Dump,
    Fleet,
    Kill,
    Leave,
    Process,
    Start,
    is_ahead,
)
from cmdbus.supervisor.restarts import Restarts, died_early, is_busy, is_expected
from cmdbus.supervisor.stacks import Stacks
from cmdbus.supervisor.supervised_process import NS, Seated
from cmdbus.supervisor.systemd_notifier import forget

logger = logging.getLogger(__name__)

_CANNOT_START = "a process cannot start"
_MANY_CRASHES = "processes crash as soon as they start, too many of them"
#: Recycled processes live up to this part longer, so that they do not all go at once.
_SPREAD = 0.1


class Company:
    """Who is there, and who should be."""

    def __init__(self, settings: Settings, board: Board, stacks: Path) -> None:
        self._settings = settings
        self._board = board
        self._stacks = Stacks(stacks)
        for place in range(board.layout.seats):
            board.seat(place).clear(time.monotonic_ns())
        self._wake = Wire(2 * settings.procs)
        self._call = Wire(1)
        self._restarts = Restarts()
        self._generations: dict[tuple[Role, int], int] = {}
        self._seated: dict[int, Seated] = {}
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
        #: Who was asked for stacks, with what the file said before; and when they are told.
        self._asked: dict[int, str] = {}
        self._tells_at = 0.0
        #: Descriptors of the supervisor's that no child may keep.
        self.private: list[int] = []
        #: Where the steward answers probes; no other child keeps it.
        self.http: socket.socket | None = None

    # Look.

    def look(self, now: float, *, judging: bool, stop_by: float | None) -> Fleet:
        for seated in list(self._seated.values()):
            if death := seated.child.reap():
                reach(IN_REAP)
                # Looked at only now: what it did until its death counts.
                seat = self._board.seat_view(seated.place)
                self._bury(seated, death, seat, now, stop_by is not None)
            elif seated.killed_at is not None and now >= seated.killed_at + UNDEAD_SECONDS:
                self._give_up(seated, now, stop_by is not None)
        if self._asked and now >= self._tells_at:
            self._tell_stacks()
        view = self._board.snapshot(keys=False)
        if self._mend(view, now):
            view = self._board.snapshot(keys=False)
        self._clear(view, now)
        # What began while this process stalled, after `now`, did not begin in the future.
        read_at = time.monotonic()
        return Fleet(
            processes=[self._shown(s, view.seats[s.place], read_at) for s in self._seated.values()],
            wanted=self.wanted,
            app=self.app,
            not_before={key: self._restarts.not_before(key) for key in self._generations},
            stop_by=stop_by,
            unrescued=sum(seat.role is Role.DEAD and not seat.rescued for seat in view.seats),
            suspects=view.suspects,
            judging=judging,
        )

    def _mend(self, view: BoardView, now: float) -> bool:
        """Seats that do not show any more whose they are: something else wrote there."""
        unknown = [s for s in self._seated.values() if view.seats[s.place].role is None]
        for seated in unknown:
            seat = self._board.seat(seated.place)
            seat.say_whose(seated.seating, seated.number, seated.generation, int(now * NS))
        return bool(unknown)

    def _shown(self, seated: Seated, seat: SeatView, now: float) -> Process:
        if seat.ready is not None and not seated.was_ready:
            seated.was_ready = True
            self._reported.discard(_CANNOT_START)
        if seat.ready is not None and seated.role is Role.WORKER:
            self._proven = max(self._proven, seated.app)
        seated.weigh(self._board, self._settings, now)
        return seated.shown(seat, now)

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
        workers = [s for s in self._seated.values() if s.role is Role.WORKER and s.stays]
        return any(self._board.seat_view(s.place).ready is not None for s in workers)

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
        if any(seat.role in (Role.ALONE, Role.LEAVING, Role.DEAD) for seat in view.seats):
            return False
        workers = view.with_role(Role.WORKER)
        parked = [seat.parked for seat in workers if seat.ready is not None]
        return (
            len(parked) >= self.wanted
            and all(at is not None and at / NS < since for at in parked)
            and (view.armed > 0 or not self._settings.listen)
            and not view.suspects
            and not any(seat.keys for seat in workers)
        )

    def report(self) -> None:
        """The board into the log, and everybody's stacks as soon as they are written."""
        for seated in self._seated.values():
            self._asked[seated.place] = self._stacks.read(seated.place)
            seated.child.send(signal.SIGUSR2)
        self._tells_at = time.monotonic() + DUMP_SECONDS
        logger.info(
            "the board: %s", json.dumps(self._board.snapshot().to_dict(time.monotonic_ns()))
        )

    def _tell_stacks(self) -> None:
        for place, before in self._asked.items():
            if (seated := self._seated.get(place)) is not None:
                stack = self._stacks.read(place).removeprefix(before)
                logger.info(
                    "the stacks of %s, pid %s:\n%s", seated, seated.child.pid, stack.strip()
                )
        self._asked.clear()

    @property
    def pids(self) -> list[int]:
        return [seated.child.pid for seated in self._seated.values()]

    @property
    def descriptors(self) -> list[int]:
        """Each is readable when its child has died."""
        return [seated.child.descriptor for seated in self._seated.values()]

    def close(self) -> None:
        self._wake.close()
        self._call.close()

    # Act.

    def act(self, action: Action, now: float) -> None:
        match action:
            case Start():
                self._start(action, now)
            case Leave():
                self._leave(action, now)
            case Dump():
                self._dump(self._seated[action.process.place], now)
            case Kill():
                self._kill(action, now)
            case _:
                assert_never(action)

    def _start(self, action: Start, now: float) -> None:
        place = self._free_place(action.role)
        if place is None:
            return  # All wait for what their dead held to be handed back.
        key = action.role, action.number
        generation = self._generations.get(key, 0) + 1
        at = int(now * NS)
        self._stacks.look()
        seat = self._board.seat(place)
        seat.assign(action.role, number=action.number, generation=generation, now=at)
        reach(BEFORE_FORK)
        try:
            child = fork(
                lambda: self._main(action.role, place, generation),
                close=[*self.private, *self.descriptors],
            )
        except OSError as error:
            seat.clear(at)
            pause = self._restarts.not_started(key, now, random.random())
            self._generations.setdefault(key, 0)
            logger.error("no process can be started (%s): again in %.0f s", error.strerror, pause)
            return
        reach(AFTER_FORK)
        self._generations[key] = generation
        reason = action.reason or self._reasons.pop(key, None)
        if reason is not None:
            self._board.count_restart(reason)
        self._seated[place] = seated = Seated(
            child=child,
            place=place,
            role=action.role,
            number=action.number,
            generation=generation,
            app=self.app,
            born=now,
            spread=random.uniform(0, _SPREAD),
            executed_before=self._board.executed(place),
        )
        why = f": {reason.name.lower()}" if reason is not None else ""
        why += f", as the process before it is used up: {action.why}" if action.why else ""
        logger.info("%s starts, pid %s, generation %s%s", seated, child.pid, generation, why)

    def _main(self, role: Role, place: int, generation: int) -> int:
        """In the child. Only here is loaded what talks to the database, or is the user's."""
        from cmdbus.board.node import Node
        from cmdbus.worker.boot import process

        forget()
        if self.http is not None and role is not Role.STEWARD:
            self.http.close()
        node = Node(
            board=self._board,
            seat=self._board.seat(place),
            generation=generation,
            parent=os.getppid(),
            wake=self._wake,
            call=self._call,
            http=self.http,
            alone=role is Role.ALONE,
        )
        stacks = self._stacks.file(place)
        if role is Role.STEWARD:
            return process.run_steward(self._settings, node, stacks, signals.unblock)
        return process.run(self._settings, node, stacks, signals.unblock)

    def _leave(self, action: Leave, now: float) -> None:
        seated = self._seated[action.process.place]
        if seated.leave_by is None:
            seated.leave_verdict = action.verdict
            seated.burnt, seated.burnt_at = guilt.burnt(seated.child.pid), now
        seated.leave_by = action.by
        if action.reason is not None:
            self._reasons[seated.role, seated.number] = action.reason
            why = _why(action, self._board.seat_view(seated.place))
            planned = action.reason in (Restart.RELOADED, Restart.RECYCLED)
            level = logging.INFO if planned else logging.WARNING
            logger.log(level, "%s is told to leave: %s", seated, why)
        seat = self._board.seat(seated.place)
        at, by = int(now * NS), int(action.by * NS)
        seat.order_to_leave(
            seated.number, seated.generation, by=by, now=at, verdict=seated.leave_verdict
        )
        if action.verdict is Verdict.STUCK:
            seated.child.send(signal.SIGUSR2)  # its stacks, also while the GIL is held
        seated.child.send(signal.SIGTERM)

    def _dump(self, seated: Seated, now: float) -> None:
        logger.warning("%s is late: asking for its stacks", seated)
        seated.dumped_at = seated.burnt_at = now
        seated.burnt = guilt.burnt(seated.child.pid)
        seated.child.send(signal.SIGUSR2)

    def _kill(self, action: Kill, now: float) -> None:
        """Compares before: whoever has moved on since it was judged is let live."""
        seated = self._seated[action.process.place]
        view = self._board.seat_view(seated.place)
        if action.verdict is Verdict.HUNG and self._is_back(view, now):
            seated.dumped_at = None
            logger.warning("%s has come back in time", seated)
            return
        self._attribute(seated, action, view, now)
        seated.verdict = action.verdict
        if guilt.is_stopped(seated.child.pid):
            seated.verdict = Verdict.STOPPED
        seated.killed_at = now
        if action.verdict is Verdict.HUNG:
            self._reasons[seated.role, seated.number] = Restart.HUNG
        logger.error("%s is killed: %s%s", seated, _SENTENCES[seated.verdict], _running(view.slots))
        if stack := self._stacks.last(seated.place):
            logger.error("the stacks of %s:\n%s", seated, stack)
        seated.child.send(signal.SIGKILL)

    def _is_back(self, view: SeatView, now: float) -> bool:
        due, watchdog = view.due, self._settings.timeouts.watchdog
        return due is not None and is_ahead(due / NS, watchdog, now)

    def _attribute(self, seated: Seated, action: Kill, view: SeatView, now: float) -> None:
        """Finds the slot that the process is killed for, if it can be known."""
        if seated.role is Role.STEWARD:
            return
        running = {slot.place: slot.thread for slot in view.slots if slot.command and slot.thread}
        burnt = guilt.burnt(seated.child.pid)
        holder = guilt.guilty(seated.burnt, burnt, now - seated.burnt_at, running)
        if action.verdict is Verdict.HUNG:
            seated.guilty = next((slot for slot in view.slots if slot.place == holder), None)
        elif action.verdict is not Verdict.CRITICAL and action.judging:
            seated.guilty = guilt.stuck(view.slots, holder, int(now * NS))

    # Bury.

    def _give_up(self, seated: Seated, now: float, stopping: bool) -> None:
        """Where it waits no signal reaches it, and whatever it returns to, it dies at once: so
        all that it held is handed back as if it were dead."""
        if seated.undead:
            return
        seated.undead = True
        if stopping and is_busy(self._board.seat_view(seated.place)):
            self.unfinished = True
        self._put_to_rest(seated, Death(signal.SIGKILL, 0), False, now)
        self._call.put()
        self._count_undead()
        logger.error(
            "%s, pid %s, does not die, as if in disk wait: it is given up, and what it held is "
            "handed back",
            seated,
            seated.child.pid,
        )

    def _count_undead(self) -> None:
        self._board.set_undead(sum(seated.undead for seated in self._seated.values()))

    def _bury(
        self, seated: Seated, death: Death, view: SeatView, now: float, stopping: bool
    ) -> None:
        del self._seated[seated.place]
        if seated.undead:
            self._count_undead()
            logger.info("%s, pid %s, which was given up, is dead", seated, seated.child.pid)
            return
        key = seated.role, seated.number
        ordered = seated.leave_by is not None or seated.killed_at is not None
        left = death.signal == 0 and is_expected(seated.role, view, death.code, ordered=ordered)
        if stopping and (death.code == Exit.UNFINISHED if left else is_busy(view)):
            self.unfinished = True
        # Of a process that was ready, these codes are a handler's.
        boot_code = death.code if death.signal == 0 and view.ready is None else None
        no_room = not ordered and boot_code == Exit.NO_ROOM
        if left and seated.leave_verdict is Verdict.STUCK:
            seated.guilty = guilt.stuck(view.slots, None, int(now * NS))
        self._put_to_rest(seated, death, left, now)
        self._call.put()
        if no_room:
            pause = self._restarts.not_started(key, now, random.random())
            what = "the system has no room for its threads"
            logger.error("%s, pid %s: %s: again in %.0f s", seated, seated.child.pid, what, pause)
            return
        if left:
            logger.info("%s has left, pid %s", seated, seated.child.pid)
            return
        ordered = ordered or left
        if not ordered:
            self._report_death(seated, death, view)
        if boot_code == Exit.CANNOT_START:
            self._could_not_boot(seated)
        if not ordered and self._died_early(seated, view, now):
            pause = self._restarts.died_early(key, now, random.random())
            if pause:
                logger.warning("%s died early again: the next in %.1f s", seated, pause)

    def _report_death(self, seated: Seated, death: Death, view: SeatView) -> None:
        """Of a process that exited without an order."""
        key = seated.role, seated.number
        if death == Death(0, Exit.TERMINATED):
            self._reasons[key] = Restart.TERMINATED
            logger.warning(
                "%s, pid %s, was stopped by a SIGTERM that the supervisor did not send",
                seated,
                seated.child.pid,
            )
            return
        self._reasons[key] = Restart.CRASHED
        running = _running(view.slots, timed_out=False)
        logger.error(
            "%s, pid %s, %s%s%s", seated, seated.child.pid, death, running, _perhaps(death)
        )
        if death.signal in _TELLS_STACKS and (stack := self._stacks.last(seated.place)):
            logger.error("the stacks of %s:\n%s", seated, stack)

    def _put_to_rest(self, seated: Seated, death: Death, left: bool, now: float) -> None:
        seat, at = self._board.seat(seated.place), int(now * NS)
        if seated.role is Role.STEWARD:
            # Its cells; leaders must not trust a dead listener.
            self._board.set_listening(False)
            self._board.set_armed(0)
        if (left and death.code == Exit.DONE) or seated.role is Role.STEWARD:
            seat.clear(at)
            return
        guilty = seated.guilty
        command = guilty.command if guilty else None
        ended = Ended(
            generation=seated.generation,
            pid=seated.child.pid,
            signal=death.signal,
            code=death.code,
            verdict=_verdict(seated, left),
            slot=guilty.place if guilty else -1,
            token=command.token if command else 0,
            command_id=command.command_id if command else NO_COMMAND,
            alone=seated.role is Role.ALONE,
        )
        seat.bury(seated.number, ended, now=at)

    def _could_not_boot(self, seated: Seated) -> None:
        """Whoever already runs goes on: a broken new application keeps the old fleet."""
        others = [s for s in self._seated.values() if s.role is Role.WORKER and s.app < seated.app]
        if others:
            self.app = max(other.app for other in others)
            logger.error("the new application cannot start: the fleet keeps the old one")
        elif self._has_ready_worker():
            self._report(_CANNOT_START)
        elif seated.app > self._proven and not any(
            s.role is Role.WORKER for s in self._seated.values() if s.app == seated.app
        ):
            self.cannot_boot = True

    def _died_early(self, seated: Seated, view: SeatView, now: float) -> bool:
        settled = self._board.executed(seated.place) > seated.executed_before
        return died_early(seated.role, view, lived=now - seated.born, settled=settled)

    def _clear(self, view: BoardView, now: float) -> None:
        for seat in view.seats:
            if seat.role is Role.DEAD and seat.rescued:
                self._board.seat(seat.place).clear(int(now * NS))

    def _free_place(self, role: Role) -> int | None:
        """Without a steward the last one is kept for it: places of the dead are free only after
        it has handed back what they held."""
        seats = self._board.snapshot(keys=False).seats
        places = [
            seat.place
            for seat in seats
            if seat.place not in self._seated and seat.role in (Role.SPARE, None)
        ]
        stewards = [s for s in self._seated.values() if s.role is Role.STEWARD and not s.undead]
        kept = 0 if role is Role.STEWARD or stewards else 1
        return places[0] if len(places) > kept else None


#: Signals at which a process writes its stacks before it dies.
_TELLS_STACKS = (
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


def _verdict(seated: Seated, left: bool) -> Verdict:
    """For the release of its claims. Of a process that stopped in time: why it had to."""
    if not left:
        return seated.verdict
    return Verdict.LATE if seated.leave_verdict is Verdict.NONE else seated.leave_verdict


def _why(action: Leave, view: SeatView) -> str:
    levels, late = action.process.levels, action.process.latest_slot
    if action.reason is Restart.STUCK and levels.health is not Health.CRITICAL and late is not None:
        stuck = [slot for slot in view.slots if slot.place == late]
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


def _perhaps(death: Death) -> str:
    """Who did what we have not."""
    if death.signal != signal.SIGKILL:
        return ""
    return "; by somebody else, or by the kernel, perhaps out of memory (OOM)"
