"""What a supervisor hears of its signals, and what its children have of them."""

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from signal import SIGTTIN, SIGTTOU

import pytest

from cmdbus.exits import ExitStatus
from cmdbus.supervisor import signals
from cmdbus.supervisor.children import fork, wait

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def handlers_restored() -> Iterator[None]:
    changed = (*signals.NOTED, signal.SIGUSR2)
    before = [(number, signal.getsignal(number)) for number in changed]
    yield
    for number, handler in before:
        signal.signal(number, handler)


def noting() -> closing[signals.Signals]:
    return closing(signals.Signals())


def test_a_child_leads_a_group_of_its_own_and_has_nothing_of_the_supervisors_signals() -> None:
    def run() -> int:
        assert os.getpgid(0) == os.getpid()
        handlers = {number: signal.getsignal(number) for number in signals.NOTED}
        assert {n for n in handlers if handlers[n] is signal.SIG_IGN} == {SIGTTIN, SIGTTOU}
        assert set(handlers.values()) == {signal.SIG_IGN, signal.SIG_DFL}
        assert signal.set_wakeup_fd(-1) == -1
        return 0

    with noting():
        assert fork(run, close=[]).wait() == ExitStatus(0, 0)


def test_a_signal_to_the_parent_during_a_fork_comes_after_it() -> None:
    with noting() as noted:
        with signals.blocked():
            os.kill(os.getpid(), signal.SIGHUP)
            assert not noted.read()
        assert [*noted.read()] == [signal.SIGHUP]
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(signals.NOTED)


def test_a_signal_has_the_time_at_which_it_last_came_whenever_it_is_read() -> None:
    with noting() as signals:
        signal.raise_signal(signal.SIGTERM)
        first = time.monotonic()
        signal.raise_signal(signal.SIGTERM)
        last = time.monotonic()
        assert first <= signals.read()[signal.SIGTERM] <= last


def test_a_storm_is_one_of_each() -> None:
    storm = [signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD, signal.SIGTTIN]
    with noting() as signals:
        for _ in range(5_000):
            for number in storm:
                os.kill(os.getpid(), number)
        found = signals.read()
        assert len(found) == 4 and set(found) == set(storm)
        assert not signals.read()


def test_a_storm_that_fills_the_pipe_hides_nothing_that_comes_after_it() -> None:
    """Of 100,000 HUPs one may be dropped, but not the TERM behind them."""
    with noting() as signals:
        for _ in range(100_000):
            signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGTERM)
        assert [*signals.read()] == [signal.SIGHUP, signal.SIGTERM]
        signal.raise_signal(signal.SIGTERM)
        assert select.select([signals.descriptor], [], [], 0)[0], "and the next one wakes"
        assert [*signals.read()] == [signal.SIGTERM]
        assert not select.select([signals.descriptor], [], [], 0)[0]


def test_signals_of_another_process_wake_the_loop_and_none_is_lost() -> None:
    def storm() -> int:
        for _ in range(300):
            os.kill(os.getppid(), signal.SIGUSR1)
        os.kill(os.getppid(), signal.SIGTERM)
        return 0

    with noting() as signals:
        child = fork(storm, close=signals.descriptors)
        found: set[signal.Signals] = set()
        # The byte of one that was read already may come late, and wake for nothing.
        deadline = time.monotonic() + 10
        while not {signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD} <= found:
            wait([signals.descriptor], deadline - time.monotonic())
            assert time.monotonic() < deadline, found
            found |= set(signals.read())
        assert child.wait() == ExitStatus(0, 0)


def test_afterwards_no_late_signal_does_anything_any_more() -> None:
    """It would change the exit code of a supervisor that has stopped."""
    with noting():
        pass
    for number in signals.NOTED:
        signal.raise_signal(number)
