"""The preflight, in a child of its own: what it loads, a driver and the user's code, must
never be in the supervising process."""

import json
import math
import os
import select
import signal
import traceback
from dataclasses import asdict
from types import TracebackType
from typing import NoReturn, Self

from cmdbus.clock import time
from cmdbus.readiness import Check, Finding
from cmdbus.settings import Settings
from cmdbus.supervisor.children import die_with, flush
from cmdbus.supervisor.systemd_notifier import clear_notify_env

#: Connecting may take 10 s, and importing a large app as long.
TIMEOUT = 60.0
_END = b"end"


def run_preflight(settings: Settings, timeout: float = TIMEOUT) -> list[Check]:
    """What preflight finds, within `timeout` seconds."""
    with PreflightProcess(settings, timeout) as running:
        while (checks := running.checks()) is None:
            select.select([running], [], [], max(0.0, running.deadline - time.monotonic()))
        return checks


class PreflightProcess:
    """One that runs; OSError if none can be started. Its `fileno` is readable when `checks`
    may have more to say."""

    def __init__(self, settings: Settings, timeout: float = TIMEOUT) -> None:
        self._settings = settings
        self._timeout = timeout
        self._received = b""
        #: Monotonic; after it `checks` has something to say in any case.
        self.deadline = time.monotonic() + timeout
        flush()
        self._pipe, writing = os.pipe()
        os.set_blocking(self._pipe, False)
        parent = os.getpid()
        try:
            self._pid: int | None = os.fork()
        except OSError:
            os.close(self._pipe)
            os.close(writing)
            raise
        if self._pid == 0:
            os.close(self._pipe)
            die_with(parent)
            _run(settings, writing, timeout)
        os.close(writing)

    @property
    def pid(self) -> int | None:
        """None once it has been reaped."""
        return self._pid

    def fileno(self) -> int:
        return self._pipe

    def checks(self) -> list[Check] | None:
        """All that it found, or None while it is at work. Never waits."""
        ended = self._read()
        lines = self._received.split(b"\n")[:-1]
        found = [_decoded(line) for line in lines if line != _END]
        if _END in lines:
            return found
        if ended:
            return [*found, self._broken_off(found, f"its check {self._reap()}")]
        if time.monotonic() < self.deadline:
            return None
        return [*found, self._broken_off(found, f"no answer within {self._timeout:g} s", away=True)]

    def close(self) -> None:
        """Kills it if it still runs."""
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            self._reap()
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self) -> bool:
        """Whether the child has nothing more to say."""
        try:
            while more := os.read(self._pipe, 65536):
                self._received += more
        except BlockingIOError:
            return False
        return True

    def _reap(self) -> str:
        assert self._pid is not None
        pid, self._pid = self._pid, None
        try:
            _, status = os.waitpid(pid, 0)
        except ChildProcessError:  # whoever reaps strangers was first
            return "ended"
        code = os.waitstatus_to_exitcode(status)
        return f"ended with code {code}" if code >= 0 else f"died of {signal.Signals(-code).name}"

    def _broken_off(self, found: list[Check], what: str, *, away: bool = False) -> Check:
        """`away`: it may pass by itself, unless it is the application's."""
        if _has_app(found):
            sentence = f"{what} after the check of {found[-1].name}"
            return Check("preflight", Finding.AWAY if away else Finding.FATAL, sentence)
        sentence = f"{what} while {self._settings.app} was imported"
        fix = "import it with python -c to see where it waits, exits or crashes"
        return Check("app", Finding.FATAL, sentence, fix)


def _has_app(found: list[Check]) -> bool:
    return any(check.name == "app" for check in found)


def _decoded(line: bytes) -> Check:
    told = json.loads(line)
    return Check(**{**told, "finding": Finding(told["finding"])})


def _run(settings: Settings, pipe: int, timeout: float) -> NoReturn:
    code = 1
    try:
        _be_ordinary(timeout)
        from cmdbus.worker.boot.preflight import preflight

        for check in preflight(settings):
            _write(pipe, json.dumps(asdict(check)).encode() + b"\n")
        _write(pipe, _END + b"\n")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        flush()
        os._exit(code)


def _be_ordinary(timeout: float) -> None:
    """Signals do what they do in any process, and nobody is left if the parent is killed."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.alarm(math.ceil(timeout) + 1)
    clear_notify_env()


def _write(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]
