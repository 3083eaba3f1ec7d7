"""The operators' page of the demo: a process of its own, which ends with the demo.

The demo listens before that process has started, so that the address can be printed at once.
"""

import os
import signal
import socket
import sys
from contextlib import closing, suppress
from pathlib import Path
from types import FrameType

from cmdbus.logs import set_up
from cmdbus.producer.bus import CommandBus
from cmdbus.settings import Settings
from cmdbus.supervisor.children import Child, fork, wait
from cmdbus.supervisor.cli.options import login_name

_PROGRAM = ["-P", "-m", "cmdbus.worker.demo.page"]
_DSN = "CMDBUS_DSN"
_STDERR = 2
#: Seconds for requests that run when the demo ends, and for the process after that.
_STOP_SECONDS, _END_SECONDS = 0.5, 2.0


class DemoPage:
    def __init__(self) -> None:
        """At a free port of this machine; OSError where there is none."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        self._process: Child | None = None

    @property
    def pids(self) -> list[int]:
        return [] if self._process is None else [self._process.pid]

    def start(self, dsn: str, settings: Settings, log: Path | None) -> None:
        """While this process has one thread."""
        self._process = fork(
            lambda: self._run(dsn, settings, log), close=(), orphaned=signal.SIGKILL
        )
        self._listener.close()

    def _run(self, dsn: str, settings: Settings, log: Path | None) -> int:
        """In the child."""
        if log is not None:
            with suppress(OSError):
                os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW), _STDERR)
        descriptor = self._listener.fileno()
        os.set_inheritable(descriptor, True)
        os.environ[_DSN] = dsn
        options = [str(descriptor), settings.schema, settings.log_format, settings.log_level]
        os.execv(sys.executable, [sys.executable, *_PROGRAM, *options])

    def stop(self) -> None:
        """Returns once it has ended."""
        self._listener.close()
        if self._process is not None:
            self._process.send(signal.SIGTERM)
            wait([self._process.descriptor], _END_SECONDS)
            self._process.kill()


def main() -> None:
    from cmdbus.database.dsn import with_defaults
    from cmdbus.web import application
    from cmdbus.web.http.server import Server
    from cmdbus.web.serving import DSN_DEFAULTS

    descriptor, schema, log_format, log_level = sys.argv[1:]
    set_up(log_format, log_level)
    dsn = with_defaults(os.environ[_DSN], **DSN_DEFAULTS)
    with (
        CommandBus(dsn, schema=schema) as bus,
        closing(application(bus, operator=login_name())) as page,
    ):
        server = Server(socket.socket(fileno=int(descriptor)), page)

        def stop(number: int, frame: FrameType | None) -> None:
            server.ask_to_stop(_STOP_SECONDS)

        signal.signal(signal.SIGTERM, stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        server.run()


if __name__ == "__main__":
    main()
