"""Handlers only record signals: the loop reads them in its next round."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from cmdbus.clock import time

STOPPING = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGQUIT))
#: Seconds after TERM or INT within which another one belongs to the same order: a terminal's Ctrl-C
#: reaches the whole process group, and a parent in it may pass it on.
SAME_ORDER_SECONDS = 0.5
#: A terminal suspends with them the processes in its background that read from it or change it,
#: or that write to it after `stty tostop`; if they are ignored, a read is an error.
_OF_TERMINAL = frozenset((signal.SIGTTIN, signal.SIGTTOU))
#: The signals that the supervisor acts on, and SIGCHLD.
NOTED = STOPPING | _OF_TERMINAL | {signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD}

_STDOUT, _STDERR = 1, 2


class Signals:
    """The loop waits for a pipe that the interpreter writes to. Signals are recorded apart from it:
    in a full pipe the only one of its kind may be dropped."""

    def __init__(self) -> None:
        self.descriptor, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        #: Those received since the last reading, each with the time at which it last came.
        self._received: dict[int, float] = {}
        #: The kernel sends HUP when the terminal is closed; under nohup the supervisor outlives it.
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        printing = any(os.isatty(descriptor) for descriptor in (_STDOUT, _STDERR))
        self._ends_with_terminal = printing and not ignored and has_terminal()
        for number in NOTED:
            signal.signal(number, self._note)
        # It asks children for their stacks, and must not kill one that is not ready for that.
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        # A parent may have blocked them, and a blocked mask is inherited.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*NOTED, signal.SIGUSR2})

    @property
    def descriptors(self) -> tuple[int, int]:
        return self.descriptor, self._writer

    def read(self) -> dict[signal.Signals, float]:
        """The signals received since the last call, with the monotonic times at which they came:
        a supervisor that stalls reads them later."""
        # The pipe first: later signals wake the loop again.
        with suppress(BlockingIOError):
            while os.read(self.descriptor, 4096):
                pass
        noted, self._received = self._received, {}
        if signal.SIGHUP in noted and self._ends_with_terminal and not has_terminal():
            noted[signal.SIGTERM] = noted.pop(signal.SIGHUP)
        return {signal.Signals(number): at for number, at in noted.items()}

    def close(self) -> None:
        """For a process that is about to exit, with a code that no late signal may change."""
        for number in NOTED:
            at_end = signal.SIG_DFL if number is signal.SIGCHLD else signal.SIG_IGN
            signal.signal(number, at_end)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self.descriptor)
        os.close(self._writer)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._received[number] = time.monotonic()


def has_terminal() -> bool:
    """Whether a user can press Ctrl-C; false when the terminal was closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


@contextmanager
def blocked() -> Iterator[None]:
    """Around a fork: a signal that comes before the child has its own handlers would be lost to
    those of the supervisor. The child unblocks them itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, NOTED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def reset() -> None:
    """In a child: removes the supervisor's handlers. Signals stay blocked until `unblock`."""
    signal.set_wakeup_fd(-1)
    for number in NOTED:
        signal.signal(number, signal.SIG_IGN if number in _OF_TERMINAL else signal.SIG_DFL)


def unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NOTED)
