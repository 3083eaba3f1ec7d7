"""The operators' page as a process of its own: `cmdbus web`."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_PROGRAM = "from cmdbus.supervisor.cli.operate import main; main()"
_START_S, _STOP_S, _POLL_S = 30.0, 10.0, 0.01


class PageServer:
    def __init__(self, process: "subprocess.Popen[bytes]", output: Path) -> None:
        self.process = process
        self._file = output

    @property
    def output(self) -> str:
        return self._file.read_text()

    def await_address(self) -> str:
        deadline = time.monotonic() + _START_S
        while not (found := re.search(r"https?://[\w.:\[\]-]+", self.output)):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the page has not started: {self.output}")
            time.sleep(_POLL_S)
        return found[0]


@contextmanager
def page_server(
    dsn: str, output: Path, *options: str, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[str, PageServer]]:
    """Its address, at a free port, and its process. Raises RuntimeError if it does not end well."""
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("CMDBUS_")}
    with output.open("ab") as stream:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, "web", "--http", "127.0.0.1:0", *options],
            env={**inherited, **(environment or {}), "CMDBUS_DSN": dsn},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
    server = PageServer(process, output)
    try:
        yield server.await_address(), server
        process.terminate()
        if process.wait(_STOP_S):
            raise RuntimeError(f"the page has ended with {process.returncode}: {server.output}")
    finally:
        process.kill()
        process.wait()
