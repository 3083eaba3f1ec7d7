"""Child processes: forked, watched by pidfd, reaped by id, each with its process group.

Must be used while this process has one thread and holds no lock.
"""

import ctypes
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress

from cmdbus.clock import time
from cmdbus.exits import Exit, ExitStatus, cannot_start_thread
from cmdbus.failpoints import IN_CHILD, failpoint
from cmdbus.logs import flush
from cmdbus.supervisor import signals

_PR_SET_PDEATHSIG, _PR_GET_CHILD_SUBREAPER = 1, 37
#: Seconds between two checks of descriptors that cannot be polled.
_BLIND_SECONDS = 0.1
#: Seconds after which a wait for an exit checks for it in any case.
_WAIT_SECONDS = 1.0
#: Seconds that the application's handlers have for the last lines of a child's log.
_LOGS_SECONDS = 1.0
#: Seconds that a killed process has to die.
_DIES_SECONDS = 1.0
_STDIN = 0
_libc = ctypes.CDLL(None, use_errno=True)


class Child:
    """A process that we forked and have not reaped, so that no other process can have its id."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.descriptor = os.pidfd_open(pid)
        #: It has exited, and a debugger or tracer that is attached to it keeps it from being
        #: reaped.
        self.held = False
        self._exit_status: ExitStatus | None = None

    def send(self, number: signal.Signals) -> None:
        """A process that has become another user's, by executing sudo for example, may not be
        signaled: it survives SIGKILL, as one in disk wait does."""
        if self._exit_status is not None:
            return
        with suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(self.descriptor, number)

    def reap(self) -> ExitStatus | None:
        """None while it lives. Kills the processes that it left in its group, while the dead
        process still holds the group's number."""
        if self._exit_status is not None:
            return self._exit_status
        exited = _is_readable(self.descriptor)
        ended = os.waitid(os.P_PIDFD, self.descriptor, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        self.held = exited and ended is None
        if ended is None:
            return None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        os.waitid(os.P_PIDFD, self.descriptor, os.WEXITED)
        os.close(self.descriptor)
        self._exit_status = ExitStatus(ended.si_status, 0)
        if ended.si_code == os.CLD_EXITED:
            self._exit_status = ExitStatus(0, ended.si_status)
        return self._exit_status

    def wait(self) -> ExitStatus:
        while (exit_status := self.reap()) is None:
            wait([self.descriptor], _WAIT_SECONDS)
        return exit_status

    def kill(self) -> None:
        """With its group. Returns once it is dead, or soon: one in disk wait dies later, and
        stays a zombie."""
        if self.reap() is not None:
            return  # Other processes may have its numbers.
        self.send(signal.SIGKILL)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        deadline = time.monotonic() + _DIES_SECONDS
        while self.reap() is None and (seconds := deadline - time.monotonic()) > 0:
            wait([self.descriptor], seconds)


def fork(
    run: Callable[[], int], *, close: Iterable[int], orphaned: signal.Signals = signal.SIGKILL
) -> Child:
    """Runs `run` in a child, whose exit code it returns; signals are blocked there until it
    unblocks them. `close`: descriptors that the child must not keep. `orphaned`: the signal that
    the child gets when this process dies. OSError if the system has no process left.

    Not multiprocessing's Process: it reaps siblings whenever another one starts, before their
    process groups are ended, and joins all of them at exit.
    """
    parent = os.getpid()
    _flush()
    with signals.blocked():
        pid = os.fork()
        if pid == 0:
            _begin(run, parent, close, orphaned)
    try:
        return Child(pid)
    except OSError:
        # No descriptor is left for it, so it could never be reaped.
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _flush() -> None:
    """Buffered output would be written by parent and child. Either stream may be closed."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()


def _begin(
    run: Callable[[], int], parent: int, close: Iterable[int], orphaned: signal.Signals
) -> None:
    code: int = Exit.ERROR
    try:
        failpoint(IN_CHILD)
        os.setpgid(0, 0)
        signals.reset()
        _die_with(parent, orphaned)
        for descriptor in close:
            os.close(descriptor)
        _close_stdin()
        code = run()
    except BaseException as error:
        if cannot_start_thread(error):
            code = Exit.NO_RESOURCES
        else:
            traceback.print_exc()
    finally:
        with suppress(BaseException):
            flush(_LOGS_SECONDS)
            _flush()
        os._exit(code)  # Threads that hang are not waited for.


def _close_stdin() -> None:
    """In a child. A read from a terminal would suspend its process group, which is in the
    background; this also holds for programs that a handler starts."""
    with suppress(OSError):
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, _STDIN)
        os.close(empty)


def _die_with(parent: int, number: signal.Signals) -> None:
    """In a child."""
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(Exit.ERROR)


def reap_orphans(children: Iterable[int]) -> None:
    """Reaps orphans inherited as process 1 or as a subreaper. Peeks first: `children` are reaped
    through their descriptors, which keeps their exit status. Elsewhere it reaps nothing: other code
    in this process may have started children of its own."""
    if not _inherits_orphans():
        return
    children = set(children)
    with suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in children:
                return
            os.waitid(os.P_PID, ended.si_pid, os.WEXITED)


def _inherits_orphans() -> bool:
    subreaper = ctypes.c_int(0)
    _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(subreaper), 0, 0, 0)
    return os.getpid() == 1 or bool(subreaper.value)


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    with suppress(OSError):  # out of memory
        return bool(poll.poll(0))
    return False


def wait(descriptors: Iterable[int], seconds: float) -> None:
    """Until one of them is readable."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    try:
        poll.poll(max(0.0, seconds) * 1000)
    except OSError:
        # Out of memory, or allowed fewer descriptors than these: the caller looks at all of them.
        time.sleep(min(max(0.0, seconds), _BLIND_SECONDS))
