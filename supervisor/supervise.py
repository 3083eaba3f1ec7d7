"""From the settings of a supervisor to a running fleet, and back to nothing.

    supervise      one of its name -> database -> preflight -> board -> the loop (see loop.py)

Until there is a steward a porter answers probes.

The supervising process loads no database driver, runs no user code, starts no thread and
holds no lock: so it may fork at any moment, and nothing can hang it. What needs any of that
is done in a child.
"""

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from cmdbus.board.board import Board
from cmdbus.board.records import SupervisorState
from cmdbus.clock import time
from cmdbus.errors import BoardError, CmdbusError, EmbeddedError
from cmdbus.exits import Exit
from cmdbus.logs import set_up
from cmdbus.readiness import Check, Finding, worst
from cmdbus.settings import Settings
from cmdbus.supervisor.children import Child, fork, wait
from cmdbus.supervisor.fleet import Fleet
from cmdbus.supervisor.host import Pidfile, check_board_free, listen, pidfile_path
from cmdbus.supervisor.loop import Supervisor
from cmdbus.supervisor.preflight_process import TIMEOUT_SECONDS, run_preflight
from cmdbus.supervisor.processes import Spawner
from cmdbus.supervisor.runtime import board_path, find_runtime_directory, make_runtime_directory
from cmdbus.supervisor.signals import STOPPING, Signals, unblock
from cmdbus.supervisor.stacks import Stacks
from cmdbus.supervisor.startup_probes import StartupProbes

logger = logging.getLogger(__name__)

#: Seconds between two tries to reach a database that is away.
_AWAY_SECONDS = 2.0
#: Seconds added to the deadlines that probes check, for a busy machine.
_SPARE_SECONDS = 5.0
#: Seconds to make and start an embedded server.
_EMBEDDED_SECONDS = 180.0
#: Slots of a seat in addition to its threads': for successors of stuck ones and housekeeping.
_SPARE_SLOTS = 10
#: Command types in addition to the app's: those that it may have after a reload.
_SPARE_COMMAND_TYPES = 8
_MAX_COMMAND_TYPES = 64


class StopRequested(Exception):
    """A signal came before there was anything to stop."""


class AlreadyReported(Exception):
    """A child failed, and has logged the reason."""


def supervise(settings: Settings) -> Exit:
    """Runs the fleet until it stops; the exit code says how that went."""
    set_up(settings.log_format, settings.log_level)
    with ExitStack() as stack:
        try:
            signals = Signals()
            stack.callback(signals.close)
            directory = make_runtime_directory(find_runtime_directory(settings.runtime_dir))
            pidfile = Pidfile(pidfile_path(directory, settings.name), settings.name)
            stack.callback(pidfile.close)
            path = board_path(directory, settings.name)
            stacks = directory / f"{settings.name}.stacks"
            check_board_free(path, settings.name)
            http = stack.enter_context(listen(*settings.http)) if settings.http else None
            probes = StartupProbes(settings, http, [pidfile.descriptor, *signals.descriptors])
            stack.callback(probes.close)
            probes.expect(_EMBEDDED_SECONDS, away=False)
            settings = stack.enter_context(_with_database(settings, signals))
            types = _preflight(settings, signals, probes)
            probes.close()
            board = _make_board(settings, path, stacks, types)
            pidfile.hold_board(path)
            private = [*pidfile.descriptors, *signals.descriptors]
            spawner = Spawner(settings, board, Stacks(stacks), private=private, http=http)
            stack.callback(spawner.close)
            fleet = Fleet(settings, board, spawner)
            code = Supervisor(settings, board, fleet, signals, pidfile).run()
        except StopRequested:
            logger.info("stopped by a signal before the fleet was started")
            return Exit.DONE
        except AlreadyReported:
            return Exit.CANNOT_START
        except CmdbusError as error:
            logger.error("%s", error)
            return Exit.CANNOT_START
        if code is Exit.DONE:
            _clear(path, stacks)
        return code


@contextmanager
def _with_database(settings: Settings, signals: Signals) -> Iterator[Settings]:
    """Without a DSN, an embedded server of our own runs meanwhile, with its schema."""
    if settings.dsn is not None:
        yield settings
        return
    from cmdbus.embedded import EmbeddedPostgres

    with closing(EmbeddedPostgres()) as server:
        try:
            server.start()
        except EmbeddedError:
            _handle_signals(signals)  # Ctrl-C reaches its programs, too.
            raise
        settings = replace(settings, dsn=server.dsn)

        def install() -> Exit:
            unblock()
            try:
                server.install(settings.schema)
            except CmdbusError as error:
                logger.error("%s", error)
                return Exit.CANNOT_START
            return Exit.DONE

        _in_child(install, signals)
        yield settings


def _in_child(run: Callable[[], int], signals: Signals) -> None:
    exit_status = _forked(run, signals).wait()
    if exit_status.code == Exit.CANNOT_START:
        raise AlreadyReported
    if exit_status.signal or exit_status.code:
        raise CmdbusError(f"the schema could not be installed: the process {exit_status}")


def _forked(run: Callable[[], int], signals: Signals) -> Child:
    """Waits until the system can start one more process."""
    while True:
        try:
            return fork(run, close=signals.descriptors)
        except OSError as error:
            logger.warning("%s: trying again in %g s", _no_process(error), _AWAY_SECONDS)
        wait([signals.descriptor], _AWAY_SECONDS)
        _handle_signals(signals)


def _no_process(error: OSError) -> str:
    return f"cannot start a process ({error.strerror})"


def _preflight(settings: Settings, signals: Signals, probes: StartupProbes) -> int:
    """Returns the number of the app's command types. Waits for a database that is away."""
    text = ""
    while True:
        probes.expect(TIMEOUT_SECONDS + _AWAY_SECONDS + _SPARE_SECONDS, away=bool(text))
        checks = _passed(settings, signals)
        for check in checks:
            if check.finding is Finding.WARNING:
                logger.warning("%s", check)
        fatal = [check for check in checks if check.finding is Finding.FATAL]
        if fatal:
            raise CmdbusError("; ".join(str(check) for check in fatal))
        if worst(checks) is not Finding.AWAY:
            return max(check.types for check in checks)
        away = "; ".join(str(check) for check in checks if check.finding is Finding.AWAY)
        if away != text:
            logger.warning("%s: waiting until it is back", away)
        text = away
        probes.expect(_AWAY_SECONDS + _SPARE_SECONDS, away=True)
        wait([signals.descriptor], _AWAY_SECONDS)
        _handle_signals(signals)


def _passed(settings: Settings, signals: Signals) -> list[Check]:
    try:
        return run_preflight(
            settings, wake=[signals.descriptor], on_wake=lambda: _handle_signals(signals)
        )
    except OSError as error:
        # Too many processes or descriptors; for how long is not known.
        return [Check("preflight", Finding.AWAY, _no_process(error))]


def _handle_signals(signals: Signals) -> None:
    if STOPPING.intersection(signals.read()):
        raise StopRequested


def _make_board(settings: Settings, path: Path, stacks: Path, types: int) -> Board:
    try:
        check_board_free(path, settings.name)
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


def _clear(board: Path, stacks: Path) -> None:
    with suppress(OSError):  # Their directory may be gone, or read-only by now.
        board.unlink()
    shutil.rmtree(stacks, ignore_errors=True)
