"""The steps from the settings of a supervisor to its board: database, preflight, board; and the
answers to probes meanwhile: a start may wait for its database for hours, live and not ready.

A child does what loads a database driver, runs user code or starts a thread.
"""

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from signal import SIGCHLD
from socket import socket
from typing import TYPE_CHECKING

from cmdbus.board.board import Board
from cmdbus.board.health import HealthReport
from cmdbus.board.records import Role, SupervisorState
from cmdbus.board.selected import Selected
from cmdbus.clock import time
from cmdbus.errors import BoardError, CmdbusError, EmbeddedError
from cmdbus.exits import Exit, ExitStatus
from cmdbus.readiness import Finding, sentences
from cmdbus.settings import Settings
from cmdbus.supervisor.children import Child, fork, wait
from cmdbus.supervisor.host import check_free
from cmdbus.supervisor.policy import seats_for
from cmdbus.supervisor.preflight_process import run_preflight
from cmdbus.supervisor.signals import STOPPING, Signals, unblock
from cmdbus.supervisor.systemd_notifier import clear_notify_env
from cmdbus.timeouts import BOOT_SECONDS

if TYPE_CHECKING:
    from cmdbus.embedded import EmbeddedPostgres

logger = logging.getLogger(__name__)

#: Seconds between two tries to reach a database that is away.
_AWAY_SECONDS = 2.0
#: Seconds added to the deadlines that probes check, for a busy machine.
_SPARE_SECONDS = 5.0
#: Slots of a seat in addition to its threads': for successors of stuck ones and housekeeping.
_SPARE_SLOTS = 10
#: Command types in addition to the app's: those that it may have after a reload.
_SPARE_COMMAND_TYPES = 8
_MAX_COMMAND_TYPES = 64


class StartupProbes:
    """Answers probes in a child. Closed before the steward starts: probes in between wait."""

    def __init__(self, settings: Settings, listener: socket | None, close: Iterable[int]) -> None:
        """`close`: descriptors that the child must not keep. Without a listener no child starts."""
        self._settings = settings
        self._listener = listener
        self._close = list(close)
        #: Shows a supervisor that starts, and a steward that knows whether the database is away.
        self._board = Board.in_memory(1, 1, command_types=1, name=settings.name)
        self._since = time.monotonic_ns()
        self._steward = self._board.seat(0)
        self._steward.assign(Role.STEWARD, number=0, generation=1)
        self._steward.enter(pid=0, generation=1, now=self._since)
        self._child: Child | None = None
        #: Why no probe is answered; logged once.
        self._why = ""

    def expect(self, seconds: float, *, away: bool) -> None:
        """`seconds` until the supervisor's next step at the latest; `away`: the database is."""
        due = time.monotonic_ns() + int(seconds * 1e9)
        self._board.supervise(
            pid=os.getpid(),
            state=SupervisorState.STARTING,
            since=self._since,
            due=due,
            wanted=self._settings.procs,
        )
        self._steward.beat(due, HealthReport(database_away=away))
        if self._listener is not None:
            self._start(self._listener)

    def _start(self, listener: socket) -> None:
        try:
            exited = self._child.reap() if self._child is not None else None
            if exited is not None:
                self._child = None
                no_thread = exited == ExitStatus(0, Exit.NO_RESOURCES)
                why = "found no thread left" if no_thread else str(exited)
                self._warn(f"the process that answers them {why}")
            if self._child is None:
                self._child = fork(lambda: self._answer(listener), close=self._close)
        except OSError as error:
            self._warn(f"cannot start a process ({error.strerror})")

    def _warn(self, why: str) -> None:
        if why != self._why:
            logger.warning("probes are not answered for the moment: %s; trying again", why)
        self._why = why

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()

    def _answer(self, listener: socket) -> int:
        """In the child."""
        from cmdbus.worker.probes.endpoints import serve_startup_probes

        clear_notify_env()
        serve_startup_probes(self._settings, self._board, listener)
        return Exit.ERROR


@contextmanager
def with_database(settings: Settings, signals: Signals) -> Iterator[Settings]:
    """The settings with a DSN: without one, an embedded server runs meanwhile, with its schema."""
    if settings.dsn is not None:
        yield settings
        return
    from cmdbus.embedded import EmbeddedPostgres

    with closing(EmbeddedPostgres()) as server:
        try:
            server.start()
        except EmbeddedError:
            _exit_if_stopped(signals)  # Ctrl-C reaches its programs, too.
            raise
        _install_schema(server, settings.schema, signals)
        yield replace(settings, dsn=server.dsn)


def _install_schema(server: "EmbeddedPostgres", schema: str, signals: Signals) -> None:
    def run() -> Exit:
        unblock()
        try:
            server.install(schema)
        except CmdbusError as error:
            logger.error("%s", error)
            return Exit.CANNOT_START
        return Exit.DONE

    try:
        exit_status = fork(run, close=signals.descriptors).wait()
    except OSError as error:
        raise CmdbusError(f"cannot start a process ({error.strerror})") from None
    if exit_status.code == Exit.CANNOT_START:
        sys.exit(Exit.CANNOT_START)  # It has logged the reason.
    if exit_status.signal or exit_status.code:
        raise CmdbusError(f"the schema could not be installed: the process {exit_status}")


def pass_preflight(
    settings: Settings, signals: Signals, probes: StartupProbes, close: Sequence[int]
) -> int:
    """Returns the number of the app's command types. Waits for a database that is away. `close`:
    descriptors that the application must not keep."""
    text = ""
    while True:
        probes.expect(BOOT_SECONDS + _AWAY_SECONDS + _SPARE_SECONDS, away=bool(text))
        checks = run_preflight(
            settings,
            declares=True,
            wake=[signals.descriptor],
            on_wake=lambda: _exit_if_stopped(signals),
            close=close,
        )
        for check in checks:
            if check.finding is Finding.WARNING:
                logger.warning("%s", check)
        if fatal := sentences(checks, Finding.FATAL):
            raise CmdbusError(fatal)
        away = sentences(checks, Finding.AWAY)
        if not away:
            return max(check.types for check in checks)
        if away != text:
            logger.warning("%s: trying again every %g s", away, _AWAY_SECONDS)
        text = away
        probes.expect(_AWAY_SECONDS + _SPARE_SECONDS, away=True)
        wait([signals.descriptor], _AWAY_SECONDS)
        _exit_if_stopped(signals)


def _exit_if_stopped(signals: Signals) -> None:
    received = signals.read()
    if STOPPING.intersection(received):
        logger.info("stopped by a signal before the fleet was started")
        sys.exit(Exit.DONE)
    for number in received:
        if number is not SIGCHLD:
            logger.warning("%s is ignored until the fleet is started", number.name)


def make_board(settings: Settings, path: Path, stacks: Path, types: int) -> Board:
    try:
        check_free(path, settings.name)
        if path.exists():
            # A dead supervisor left it: the steward finds the claims of its processes there.
            _log_death(path, settings.name)
            path.rename(path.with_name(f"{path.name}.{time.time_ns()}"))
        stacks.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise CmdbusError(
            f"the runtime directory {path.parent} cannot be used: {error.strerror}"
        ) from error
    return Board.create(
        path,
        seats=seats_for(settings.procs),
        slots=settings.thread_range.most + _SPARE_SLOTS,
        command_types=min(_MAX_COMMAND_TYPES, types + _SPARE_COMMAND_TYPES),
        name=settings.name,
        selected=Selected(settings.tags, settings.priorities, settings.age_share),
    )


def _log_death(path: Path, name: str) -> None:
    """Logs the crash of the supervisor that left this board, unless it stopped."""
    with suppress(BoardError), closing(Board.open(path)) as board:
        view = board.snapshot(claims=False)
        if view.state is not SupervisorState.STOPPED:
            logger.warning(
                "the supervisor %s starts after a crash: its predecessor, pid %s, died, and "
                "commands that its processes held are released",
                name,
                view.pid or "unknown",
            )
