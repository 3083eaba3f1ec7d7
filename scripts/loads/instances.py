"""Supervisors: each a `cmdbus-supervise` with a name, a runtime directory and a log of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from cmdbus.board.board import Board
from cmdbus.board.records import Role
from cmdbus.board.views import BoardView, SeatView
from cmdbus.errors import BoardError
from cmdbus.supervisor.pidfile import pidfile_path
from cmdbus.supervisor.runtime import board_path

SCRIPTS = Path(__file__).resolve().parent.parent
_LEAVE_S = 15.0
_LAST_WORDS = 2_000
#: It ends with the thread that started it, however that ends: 1 is PR_SET_PDEATHSIG.
SUPERVISE = (
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0);"
    " os.getppid() == int(sys.argv.pop(1)) or sys.exit(1);"
    " {prelude}; from cmdbus.supervisor.cli.supervise import main; main()"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceOptions:
    """The options of every instance."""

    app: str
    dsn: str
    procs: int
    threads: int
    options: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    #: Before the command: what runs it elsewhere, and becomes it.
    prefix: Sequence[str] = ()
    #: What the program of a supervisor executes first.
    prelude: str = "pass"


class Instance:
    """One of them; it may be started again after its end."""

    def __init__(self, name: str, options: InstanceOptions, directory: Path) -> None:
        self.name = name
        self._options = options
        self._directory = directory / name
        self._directory.mkdir(mode=0o700)
        self.log = self._directory / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._board: Board | None = None

    def start(self) -> None:
        self._forget_board()
        self._process = self._launch()

    def start_second(self) -> "subprocess.Popen[bytes]":
        """A second supervisor of the same name."""
        return self._launch()

    @property
    def pidfile(self) -> Path:
        return pidfile_path(self._directory, self.name)

    def _launch(self) -> "subprocess.Popen[bytes]":
        options = self._options
        command = [
            *options.prefix,
            *(sys.executable, "-c", SUPERVISE.format(prelude=options.prelude), str(os.getpid())),
            *("--app", options.app, "--name", self.name, "--runtime-dir", str(self._directory)),
            *("--procs", str(options.procs), "--threads", str(options.threads)),
            *options.options,
        ]
        ours = {n: v for n, v in os.environ.items() if not n.startswith("CMDBUS_")}
        environment = {
            **ours,
            "CMDBUS_DSN": options.dsn,
            "PYTHONPATH": str(SCRIPTS),
            **options.environment,
            **{n: v for n, v in os.environ.items() if n == "CMDBUS_PG_BIN"},
        }
        with self.log.open("ab") as log:
            # In a session of its own: Ctrl-C is for us, who end it in order.
            return subprocess.Popen(
                command,
                env=environment,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def code(self) -> int | None:
        """How its supervisor ended; None while it lives."""
        return None if self._process is None else self._process.poll()

    def look(self) -> BoardView | None:
        """What the board of the living supervisor shows; None before there is one."""
        if self._board is None:
            try:
                self._board = self.open_board()
            except BoardError:
                return None
        view = self._board.snapshot(claims=False)
        if view.pid != self.pid:  # of the supervisor before
            self._forget_board()
            return None
        return view

    @property
    def is_ready(self) -> bool:
        view = self.look()
        return view is not None and len(ready(view)) >= view.wanted and view.listening

    def workers(self) -> list[int]:
        """Pids that are certainly its own children now."""
        view = self.look()
        return self.living(view) if view is not None else []

    def living(self, view: BoardView) -> list[int]:
        pids = [seat.pid for seat in ready(view)]
        return [pid for pid in pids if pid is not None and self.is_child(pid)]

    def look_alone(self) -> BoardView | None:
        """The same as `look`, for any thread."""
        try:
            board = self.open_board()
        except BoardError:
            return None
        try:
            view = board.snapshot(claims=False)
        finally:
            board.close()
        return view if view.pid == self.pid else None

    def workers_now(self) -> list[int]:
        """The same as `workers`, for any thread."""
        view = self.look_alone()
        return [] if view is None else self.living(view)

    def steward_now(self) -> int | None:
        view = self.look_alone()
        stewards = view.with_role(Role.STEWARD) if view is not None else []
        return stewards[0].pid if stewards else None

    def open_board(self) -> Board:
        return Board.open(board_path(self._directory, self.name))

    def is_child(self, pid: int) -> bool:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            return process.ppid() == self.pid and process.status() != psutil.STATUS_ZOMBIE
        return False

    def kill(self, pid: int) -> None:
        """One of its workers, which is certainly no other process by now."""
        if self.is_child(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-_LAST_WORDS:]

    def _forget_board(self) -> None:
        if self._board is not None:
            self._board.close()
            self._board = None

    def wait(self, seconds: float) -> int | None:
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def close(self) -> None:
        self._forget_board()


def ready(view: BoardView) -> list[SeatView]:
    return [s for s in view.with_role(Role.WORKER) if s.ready is not None and s.pid is not None]


def end(instances: Sequence[Instance], seconds: float = _LEAVE_S) -> None:
    """Of all of them at once: in order, and after a while by force."""
    started = [instance for instance in instances if instance.code is None and instance._process]
    for instance in started:
        instance.send(signal.SIGTERM)
    deadline = time.monotonic() + seconds
    for instance in started:
        if instance.wait(max(0.0, deadline - time.monotonic())) is None:
            instance.send(signal.SIGKILL)
            instance.wait(seconds)
    for instance in instances:
        instance.close()
