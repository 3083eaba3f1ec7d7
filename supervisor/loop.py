"""The supervisor: its start, and its loop: reap -> observe -> decide -> act -> wait.

The supervising process loads no database driver, runs no user code, starts no thread and
holds no lock: so it may fork at any moment, and nothing can hang it. What needs any of that
is done in a child, and the loop never waits for one.
"""

import errno
import logging
import os
import shutil
import signal
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path

from cmdbus.board.board import Board
from cmdbus.board.records import Role, SupervisorState
from cmdbus.clock import time
from cmdbus.counting import count_of
from cmdbus.errors import BoardError, CmdbusError
from cmdbus.exits import Exit
from cmdbus.logs import set_up
from cmdbus.readiness import (
    BREAKERS,
    DECLARED,
    LIMITS,
    SCHEDULES,
    TAGS,
    Check,
    Finding,
    sentences,
)
from cmdbus.settings import Settings
from cmdbus.supervisor.children import reap_orphans, wait
from cmdbus.supervisor.fleet import Fleet
from cmdbus.supervisor.fleet_view import FleetView, is_drained
from cmdbus.supervisor.host import Pidfile, check_free, listen, pidfile_path
from cmdbus.supervisor.imports import preload
from cmdbus.supervisor.policy import decide
from cmdbus.supervisor.preflight_process import PreflightProcess
from cmdbus.supervisor.processes import Spawner
from cmdbus.supervisor.runtime import board_path, find_runtime_directory, make_runtime_directory
from cmdbus.supervisor.signals import SAME_ORDER_SECONDS, Signals
from cmdbus.supervisor.source_watch import watch_sources
from cmdbus.supervisor.stacks import Stacks
from cmdbus.supervisor.startup import StartupProbes, make_board, pass_preflight, with_database
from cmdbus.supervisor.systemd_notifier import SystemdNotifier
from cmdbus.timeouts import RESCUE_SECONDS

logger = logging.getLogger(__name__)

#: Seconds to make and start an embedded server.
_EMBEDDED_SECONDS = 180.0
#: Seconds between two rounds at most.
_ROUND_SECONDS = 0.1
#: Seconds by which a round must be late to count as a stall of the supervisor itself.
_LATE_SECONDS = 1.0
#: Seconds without hang detection after a stall: the processes may have stalled, too.
_GRACE_SECONDS = 5.0
#: Seconds until the supervisor's own deadline on the board; readers call it late after that.
_DUE_SECONDS = 5.0
#: Seconds that all workers must have been idle to count as drained.
_DRAINED_SECONDS = 1.0
#: Seconds between checks that the pidfile is there and not old.
_KEEP_SECONDS = 5.0
#: Seconds that a stop may take beyond its deadline.
_EXITS_SECONDS = 5.0

#: How the exit codes of a supervisor that has run are logged.
_ENDS = {
    Exit.DONE: "all drained",
    Exit.CANNOT_START: "no worker can start",
    Exit.CRASH_LOOP: "a crash loop",
    Exit.UNFINISHED: "commands may be left without an outcome: those run again",
}


def supervise(settings: Settings) -> Exit:
    """Runs the fleet until it stops; the exit code says how that went."""
    set_up(settings.log_format, settings.log_level)
    with ExitStack() as stack:
        try:
            preload()
            signals = stack.enter_context(closing(Signals()))
            directory = make_runtime_directory(find_runtime_directory(settings.runtime_dir))
            pidfile = Pidfile(pidfile_path(directory, settings.name), settings.name)
            stack.callback(pidfile.close)
            path = board_path(directory, settings.name)
            stacks = directory / f"{settings.name}.stacks"
            check_free(path, settings.name)
            http = stack.enter_context(listen(*settings.http)) if settings.http else None
            probes = StartupProbes(settings, http, [pidfile.descriptor, *signals.descriptors])
            stack.enter_context(closing(probes))
            probes.expect(_EMBEDDED_SECONDS, away=False)
            settings = stack.enter_context(with_database(settings, signals))
            private = [pidfile.descriptor, *signals.descriptors]
            sockets = [http.fileno()] if http is not None else []
            types = pass_preflight(settings, signals, probes, close=[*private, *sockets])
            probes.close()
            board = make_board(settings, path, stacks, types)
            pidfile.hold_board(path)
            private = [*pidfile.descriptors, *signals.descriptors]
            spawner = Spawner(settings, board, Stacks(stacks), private=private, http=http)
            fleet = Fleet(settings, board, stack.enter_context(closing(spawner)))
            code = Supervisor(settings, board, fleet, signals, pidfile).run()
        except CmdbusError as error:
            logger.error("%s", error)
            return Exit.CANNOT_START
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            logger.error("%s: raise the limit (ulimit -n, LimitNOFILE=)", error.strerror)
            return Exit.CANNOT_START
        if code is Exit.DONE:
            _remove_files(path, stacks)
        return code


def _remove_files(board: Path, stacks: Path) -> None:
    """Their directory may be gone, or read-only by now."""
    with suppress(OSError):
        board.unlink()
    with suppress(OSError):
        if stacks.is_dir():  # A pipe in its place would make us wait for a writer.
            shutil.rmtree(stacks, ignore_errors=True)


class Supervisor:
    def __init__(
        self, settings: Settings, board: Board, fleet: Fleet, signals: Signals, pidfile: Pidfile
    ) -> None:
        self._settings = settings
        self._board = board
        self._fleet = fleet
        self._signals = signals
        self._pidfile = pidfile
        self._notifier = SystemdNotifier()
        self._kept_at = 0.0
        #: Why the pidfile could not be kept; logged once.
        self._not_kept = ""
        #: The preflight of the new application, during a reload.
        self._preflight: PreflightProcess | None = None
        #: Only with --reload.
        self._watch = watch_sources(settings, close=fleet.descriptors)
        self._since = time.monotonic()
        self._stop_by: float | None = None
        #: When the first TERM or INT was received.
        self._ordered_at: float | None = None
        self._code = Exit.DONE
        self._observed_at = self._since
        self._hang_detection_from = 0.0
        #: The application that the whole fleet has run at some time.
        self._ready_app = -1

    def run(self) -> Exit:
        logger.info("the supervisor %s starts, pid %s", self._settings.name, os.getpid())
        while True:
            now = time.monotonic()
            self._handle_signals()
            self._end_preflight()
            if self._watch and self._watch.has_changed():
                self._close_preflight()  # Of what the application was before: it may hang.
                self._reload()
            self._fleet.reap(now)
            if self._stop_by is None:
                self._check_end(now)
            fleet = self._observe(now)
            actions = decide(fleet, self._settings, now)
            is_over = self._stop_by is not None and not actions
            if is_over and not any(p.is_alive(now) for p in fleet.processes):
                break  # A process in disk wait cannot die: it is left to process 1.
            for action in actions:
                self._fleet.act(action, now)
            self._publish_status(fleet, now)
            self._keep_name(now)
            # The descriptor of one that a debugger holds stays readable, and would end each wait.
            exits = [child.descriptor for child in self._fleet.children if not child.held]
            wait([self._signals.descriptor, *exits], _ROUND_SECONDS)
        self._show(SupervisorState.STOPPED, time.monotonic())
        if fleet.unrescued:
            text = "what %s had claimed is not released: the next supervisor of this name does that"
            logger.warning(text, count_of(fleet.unrescued, "dead process", "es"))
        if self._code is Exit.DONE and (self._fleet.unfinished or fleet.unrescued):
            self._code = Exit.UNFINISHED
        logger.info("the supervisor %s has stopped: %s", self._settings.name, _ENDS[self._code])
        return self._code

    def _handle_signals(self) -> None:
        for number, received in self._signals.read().items():
            match number:
                case signal.SIGTERM | signal.SIGINT:
                    if self._ordered_at is None:
                        self._ordered_at = received
                        self._stop(self._settings.drain_timeout, number.name)
                    elif received >= self._ordered_at + SAME_ORDER_SECONDS:
                        self._stop(0.0, number.name)
                case signal.SIGQUIT:
                    self._stop(0.0, number.name)
                case signal.SIGHUP:
                    self._reload()
                case signal.SIGTTIN:
                    self._fleet.change_wanted(+1)
                case signal.SIGTTOU:
                    self._fleet.change_wanted(-1)
                case signal.SIGUSR1:
                    self._fleet.report()
                case _:
                    pass  # SIGCHLD: each round reaps exited children in any case.
        others = [each.child for each in (self._preflight, self._watch) if each is not None]
        reap_orphans(child.pid for child in [*self._fleet.children, *others])

    def _observe(self, now: float) -> FleetView:
        # This covers a whole round, so it does not matter where the supervisor stalled.
        late = now - self._observed_at - _ROUND_SECONDS
        self._observed_at = now
        if late > _LATE_SECONDS:
            self._hang_detection_from = now + _GRACE_SECONDS
            logger.warning(
                "the supervisor stalled for %.1f s: pausing hang detection for %g s",
                late,
                _GRACE_SECONDS,
            )
        fleet = self._fleet.observe()
        detects_hangs = now >= self._hang_detection_from
        return replace(fleet, stop_by=self._stop_by, detects_hangs=detects_hangs)

    def _check_end(self, now: float) -> None:
        if code := self._fleet.failure(now):
            logger.error("%s: giving up", _ENDS[code])
            self._code = code
            self._stop(self._settings.drain_timeout, _ENDS[code])
        elif self._settings.drain and self._is_drained(now):
            self._stop(self._settings.drain_timeout, "everything is done")

    def _is_drained(self, now: float) -> bool:
        seconds, listens = _DRAINED_SECONDS, self._settings.listen
        if not listens:
            # A polling worker starts over at each poll: at a quarter of the interval all of them
            # are idle that long at the same time.
            seconds = min(seconds, self._settings.poll_interval / 4)
        board = self._board.snapshot()
        return is_drained(board, now - seconds, wanted=self._fleet.wanted, listens=listens)

    def _stop(self, seconds: float, why: str) -> None:
        by = time.monotonic() + seconds
        # An order that is repeated again and again puts nothing off.
        self._stop_by = by if self._stop_by is None else min(by, self._stop_by)
        self._fleet.stopping = True
        self._notifier.stopping(seconds + RESCUE_SECONDS + _EXITS_SECONDS)
        logger.info("stopping within %g s (%s)", seconds, why)
        self._close_preflight()
        if self._watch is not None:
            self._watch.close()

    def _reload(self) -> None:
        """Checks the application first: a broken one leaves the fleet as it is."""
        if self._stop_by is not None or self._preflight is not None:
            return
        try:
            self._preflight = PreflightProcess(
                self._settings, declares=True, close=self._fleet.descriptors
            )
        except OSError as error:
            logger.error("not reloaded, cannot start a process: %s", error.strerror)
            return
        logger.info("reloading: checking the application")
        self._notifier.reloading()

    def _end_preflight(self) -> None:
        if self._preflight is None or (checks := self._preflight.checks()) is None:
            return
        self._close_preflight()
        why = sentences(checks, Finding.FATAL)
        if not any(check.name == "app" and check.finding is Finding.OK for check in checks):
            # The new application is not known to work; what else is away does not matter here.
            why = why or sentences(checks, Finding.AWAY)
        if why:
            logger.error("not reloaded, the fleet goes on as it is: %s", why)
            return
        self._log_declarations(checks)
        logger.info("reloading: all processes are replaced, one after another")
        self._fleet.reload()

    def _log_declarations(self, checks: Sequence[Check]) -> None:
        kinds = LIMITS, BREAKERS, SCHEDULES, TAGS
        for check in checks:
            if check.name in kinds and check.finding is Finding.WARNING:
                logger.warning("%s", check)
        names = [check.name for check in checks]
        declared = [name for name in kinds if name in names]
        if declared and DECLARED not in names:
            logger.warning(
                "the %s of the app are not declared: %s; reload again later",
                " and ".join(declared),
                sentences(checks, Finding.AWAY),
            )

    def _close_preflight(self) -> None:
        if self._preflight is not None:
            self._preflight.close()
            self._preflight = None

    def _publish_status(self, fleet: FleetView, now: float) -> None:
        """The log, the board and the service manager."""
        workers = [p for p in fleet.processes if p.is_staying and p.role is Role.WORKER]
        ready = sum(p.ready for p in workers)
        whole = ready >= fleet.wanted and all(p.app == fleet.app for p in workers)
        if self._ready_app < fleet.app and whole and self._stop_by is None:
            self._ready_app = fleet.app
            logger.info("the fleet is ready: %s", count_of(fleet.wanted, "process", "es"))
            self._notifier.ready()
        elif self._keeps_old_app(fleet):
            self._notifier.ready()
        self._notifier.status(f"{ready} of {count_of(fleet.wanted, 'process', 'es')} ready")
        self._notifier.ping(now)
        state = SupervisorState.STARTING if self._ready_app < 0 else SupervisorState.RUNNING
        if self._stop_by is not None:
            gave_up = self._code is not Exit.DONE
            state = SupervisorState.GIVING_UP if gave_up else SupervisorState.STOPPING
        self._show(state, now)

    def _keeps_old_app(self, fleet: FleetView) -> bool:
        """After a reload, as the new one fails in the preflight or in a process that starts."""
        checked = self._preflight is None and self._stop_by is None
        return self._notifier.is_reloading and checked and fleet.app <= self._ready_app

    def _show(self, state: SupervisorState, now: float) -> None:
        self._board.supervise(
            pid=os.getpid(),
            state=state,
            since=int(self._since * 1e9),
            due=int((now + _DUE_SECONDS) * 1e9),
            wanted=self._fleet.wanted,
        )

    def _keep_name(self, now: float) -> None:
        if now < self._kept_at + _KEEP_SECONDS:
            return
        self._kept_at, why = now, ""
        try:
            self._pidfile.keep()
        except (BoardError, OSError) as error:
            why = str(error)
            if why != self._not_kept:
                logger.error("cannot hold the name of this supervisor: %s", why)
        self._not_kept = why
