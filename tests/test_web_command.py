"""`cmdbus web` as a process."""

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import httpx
import pytest
from cli import CALL, environment_without_ours, here

from cmdbus import CommandBus

LISTEN = ("--http", "127.0.0.1:0")


@contextmanager
def page(*options: str, **environment: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """The process and its address."""
    command = [sys.executable, "-c", CALL, "web", *LISTEN, *options]
    pipe = subprocess.PIPE
    given = {**environment_without_ours(), **environment}
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=given) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http://[^\s\"]+/", line)
            assert found is not None, (line, _rest(process.stderr))
            yield process, found[0]
        finally:
            process.kill()


def _rest(stream: IO[str] | None) -> str:
    return "" if stream is None else stream.read()


@pytest.mark.process
def test_it_serves_the_page_and_stops_at_a_signal(dsn: str, bus: CommandBus) -> None:
    bus.send("mail", "Greet")
    with (
        page("--dsn", dsn) as (process, url),
        httpx.Client(base_url=url, trust_env=False, timeout=10) as client,
    ):
        assert client.get("/").status_code == 200
        session = client.get("/api/session").json()
        assert session["acts"] and session["live"] == "events"
        with client.stream("GET", "/api/live?view=none") as stream:
            assert next(stream.iter_lines()) == "event: failed"
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
            assert time.monotonic() - began < 3
        assert _rest(process.stdout) == _rest(process.stderr) == ""


@pytest.mark.process
def test_it_starts_while_the_database_is_away_and_says_so() -> None:
    with page("--dsn", "host=127.0.0.1 port=1") as (process, url):
        assert process.stderr is not None
        assert "the page shows nothing yet: cannot connect" in process.stderr.readline()
        assert "cannot connect" in httpx.get(f"{url}api/session", trust_env=False).json()["away"]
        assert httpx.get(url, trust_env=False).status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0


def test_a_port_that_is_taken_is_one_sentence(dsn: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = here("web", "--dsn", dsn, "--http", address)
    assert result.exit_code == 1
    assert result.stderr == (
        f"Error: cannot listen on {address} (--http): the port is taken by another process\n"
    )


def test_wrong_options_are_usage_errors(dsn: str) -> None:
    for options in (["--http", "x"], ["--role", "root"], ["--operator", " "]):
        assert here("web", "--dsn", dsn, *LISTEN, *options).exit_code == 2


@pytest.mark.process
def test_it_prints_json_for_programs() -> None:
    with page("--dsn", "host=/nonexistent", "--json", "--operator", "ann") as (process, url):
        assert httpx.get(f"{url}api/session", trust_env=False).json()["operator"] == "ann"
        process.terminate()
