"""The steps from the settings of a supervisor to its board: database, preflight, board.

What loads a database driver or runs user code is done in a child.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cmdbus.board.board import Board
from cmdbus.board.records import SupervisorState
from cmdbus.clock import time
from cmdbus.errors import BoardError, CmdbusError, EmbeddedError
from cmdbus.exits import Exit
from cmdbus.readiness import Finding, sentences
from cmdbus.settings import Settings
from cmdbus.supervisor.children import fork, wait
from cmdbus.supervisor.host import check_free
from cmdbus.supervisor.preflight_process import TIMEOUT_SECONDS, run_preflight
from cmdbus.supervisor.signals import STOPPING, Signals, unblock
from cmdbus.supervisor.startup_probes import StartupProbes

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
        sys.exit(Exit.CANNOT_START)
    if exit_status.signal or exit_status.code:
        raise CmdbusError(f"the schema could not be installed: the process {exit_status}")


def pass_preflight(settings: Settings, signals: Signals, probes: StartupProbes) -> int:
    """Returns the number of the app's command types. Waits for a database that is away."""
    text = ""
    while True:
        probes.expect(TIMEOUT_SECONDS + _AWAY_SECONDS + _SPARE_SECONDS, away=bool(text))
        checks = run_preflight(
            settings, wake=[signals.descriptor], on_wake=lambda: _exit_if_stopped(signals)
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
    if STOPPING.intersection(signals.read()):
        logger.info("stopped by a signal before the fleet was started")
        sys.exit(Exit.DONE)


def make_board(settings: Settings, path: Path, stacks: Path, types: int) -> Board:
    try:
        check_free(path, settings.name)
        if path.exists():
            # A dead supervisor left it: it says what its processes held, for the steward.
            _log_death(path, settings.name)
            path.rename(path.with_name(f"{path.name}.{time.time_ns()}"))
        stacks.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise CmdbusError(
            f"the runtime directory {path.parent} cannot be used: {error.strerror}"
        ) from error
    return Board.create(
        path,
        seats=3 * settings.procs + 8,
        slots=settings.threads + _SPARE_SLOTS,
        command_types=min(_MAX_COMMAND_TYPES, types + _SPARE_COMMAND_TYPES),
        name=settings.name,
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
