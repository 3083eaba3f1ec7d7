"""The demo as a supervisor sees it: a child that tells a newcomer what happens, a log that does
not talk over it, and a last word. Silent for every other application.
"""

import logging
import os
import select
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from types import TracebackType
from typing import Self

from cmdbus.board.board import Board
from cmdbus.counting import count_of
from cmdbus.exits import Exit
from cmdbus.logs import redirect_stderr
from cmdbus.settings import Settings
from cmdbus.supervisor import signals
from cmdbus.supervisor.children import Child, fork, wait
from cmdbus.supervisor.systemd_notifier import clear_notify_env

logger = logging.getLogger(__name__)

_STDOUT, _STDERR = 1, 2
#: A terminal that is stopped keeps no supervisor from its end.
_REPORT_SECONDS = 1.0


class DemoOutput:
    """While it is entered, what goes to stderr is in the log."""

    def __init__(
        self, settings: Settings, board: Board, directory: Path, close: Callable[[], Iterable[int]]
    ) -> None:
        """`close`: the descriptors that no child may keep, once there is one."""
        self._settings = settings
        self._board = board
        self._close = close
        self._child: Child | None = None
        self._begun = False
        self._stderr = -1
        #: None where the log stays on stderr: it was asked for, in a way of its own.
        self._log: Path | None = None
        asked = settings.log_level, settings.log_format
        if settings.is_demo and asked == (Settings().log_level, Settings().log_format):
            self._log = directory / f"{settings.name}.log"

    def __enter__(self) -> Self:
        if self._log is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW
            log = os.open(self._log, flags | os.O_CLOEXEC, 0o600)
            self._stderr = os.dup(_STDERR)
            redirect_stderr(log)
            os.close(log)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._child is not None:
            self._child.send(SIGKILL)
            while self.pid is not None:
                wait([self._child.descriptor], 1.0)
                self.look()
        if self._log is not None:
            redirect_stderr(self._stderr)
            os.close(self._stderr)

    def begin(self) -> None:
        """The fleet is ready, for the first time or again."""
        if not self._settings.is_demo or self._begun:
            return
        self._begun = True
        try:
            self._child = fork(self._report, close=self._close())
        except OSError as error:
            logger.warning("the demo has no narrator: %s", error.strerror)

    def look(self) -> None:
        """The narrator leaves when all is told, or dies: nobody needs it any more."""
        if self._child is not None and self._child.reap() is not None:
            self._child = None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    def stopping(self, seconds: float) -> None:
        """At once, as the rest may take so many seconds."""
        if not self._settings.is_demo:
            return
        seats = self._board.snapshot(claims=False).seats
        running = sum(slot.command is not None for seat in seats for slot in seat.slots)
        if not seconds:
            text = "Stopping at once: what runs is cut off, and runs again next time."
        elif running:
            text = (
                f"Stopping: waiting for {count_of(running)}, at most {seconds:g} s "
                f"(Ctrl-C again: at once)."
            )
        else:
            text = "Stopping: no command runs; waiting for the processes to leave."
        _say(f"\n{text}\n")

    def end(self, code: Exit) -> None:
        """The last word."""
        if not self._settings.is_demo:
            return
        if code is not Exit.DONE and self._log is not None:
            logger.error("the demo has ended with %s: its log is in %s", code.name, self._log)
        elif self._log is not None:
            self._log.unlink(missing_ok=True)
        _say("".join(f"{line}\n" for line in ("", "The demo has stopped.", *self._done())))

    def _report(self) -> int:
        """In the child."""
        from cmdbus.worker.demo.report import report

        clear_notify_env()
        signals.unblock()
        return report(self._settings, self._board, self._log)

    def _done(self) -> Iterable[str]:
        ends = Counter[str]()
        for (_, _, end), count in self._board.counters().commands.items():
            ends[end] += count
        if ends:
            text = (f"{ends[name]} {what}" for name, what in _ENDS.items() if ends[name])
            yield f"It ran {ends.total()} executions: {', '.join(text)}."
        replaced = self._board.snapshot(claims=False).restarts
        if any(replaced.values()):
            why = (f"{count} {reason}" for reason, count in replaced.items() if count)
            yield f"It replaced processes: {', '.join(why)}."
        yield "Its database stays for the next time."


_ENDS = {
    "completed": "completed",
    "failed": "failed by a business rule",
    "retry": "to be tried again",
    "trouble": "given to a person",
    "interrupted": "interrupted",
    "lost": "cut off before their end",
}


def _say(text: str) -> None:
    if select.select([], [_STDOUT], [], _REPORT_SECONDS)[1]:
        with suppress(OSError):
            os.write(_STDOUT, text.encode())
