"""The supervisor: one thread, and a loop of look -> decide -> act -> wait.

It loads no database driver, runs no user code, holds no lock and never waits for one of its
processes: so it may fork at any moment, and nothing can hang it.
"""

import json
import logging
import os
import signal
import time
from pathlib import Path

from cmdbus.board import Board
from cmdbus.errors import CmdbusError
from cmdbus.exits import Exit
from cmdbus.logs import set_up
from cmdbus.runtime import board_path, find_runtime_directory, make_runtime_directory
from cmdbus.seats import Role
from cmdbus.settings import Settings
from cmdbus.supervisor.children import fork, reap_strangers, wait
from cmdbus.supervisor.fleet import Company
from cmdbus.supervisor.pidfile import Pidfile
from cmdbus.supervisor.policy import Fleet, Limits, decide, next_look
from cmdbus.supervisor.signals import Signals, unblock
from cmdbus.views import SupervisorState

logger = logging.getLogger(__name__)

#: It looks at least so often, and does not judge after it was late by so much.
_LOOK_SECONDS = 0.1
_LATE_SECONDS = 1.0
#: After that it lets everybody beat again first.
_GRACE_SECONDS = 5.0
#: With --drain: everybody has waited for so long, and there was nothing.
_DRAINED_SECONDS = 1.0
#: Places of a seat beside the threads': for successors of stuck ones, and for relief.
_SPARE_SLOTS = 10
_KINDS = 64


def supervise(settings: Settings) -> Exit:
    """Runs the fleet until it is told to stop; the exit code says how that went."""
    set_up(settings.log_format, settings.log_level)
    try:
        directory = make_runtime_directory(find_runtime_directory(settings.runtime_dir))
        pidfile = Pidfile(directory / f"{settings.name}.pid", settings.name)
    except CmdbusError as error:
        logger.error("%s", error)
        return Exit.CANNOT_START
    noted = Signals()
    try:
        return _run(settings, directory, pidfile, noted)
    except CmdbusError as error:
        logger.error("%s", error)
        return Exit.CANNOT_START
    finally:
        noted.close()
        pidfile.close()


def _run(settings: Settings, directory: Path, pidfile: Pidfile, noted: Signals) -> Exit:
    types = learn_types(settings)
    path = board_path(directory, settings.name)
    keep_aside(path)
    board = Board.create(
        path,
        seats=3 * settings.procs + 8,
        slots=settings.threads + _SPARE_SLOTS,
        kinds=min(_KINDS, len(types) + 2),
        name=settings.name,
    )
    stacks = directory / f"{settings.name}.stacks"
    stacks.mkdir(mode=0o700, exist_ok=True)
    company = Company(settings, board, stacks)
    company.private = [pidfile.descriptor, *noted.descriptors]
    code = Supervisor(settings, board, company, noted).run()
    if code is Exit.DONE:
        path.unlink(missing_ok=True)
        for file in stacks.iterdir():
            file.unlink()
        stacks.rmdir()
    return code


class Supervisor:
    def __init__(self, settings: Settings, board: Board, company: Company, noted: Signals) -> None:
        self._settings = settings
        self._board = board
        self._company = company
        self._noted = noted
        self._limits = Limits(
            thread=settings.timeouts.thread,
            watchdog=settings.timeouts.watchdog,
            drain=settings.drain_timeout,
            max_commands=settings.max_commands,
            max_rss_bytes=settings.max_rss_bytes,
            max_age=settings.max_age,
        )
        self._since = time.monotonic()
        self._stop_by: float | None = None
        self._code = Exit.DONE
        self._wakes_at = float("inf")
        self._judges_from = 0.0
        self._ready_said = False

    def run(self) -> Exit:
        logger.info("the supervisor %s starts, pid %s", self._settings.name, os.getpid())
        while True:
            now = time.monotonic()
            self._heed()
            fleet = self._look(now)
            if self._stop_by is not None and not fleet.processes:
                break
            for action in decide(fleet, self._limits, now):
                self._company.act(action, now)
            self._tell(fleet, now)
            self._wait(next_look(fleet, self._limits, now))
        self._show(SupervisorState.STOPPED, time.monotonic())
        if self._code is Exit.DONE and self._company.unfinished:
            self._code = Exit.UNFINISHED
        logger.info("the supervisor %s has stopped: %s", self._settings.name, self._code.name)
        return self._code

    def _heed(self) -> None:
        for number in self._noted.read():
            match number:
                case signal.SIGTERM | signal.SIGINT:
                    again = self._stop_by is not None
                    self._stop(0.0 if again else self._settings.drain_timeout, number.name)
                case signal.SIGQUIT:
                    self._stop(0.0, number.name)
                case signal.SIGHUP:
                    self._reload()
                case signal.SIGTTIN:
                    self._change_wanted(+1)
                case signal.SIGTTOU:
                    self._change_wanted(-1)
                case signal.SIGUSR1:
                    self._company.report()
                case _:
                    reap_strangers(self._company.pids)

    def _look(self, now: float) -> Fleet:
        if now - self._wakes_at > _LATE_SECONDS:
            self._judges_from = now + _GRACE_SECONDS
            logger.warning(
                "the supervisor itself was late by %.1f s: it judges nobody for a while",
                now - self._wakes_at,
            )
        judging = now >= self._judges_from
        fleet = self._company.look(now, judging=judging, stop_by=self._stop_by)
        if self._stop_by is None:
            self._end_of_itself(fleet, now)
        return self._company.look(now, judging=judging, stop_by=self._stop_by)

    def _end_of_itself(self, fleet: Fleet, now: float) -> None:
        if self._company.cannot_boot:
            logger.error("a process cannot start, and a restart would not help: stopping")
            self._give_up(Exit.CANNOT_START)
        elif self._company.too_many_early_deaths(now):
            logger.error("processes die as soon as they start, too many of them: giving up")
            self._give_up(Exit.CRASH_LOOP)
        elif self._settings.drain and self._company.is_drained(now - _DRAINED_SECONDS):
            self._stop(self._settings.drain_timeout, "everything is done")

    def _give_up(self, code: Exit) -> None:
        self._code = code
        self._stop(self._settings.drain_timeout, code.name)

    def _stop(self, seconds: float, why: str) -> None:
        self._stop_by = time.monotonic() + seconds
        logger.info("stopping within %g s (%s)", seconds, why)

    def _reload(self) -> None:
        """New processes import the application anew; one after another takes a number over."""
        if self._stop_by is not None:
            return
        logger.info("reloading: all processes are replaced, one after another")
        self._company.app += 1

    def _change_wanted(self, by: int) -> None:
        self._company.change_wanted(by)

    def _tell(self, fleet: Fleet, now: float) -> None:
        workers = [p for p in fleet.processes if p.stays and p.role is Role.WORKER]
        starting = not self._ready_said
        if starting and sum(p.ready for p in workers) >= fleet.wanted:
            self._ready_said = True
            logger.info("the fleet is ready: %s processes", fleet.wanted)
        state = SupervisorState.STARTING if starting else SupervisorState.RUNNING
        self._show(state if self._stop_by is None else SupervisorState.STOPPING, now)

    def _show(self, state: SupervisorState, now: float) -> None:
        self._board.supervise(
            pid=os.getpid(),
            state=state,
            since=int(self._since * 1e9),
            due=int((now + self._settings.timeouts.watchdog) * 1e9),
            wanted=self._company.wanted,
        )

    def _wait(self, until: float) -> None:
        now = time.monotonic()
        seconds = max(0.0, min(_LOOK_SECONDS, until - now))
        self._wakes_at = now + seconds
        wait([self._noted.descriptor, *self._company.descriptors], seconds)


def keep_aside(path: Path) -> None:
    """A board that a dead supervisor left says what its processes held: for the steward."""
    if path.exists():
        path.rename(path.with_name(f"{path.name}.{time.time_ns()}"))


def learn_types(settings: Settings) -> list[str]:
    """What the app handles, told by a child: the user's code is not for this process."""
    reader, writer = os.pipe()

    def tell() -> int:
        from cmdbus.worker.app import load

        unblock()
        try:
            registry = load(settings.app)
        except CmdbusError as error:
            logger.error("%s", error)
            return Exit.CANNOT_START
        types = [
            f"{handler.domain} {handler.type}"
            for handler in registry
            if not settings.domains or handler.domain in settings.domains
        ]
        os.write(writer, json.dumps(types).encode())
        return Exit.DONE

    child = fork(tell, close=[reader])
    os.close(writer)
    with os.fdopen(reader) as told:
        text = told.read()
    while (death := child.reap()) is None:
        wait([child.descriptor], 1.0)
    if death.signal or death.code or not text:
        raise CmdbusError(f"the application could not be examined: its process {death}")
    return [str(name) for name in json.loads(text)]
