"""A fleet of `cmdbus-supervise` in processes of its own, with an application that a test
writes, and what it answers over HTTP."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from eventually import eventually

_STARTS_WITHIN_S = 20.0
_STOPS_WITHIN_S = 15.0


class Fleet:
    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, place: Path) -> None:
        self.process = process
        self.log = log
        self.place = place

    @property
    def port(self) -> int:
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.log.read_text())
        assert found, self.log.read_text()
        return int(found[1])

    def get(self, path: str, timeout: float = 10.0) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def status(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.get("/status")[1])
        return told

    def workers(self) -> list[int]:
        return [seat["pid"] for seat in self.status()["seats"] if seat["pid"]]

    def steward(self) -> int:
        """0 while there is none."""
        return self.status()["steward"]["pid"] or 0

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return "the fleet is ready" in self.log.read_text() and self.get("/readyz")[0] == 200


@contextmanager
def fleet(dsn: str, place: Path, app: str, *arguments: str) -> Iterator[Fleet]:
    """`app`: a module that makes a `registry`. Ready when the test gets it, and gone after."""
    (place / "app_of_test.py").write_text(app)
    log = place / "log"
    command = [str(Path(sys.executable).parent / "cmdbus-supervise")]
    told = ["--app", "app_of_test:registry", "--dsn", dsn, "--runtime-dir", str(place / "run")]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, *told, "--http", "127.0.0.1:0", *arguments],
            cwd=place,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in os.environ.items() if "CMDBUS" not in name},
        )
    fleet = Fleet(process, log, place)
    try:
        eventually(fleet.is_ready, _STARTS_WITHIN_S)
        yield fleet
    finally:
        _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Whatever became of its children."""
    children = psutil.Process(process.pid).children(recursive=True) if _runs(process) else []
    for child in children:
        if child.is_running():
            child.send_signal(signal.SIGCONT)
    if _runs(process):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOPS_WITHIN_S)
    except subprocess.TimeoutExpired:
        for child in children:
            if child.is_running():
                child.kill()
        process.kill()
        process.wait()
        raise


def _runs(process: "subprocess.Popen[bytes]") -> bool:
    return process.poll() is None
