"""The preflight, in a child: it imports the database driver and the application, which must never
be in the supervising process. The child writes each check as a line of JSON into a pipe."""

import errno
import json
import math
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict

from cmdbus.clock import time
from cmdbus.exits import Exit
from cmdbus.readiness import Check, Finding
from cmdbus.settings import Settings
from cmdbus.supervisor.children import fork, wait
from cmdbus.supervisor.imports import without_collections
from cmdbus.supervisor.systemd_notifier import clear_notify_env
from cmdbus.timeouts import BOOT_SECONDS

#: Seconds after its deadline at which an alarm ends it.
_ALARM_SECONDS = 1.0
#: Follows the last check: a process that the application has started may keep the pipe open.
_END = b"end"
_NEEDS_PIDFD = "use Linux 5.4 or later, and a seccomp profile that permits pidfd_open"


def run_preflight(
    settings: Settings,
    timeout: float = BOOT_SECONDS,
    *,
    declares: bool = False,
    wake: Sequence[int] = (),
    on_wake: Callable[[], None] = lambda: None,
    close: Iterable[int] = (),
) -> list[Check]:
    """The checks that the preflight makes within `timeout` seconds. `on_wake` is called when one
    of the descriptors `wake` is readable."""
    try:
        preflight = PreflightProcess(settings, timeout, declares=declares, close=close)
    except OSError as error:
        reason = f"cannot start a process ({error.strerror})"
        if error.errno in (errno.ENOSYS, errno.EPERM):
            return [Check("preflight", Finding.FATAL, reason, _NEEDS_PIDFD)]
        # Too many processes or descriptors; for how long is not known.
        return [Check("preflight", Finding.AWAY, reason)]
    with closing(preflight):
        while (checks := preflight.checks()) is None:
            wait([preflight.awaited, *wake], preflight.deadline - time.monotonic())
            on_wake()
        return checks


class PreflightProcess:
    """Starts the preflight; OSError if the system has no process left."""

    def __init__(
        self,
        settings: Settings,
        timeout: float = BOOT_SECONDS,
        *,
        declares: bool = False,
        close: Iterable[int] = (),
    ) -> None:
        """`declares`: a fleet starts, whose limits are declared. `close`: descriptors that the
        child must not keep, nor a daemon that the application starts there."""
        self._settings = settings
        self._timeout = timeout
        self._received = b""
        #: The pipe has ended, perhaps because the application has closed it.
        self._ended = False
        #: Monotonic seconds; from then on `checks` is complete.
        self.deadline = time.monotonic() + timeout
        self.pipe, writer = os.pipe()
        os.set_blocking(self.pipe, False)
        try:
            self.child = fork(
                lambda: _run(settings, writer, timeout, declares), close=[self.pipe, *close]
            )
        except OSError:
            os.close(self.pipe)
            raise
        finally:
            os.close(writer)

    @property
    def awaited(self) -> int:
        """The descriptor that is readable when `checks` may have more."""
        return self.child.descriptor if self._ended else self.pipe

    def checks(self) -> list[Check] | None:
        """All checks, or None while the preflight runs. Never waits for it."""
        ended = self._read()
        lines = self._received.split(b"\n")[:-1]
        checks = [_decoded(line) for line in lines if line != _END]
        if _END in lines:
            return checks
        self._ended = ended
        if ended and (exit_status := self.child.reap()) is not None:
            # No program can prevent a SIGKILL: memory ran out, perhaps for a moment. If its alarm
            # comes before this process has given it up, both were suspended meanwhile.
            killed = exit_status.signal in (signal.SIGKILL, signal.SIGALRM)
            return [*checks, self._broken_off(checks, f"its check {exit_status}", killed, killed)]
        late = time.monotonic() - self.deadline
        if late < 0:
            return None
        what = f"no answer within {self._timeout:g} s"
        return [*checks, self._broken_off(checks, what, late > _ALARM_SECONDS, True)]

    def close(self) -> None:
        """Kills the preflight if it still runs."""
        self.child.kill()
        os.close(self.pipe)

    def _read(self) -> bool:
        """Whether the pipe has ended."""
        try:
            while more := os.read(self.pipe, 65536):
                self._received += more
        except BlockingIOError:
            return False
        return True

    def _broken_off(
        self, checks: list[Check], what: str, in_import: bool = False, after_import: bool = False
    ) -> Check:
        """Whether the cause may pass by itself `in_import` of the application, and after that."""
        if any(check.name == "app" for check in checks):
            sentence = f"{what} after the check of {checks[-1].name}"
            return Check("preflight", Finding.AWAY if after_import else Finding.FATAL, sentence)
        sentence = f"{what} while {self._settings.app} was imported"
        fix = "import it with python -c to see where it waits, exits or crashes"
        return Check("app", Finding.AWAY if in_import else Finding.FATAL, sentence, fix)


def _encoded(check: Check) -> bytes:
    return json.dumps(asdict(check)).encode() + b"\n"


def _decoded(line: bytes) -> Check:
    fields = json.loads(line)
    return Check(**{**fields, "finding": Finding(fields["finding"])})


def _run(settings: Settings, pipe: int, timeout: float, declares: bool) -> int:
    """In the child. An alarm ends it if its parent cannot."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.alarm(math.ceil(timeout + _ALARM_SECONDS))
    clear_notify_env()
    with without_collections():
        from cmdbus.worker.boot.preflight import preflight

    with os.fdopen(pipe, "wb", buffering=0) as lines:
        try:
            for check in preflight(settings, declares=declares):
                lines.write(_encoded(check))
        except OSError as error:  # no descriptor is left, or no memory
            away = f"the checks cannot go on ({error.strerror})"
            lines.write(_encoded(Check("preflight", Finding.AWAY, away)))
        lines.write(_END + b"\n")
    return Exit.DONE
