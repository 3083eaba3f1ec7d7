"""Children that are really forked, killed and reaped."""

import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import EAGAIN, EIO, EMFILE

import pytest
from eventually import eventually

from cmdbus.exits import ExitStatus
from cmdbus.supervisor import signals
from cmdbus.supervisor.children import Child, fork, reap_orphans, wait

pytestmark = pytest.mark.process

_PR_SET_CHILD_SUBREAPER = 36
_NOBODY = 65534


def ran(run: Callable[[], int], close: Iterable[int] = ()) -> ExitStatus:
    return fork(run, close=close).wait()


@contextmanager
def living(run: Callable[[], int]) -> Iterator[Child]:
    child = fork(run, close=[])
    try:
        yield child
    finally:
        child.send(signal.SIGKILL)
        child.wait()


def pause_for_ever() -> int:
    while True:
        signal.pause()


@pytest.mark.parametrize("code", [0, 3, 255])
def test_what_it_returns_is_its_exit_code(code: int) -> None:
    assert ran(lambda: code) == ExitStatus(0, code)


def test_an_error_is_exit_code_1_and_its_traceback_is_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert ran(lambda: 1 // 0) == ExitStatus(0, 1)
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_sys_exit_in_a_child_is_no_way_out_of_it() -> None:
    assert ran(lambda: sys.exit(0)) == ExitStatus(0, 1)


@pytest.mark.parametrize("number", ["KILL", "TERM", "SEGV", "ABRT", "USR1"])
def test_a_signal_that_killed_it_is_told_from_an_exit_code(number: str) -> None:
    found = signal.Signals[f"SIG{number}"]

    def run() -> int:
        signals.unblock()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(found, signal.SIG_DFL)
        os.kill(os.getpid(), found)
        return 99

    assert ran(run) == ExitStatus(found, 0)


def test_a_child_that_lives_is_not_reaped() -> None:
    with living(pause_for_ever) as child:
        assert child.reap() is None


def test_a_signal_to_one_that_is_dead_already_reaches_no_process() -> None:
    """It is not reaped, so no other process has its pid."""
    child = fork(lambda: 5, close=[])
    wait([child.descriptor], 10)
    child.send(signal.SIGKILL)
    assert child.reap() == ExitStatus(0, 5)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up its rights")
def test_a_signal_to_one_that_has_become_another_users_is_no_error() -> None:
    """As after `exec sudo` in a handler."""

    def signal_as_nobody() -> int:
        with living(pause_for_ever) as child:
            os.setresuid(_NOBODY, _NOBODY, 0)
            try:
                child.send(signal.SIGTERM)
            finally:
                os.setresuid(0, 0, 0)
            assert child.reap() is None
        return 0

    assert ran(signal_as_nobody) == ExitStatus(0, 0)


def test_many_that_die_at_once_are_all_told_apart() -> None:
    children = [fork(lambda code=code: code, close=[]) for code in range(20)]  # type: ignore[misc]
    assert [child.wait().code for child in children] == list(range(20))


# What a child has of its parent, and what not.


_IN_A_TERMINAL = """
import errno, os, subprocess, sys, termios
from cmdbus.supervisor import signals
from cmdbus.supervisor.children import fork

def run():
    signals.unblock()
    assert sys.stdin.read() == ""
    assert subprocess.run(["cat"], check=True, capture_output=True).stdout == b""
    settings = termios.tcgetattr(terminal)
    settings[3] |= termios.TOSTOP
    termios.tcsetattr(terminal, termios.TCSANOW, settings)
    os.write(terminal, b"from the background")
    try:
        os.read(terminal, 1)
    except OSError as error:
        return error.errno
    return 0

terminal = os.open(sys.argv[1], os.O_RDWR)  # A session's leader gets its terminal that way.
os.dup2(terminal, 0)
sys.exit(fork(run, close=[]).wait().code)
"""


def test_a_child_that_uses_the_terminal_of_its_parent_is_not_suspended() -> None:
    """It is in the background, in a group of its own; what it reads is an error, or nothing."""
    controller, terminal = os.openpty()
    try:
        program = [sys.executable, "-c", _IN_A_TERMINAL, os.ttyname(terminal)]
        done = subprocess.run(program, start_new_session=True, timeout=20)
        assert done.returncode == EIO
    finally:
        os.close(controller)
        os.close(terminal)


def test_descriptors_that_are_only_the_parents_are_closed_in_the_child() -> None:
    private, shared = os.pipe()

    def run() -> int:
        os.fstat(shared)
        with pytest.raises(OSError):
            os.fstat(private)
        return 0

    try:
        assert ran(run, close=[private]) == ExitStatus(0, 0)
        os.fstat(private)
    finally:
        os.close(private)
        os.close(shared)


def test_a_signal_before_the_child_has_its_handlers_is_not_lost() -> None:
    """It comes when the child is ready for it."""
    reader, writer = os.pipe()

    def run() -> int:
        os.read(reader, 1)
        noted: list[int] = []
        assert signal.SIGTERM in signal.sigpending()
        signal.signal(signal.SIGTERM, lambda number, frame: noted.append(number))
        signals.unblock()
        assert noted == [signal.SIGTERM]
        return 0

    child = fork(run, close=[writer])
    child.send(signal.SIGTERM)
    os.write(writer, b"!")
    try:
        assert child.wait() == ExitStatus(0, 0)
    finally:
        os.close(reader)
        os.close(writer)


def test_a_fork_is_possible_with_stdout_and_stderr_closed() -> None:
    def run() -> int:
        sys.stdout = sys.stderr = None
        return fork(lambda: 1 // 0, close=[]).wait().code + 10

    assert ran(run) == ExitStatus(0, 11)


# The end of the others.


def test_what_a_child_started_and_left_ends_when_it_is_reaped() -> None:
    reader, writer = os.pipe()

    def run() -> int:
        started = subprocess.Popen(["sleep", "1000"])
        os.write(writer, f"{started.pid}\n".encode())
        os._exit(0)

    child = fork(run, close=[reader])
    os.close(writer)
    with os.fdopen(reader) as lines:
        left = os.pidfd_open(int(lines.readline()))
    try:
        wait([child.descriptor], 10)
        assert not has_ended(left), "it outlives the process that started it"
        assert child.reap() == ExitStatus(0, 0)
        eventually(lambda: has_ended(left))
    finally:
        os.close(left)


def has_ended(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def test_a_child_that_loses_its_parent_is_killed() -> None:
    reader, writer = os.pipe()

    def supervise() -> int:
        child = fork(pause_for_ever, close=[])
        os.write(writer, f"{child.pid}\n".encode())
        return pause_for_ever()

    with living(supervise) as parent:
        os.close(writer)
        with os.fdopen(reader) as lines:
            orphan = os.pidfd_open(int(lines.readline()))
        try:
            parent.send(signal.SIGKILL)
            eventually(lambda: has_ended(orphan))
        finally:
            os.close(orphan)


def test_the_exit_code_of_a_librarys_child_is_left_to_the_library() -> None:
    """Of a subprocess that the library started in this process."""
    strangers = [subprocess.Popen([sys.executable, "-c", "exit(41)"]) for _ in range(3)]
    for stranger in strangers:
        os.waitid(os.P_PID, stranger.pid, os.WEXITED | os.WNOWAIT)
    assert ran(lambda: 3) == ExitStatus(0, 3)
    reap_orphans([])
    assert [stranger.wait() for stranger in strangers] == [41] * 3


def test_as_process_1_would_it_reaps_orphans_and_leaves_our_own_to_their_seats() -> None:
    def orphan(code: int) -> None:
        """Of a child that has ended before."""
        middle = os.fork()
        if middle == 0:
            if os.fork() == 0:
                os._exit(code)
            os._exit(0)
        os.waitpid(middle, 0)

    def supervise() -> int:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        first = fork(lambda: 5, close=[])
        orphan(3)
        orphan(4)
        last = fork(lambda: 6, close=[])
        own_pids = [first.pid, last.pid]
        for child in (first, last):
            wait([child.descriptor], 10)
            reap_orphans(own_pids)
        assert [child.wait().code for child in (first, last)] == [5, 6]
        eventually(lambda: not _has_children(own_pids))
        return 0

    assert ran(supervise) == ExitStatus(0, 0)


def _has_children(own_pids: list[int]) -> bool:
    reap_orphans(own_pids)
    with suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    return False


def test_a_fork_that_fails_is_an_error_for_whoever_asked_and_changes_nothing() -> None:
    def supervise() -> int:
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        with pytest.raises(OSError) as error:
            fork(lambda: 0, close=[])
        assert error.value.errno == EAGAIN
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
        return 0

    assert ran(supervise) == ExitStatus(0, 0)


def test_a_child_for_which_no_descriptor_is_left_does_not_run_unwatched() -> None:
    def supervise() -> int:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        with suppress(OSError):
            while True:
                os.dup(0)
        try:
            fork(pause_for_ever, close=[])
        except OSError as error:  # an assertion would need a descriptor for its traceback
            return 0 if error.errno == EMFILE and not _has_children([]) else 7
        return 8

    assert ran(supervise) == ExitStatus(0, 0)


def test_a_wait_ends_with_the_first_death_and_at_its_time() -> None:
    with living(pause_for_ever) as lives:
        child = fork(lambda: 0, close=[])
        wait([lives.descriptor, child.descriptor], 20)
        assert child.wait() == ExitStatus(0, 0)
        wait([lives.descriptor], -1)
        assert lives.reap() is None


def test_a_wait_that_the_system_refuses_is_a_short_one() -> None:
    """poll() does, for more descriptors than the process may have."""

    def wait_without_a_descriptor() -> int:
        with living(pause_for_ever) as child:
            before = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
            began = time.monotonic()
            wait([child.descriptor], 20)
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            assert time.monotonic() < began + 10
        return 0

    assert ran(wait_without_a_descriptor) == ExitStatus(0, 0)
