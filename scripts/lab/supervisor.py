"""The process of a supervisor, with a runtime directory, a log and a board."""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from cmdbus.board.board import Board
from cmdbus.supervisor.host import pidfile_path
from cmdbus.supervisor.runtime import board_path

#: Characters at the end of a log that say why its process has exited.
_LAST_CHARACTERS = 2_000


class Supervisor:
    """One that can be started, and started again after its end."""

    def __init__(self, name: str, directory: Path, log: Path) -> None:
        self.name = name
        self.directory = directory
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None
        self._board: Board | None = None

    def launch(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        stderr: int | None = None,
    ) -> "subprocess.Popen[bytes]":
        """In a session of its own: a Ctrl-C is for this process, which ends it in order."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log if stderr is None else stderr,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs, and before its start."""
        return None if self.process is None else self.process.poll()

    @property
    def running(self) -> bool:
        return self.process is not None and self.code is None

    def send_signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def exit_code_within(self, seconds: float) -> int | None:
        assert self.process is not None
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None

    @property
    def pidfile(self) -> Path:
        return pidfile_path(self.directory, self.name)

    @property
    def board_path(self) -> Path:
        return board_path(self.directory, self.name)

    def board(self) -> Board:
        """Stays open until close_board()."""
        if self._board is None:
            self._board = Board.open(self.board_path)
        return self._board

    def close_board(self) -> None:
        if self._board is not None:
            self._board.close()
            self._board = None

    def last_output(self) -> str:
        return self.log.read_text(errors="replace")[-_LAST_CHARACTERS:]
