"""The demo as a program: the parent of an ordinary supervisor. It sends the supervisor's fleet a
first set of commands and reports on stdout what becomes of them.

It passes signals on and exits with the supervisor's code. It is not for a service: systemd accepts
notifications from the main process alone, and that is the demo; a service names an app.
"""

import logging
import os
import signal
import sys
from contextlib import closing, suppress
from pathlib import Path
from types import FrameType

import psycopg

from cmdbus.board.board import Board
from cmdbus.board.records import SupervisorState
from cmdbus.board.views import BoardView
from cmdbus.clock import time
from cmdbus.database import dsn as dsns
from cmdbus.embedded import EmbeddedPostgres
from cmdbus.errors import BoardError, CmdbusError, EmbeddedError
from cmdbus.exits import Exit, ExitStatus
from cmdbus.logs import set_up
from cmdbus.producer.bus import CommandBus
from cmdbus.settings import Settings
from cmdbus.supervisor import signals
from cmdbus.supervisor.children import Child, fork, reap_orphans, wait
from cmdbus.supervisor.cli.configuration import configured
from cmdbus.supervisor.cli.supervise import DEMO_APP
from cmdbus.supervisor.cli.supervise import main as command
from cmdbus.supervisor.runtime import board_path, find_runtime_directory, make_runtime_directory
from cmdbus.timeouts import Timeouts
from cmdbus.worker.demo.page import DemoPage
from cmdbus.worker.demo.report import DemoReport, say, stop_text, summary

logger = logging.getLogger("cmdbus.worker.demo")

_SUPERVISOR = ["-P", "-m", "cmdbus.supervisor.cli.supervise"]
_OPTIONS = ["--app", DEMO_APP, "--embedded"]
#: Seconds, unless the user chooses some: so short that a user sees the end of a hang.
_TIMEOUTS = [
    *["--statement-timeout", "2", "--pool-timeout", "3", "--visibility-timeout", "3"],
    *["--thread-timeout", "4", "--watchdog-timeout", "10"],
]
_PASSED_ON = frozenset(signals.NOTED) - {signal.SIGCHLD}
#: Seconds between two looks at the supervisor.
_POLL_SECONDS = 0.1
_STDERR = 2
#: Added to the number of the signal that killed the supervisor, as in a shell.
_KILLED = 128
_ALIVE = (SupervisorState.STARTING, SupervisorState.RUNNING)


def main() -> None:
    arguments = [*_OPTIONS, *sys.argv[1:]]
    if _settings(arguments).timeouts == Timeouts():
        arguments = [*_TIMEOUTS, *arguments]
    settings = _settings(arguments)
    set_up(settings.log_format, settings.log_level)
    logger.info("neither --app nor --dsn is given: this is the demo, on an embedded PostgreSQL")
    try:
        sys.exit(Demo(settings, arguments).run())
    except CmdbusError as error:
        logger.error("%s", error)
        sys.exit(Exit.CANNOT_START)


def _settings(arguments: list[str]) -> Settings:
    with command.make_context("cmdbus-supervise", list(arguments)) as context:
        return configured(context)


class Demo:
    def __init__(self, settings: Settings, arguments: list[str]) -> None:
        self._settings = settings
        self._arguments = arguments
        self._directory = make_runtime_directory(find_runtime_directory(settings.runtime_dir))
        #: The supervisor's; None if the user has chosen how to log: it then goes to stderr.
        self._log: Path | None = None
        chosen = settings.log_level, settings.log_format
        if chosen == (Settings().log_level, Settings().log_format):
            self._log = self._directory / f"{settings.name}.{os.getpid()}.log"
        #: Signals to stop, passed on.
        self._stops: list[int] = []
        #: When the first of them came.
        self._stopped_at: float | None = None
        #: Under nohup it outlives its terminal.
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._ends_with_terminal = not ignored and signals.has_terminal()
        self._supervisor: Child | None = None
        #: None where no port is free.
        self._page: DemoPage | None = None
        self._exit_status: ExitStatus | None = None
        self._board: Board | None = None
        self._is_ready = False
        #: Seconds that the stop gives running commands; None before it begins.
        self._stop_seconds: float | None = None

    def run(self) -> int:
        """Returns the exit code."""
        for number in _PASSED_ON:
            signal.signal(number, self._pass_on)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.NOTED)
        with closing(EmbeddedPostgres()) as server:
            try:
                server.start()
            except EmbeddedError:
                if not self._stops:  # Ctrl-C reaches the server's programs, too.
                    raise
            if self._stops:
                logger.info("stopped by a signal before the fleet was started")
                return Exit.DONE
            with signals.blocked():
                self._supervisor = fork(self._supervise, close=(), orphaned=signal.SIGQUIT)
            while (state := self._observe()) is SupervisorState.STARTING:
                pass
            try:
                if state is SupervisorState.RUNNING:
                    self._start_page(server.dsn)
                    self._report(server.dsn)
                while self._exit_status is None:
                    self._observe()
            finally:
                if self._page is not None:
                    self._page.stop()
        return self._finish(self._exit_status)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP and self._ends_with_terminal and not signals.has_terminal():
            number = signal.SIGTERM
        if number in signals.STOPPING:
            number = self._note_stop(number)
        if self._supervisor is not None:
            with suppress(OSError):  # It was reaped.
                self._supervisor.send(signal.Signals(number))

    def _note_stop(self, number: int) -> int:
        """The signal that has the supervisor do the same."""
        now = time.monotonic()
        self._stopped_at = self._stopped_at or now
        if now >= self._stopped_at + signals.SAME_ORDER_SECONDS:
            number = signal.SIGQUIT
        self._stops.append(number)
        return number

    def _supervise(self) -> int:
        """In the child: the terminal does not signal its process group, and signals stay blocked
        until it handles them."""
        if self._log is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW
            os.dup2(os.open(self._log, flags, 0o600), _STDERR)
        os.execv(sys.executable, [sys.executable, *_SUPERVISOR, *self._arguments])

    def _observe(self) -> SupervisorState:
        """The supervisor's state after a moment. Reports a stop as soon as it begins."""
        assert self._supervisor is not None
        wait([self._supervisor.descriptor], _POLL_SECONDS)
        self._exit_status = self._supervisor.reap()
        if self._exit_status is not None:
            self._report_stop(None)
            return SupervisorState.STOPPED
        reap_orphans([self._supervisor.pid, *(self._page.pids if self._page else ())])
        if self._board is None:
            self._board = self._open_board(self._supervisor.pid)
        view = self._board.snapshot(claims=False) if self._board is not None else None
        self._report_stop(view)
        return (view and view.state) or SupervisorState.STARTING

    def _open_board(self, pid: int) -> Board | None:
        """Not the board of another supervisor of this name, dead or alive."""
        with suppress(BoardError):
            board = Board.open(board_path(self._directory, self._settings.name))
            if board.snapshot(claims=False).pid == pid:
                return board
            board.close()
        return None

    def _report_stop(self, view: BoardView | None) -> None:
        if signal.SIGQUIT in self._stops:
            seconds = 0.0
        elif self._stops or (view is not None and view.state not in _ALIVE):
            seconds = self._settings.drain_timeout
        else:
            return
        if seconds != self._stop_seconds:
            self._stop_seconds = seconds
            say("", stop_text(view, seconds))

    def _start_page(self, dsn: str) -> None:
        """Once the fleet is ready, whose start it does not delay."""
        try:
            self._page = DemoPage()
            self._page.start(dsn, self._settings, self._log)
        except OSError as error:
            logger.warning("the operators' page is not served: %s", error)

    def _report(self, dsn: str) -> None:
        """The fleet is ready, so the name of the log is this supervisor's as well."""
        self._is_ready = True
        if self._log is not None:
            with suppress(OSError):  # The directory may be gone.
                self._log = self._log.rename(self._directory / f"{self._settings.name}.log")
        page = self._page.address if self._page is not None else None
        try:
            with (
                dsns.connect(dsns.complete_producers(dsns.parse(dsn))) as connection,
                CommandBus(dsn, schema=self._settings.schema) as bus,
            ):
                DemoReport(self._settings, bus, connection, self._observe).print(self._log, page)
        except (CmdbusError, psycopg.Error) as error:
            logger.warning("the demo's report ends early: %s", error)

    def _finish(self, exit_status: ExitStatus) -> int:
        code = _KILLED + exit_status.signal if exit_status.signal else exit_status.code
        if self._log is not None and code and self._is_ready:
            # A stop that leaves commands is what the user has asked for.
            level = logging.INFO if code == Exit.UNFINISHED and self._stops else logging.ERROR
            text = "the demo's supervisor %s: its log is in %s"
            logger.log(level, text, exit_status, self._log)
        elif self._log is not None:
            with suppress(OSError):
                os.write(_STDERR, self._log.read_bytes() if code else b"")
                self._log.unlink()
        if self._board is not None or not code:
            say("", "The demo has stopped.", *summary(self._board))
        return code


if __name__ == "__main__":
    main()
