"""Signals are only noted: the loop reads them when it looks. Nothing else is done in a handler."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

#: Those that mean something to the supervisor, and the death of a child.
NOTED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGUSR1,
    signal.SIGCHLD,
)
STOPPING = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGQUIT))
_AT_ONCE = 4096


class Signals:
    """The loop waits for a pipe that the interpreter writes to. What came is noted apart from
    that: a storm fills the pipe, and what is dropped then may be the only one of its kind."""

    def __init__(self) -> None:
        self.descriptor, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._received: dict[int, None] = {}
        for number in NOTED:
            signal.signal(number, self._note)
        # By which children are asked for their stacks: those that are not ready for it yet
        # must not die of it.
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        # A parent may have blocked them, and a blocked mask is inherited.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*NOTED, signal.SIGUSR2})

    @property
    def descriptors(self) -> tuple[int, int]:
        return self.descriptor, self._writer

    def read(self) -> list[signal.Signals]:
        """Those that came since, each once."""
        # The pipe first: what comes after that wakes the loop again.
        with suppress(BlockingIOError):
            while os.read(self.descriptor, _AT_ONCE):
                pass
        noted, self._received = self._received, {}
        return [signal.Signals(number) for number in noted]

    def close(self) -> None:
        """For a process that is about to exit, with a code that no late signal may change."""
        for number in NOTED:
            at_end = signal.SIG_DFL if number is signal.SIGCHLD else signal.SIG_IGN
            signal.signal(number, at_end)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self.descriptor)
        os.close(self._writer)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._received[number] = None


@contextmanager
def blocked() -> Iterator[None]:
    """Around a fork: a signal that comes before the child has its own handlers would be
    taken by ours, and lost. The child unblocks them itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, NOTED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def reset() -> None:
    """In a child: nothing of the supervisor's; still blocked until `unblock`."""
    signal.set_wakeup_fd(-1)
    for number in NOTED:
        signal.signal(number, signal.SIG_DFL)


def unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NOTED)
