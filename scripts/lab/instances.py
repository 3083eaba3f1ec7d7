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
from lab.supervisor import Supervisor

SCRIPTS = Path(__file__).resolve().parent.parent
_LEAVE_S = 15.0
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
    #: Or a range.
    threads: int | str
    options: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    #: Before the command: what runs it elsewhere, and becomes it.
    prefix: Sequence[str] = ()
    #: What the program of a supervisor executes first.
    prelude: str = "pass"


class Instance(Supervisor):
    """One of several supervisors on a machine."""

    def __init__(self, name: str, options: InstanceOptions, directory: Path) -> None:
        super().__init__(name, directory / name, directory / name / "log")
        self._options = options
        self.directory.mkdir(mode=0o700)

    def start(self) -> None:
        self.close_board()
        self.process = self.start_second()

    def start_second(self) -> "subprocess.Popen[bytes]":
        """A second supervisor of the same name."""
        options = self._options
        command = [
            *options.prefix,
            *(sys.executable, "-c", SUPERVISE.format(prelude=options.prelude), str(os.getpid())),
            *("--app", options.app, "--name", self.name, "--runtime-dir", str(self.directory)),
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
        return self.launch(command, cwd=self.directory, environment=environment)

    def look(self) -> BoardView | None:
        """What the board of the living supervisor shows; None before there is one."""
        try:
            view = self.board().snapshot(claims=False)
        except BoardError:
            return None
        if view.pid != self.pid:  # of the supervisor before
            self.close_board()
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
            board = Board.open(self.board_path)
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


def ready(view: BoardView) -> list[SeatView]:
    return [s for s in view.with_role(Role.WORKER) if s.ready is not None and s.pid is not None]


def end(instances: Sequence[Instance], seconds: float = _LEAVE_S) -> None:
    """Of all of them at once: in order, and after a while by force."""
    started = [instance for instance in instances if instance.running]
    for instance in started:
        instance.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + seconds
    for instance in started:
        if instance.exit_code_within(max(0.0, deadline - time.monotonic())) is None:
            instance.send_signal(signal.SIGKILL)
            instance.exit_code_within(seconds)
    for instance in instances:
        instance.close_board()
