"""`cmdbus web` as a process."""

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx
import pytest
from cli import CALL, environment_without_ours, here
from configuring import nothing_told as nothing_told
from configuring import settings_of

from cmdbus import CommandBus
from cmdbus.supervisor.cli.configuration import mistyped_variables
from cmdbus.supervisor.cli.supervise import main as supervise
from cmdbus.supervisor.cli.web import web

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
    options = ("--dsn", "host=127.0.0.1 port=1", "--json", "--operator", "ann")
    with page(*options) as (process, url):
        assert process.stderr is not None
        assert "the page shows nothing yet: cannot connect" in process.stderr.readline()
        session = httpx.get(f"{url}api/session", trust_env=False).json()
        assert "cannot connect" in session["away"] and session["operator"] == "ann"
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


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_beyond_this_machine_it_must_know_its_users(dsn: str, host: str) -> None:
    result = here("web", "--dsn", dsn, "--http", f"{host}:0")
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    assert "say with --auth token or --auth header:NAME" in result.stderr


@pytest.mark.process
def test_a_token_is_printed_once_and_is_in_no_list_of_processes(tmp_path: Path) -> None:
    file = tmp_path / "token"
    options = ("--dsn", "host=/nonexistent", "--auth", "token", "--token-file", str(file))
    with page(*options) as (process, url):
        assert process.stdout is not None
        token = process.stdout.readline().removeprefix("token: ").strip()
        assert process.stdout.readline() == f"token file: {file}\n"
        assert file.read_text().strip() == token
        assert token.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        with httpx.Client(base_url=url, trust_env=False, follow_redirects=True) as client:
            assert "Token" in client.get("/").text
            assert client.get("/api/session").status_code == 401
            assert client.post("/sign-in", data={"token": token}).status_code == 200
            assert client.get("/api/session").json()["signs_out"]
            cookie = dict(client.cookies)
    with page(*options) as (process, url):
        assert process.stdout is not None
        assert process.stdout.readline() == f"token file: {file}\n"
        again = url.rpartition(":")[2].strip("/")
        named = {f"cmdbus_web_{again}": value for value in cookie.values()}
        with httpx.Client(base_url=url, trust_env=False, cookies=named) as client:
            assert client.get("/api/session").status_code == 200


@pytest.mark.process
def test_a_proxy_names_the_user_once() -> None:
    header = "X-Forwarded-User"
    options = ("--dsn", "host=/nonexistent", "--auth", f"header:{header}", "--role", "viewer")
    with (
        page(*options) as (_, url),
        httpx.Client(base_url=url, trust_env=False) as client,
    ):
        assert client.get("/").status_code == 403
        session = client.get("/api/session", headers={header: "ann"}).json()
        assert (session["user"], session["acts"]) == ("ann", False)
        assert client.get("/", headers=[(header, "ann"), (header, "eve")]).status_code == 400


def test_it_refuses_what_cannot_be_meant(dsn: str, tmp_path: Path) -> None:
    for auth in ("password", "header:", "header:Cookie", "header:a b"):
        assert here("web", "--dsn", dsn, *LISTEN, "--auth", auth).exit_code == 2
    result = here("web", "--dsn", dsn, *LISTEN, "--token-file", str(tmp_path / "t"))
    assert result.exit_code == 2 and "--token-file is for --auth token" in result.stderr
    file = tmp_path / "token"
    file.write_text("x" * 40)
    file.chmod(0o644)
    options = ("--auth", "token", "--token-file", str(file))
    result = here("web", "--dsn", dsn, *LISTEN, *options)
    assert result.exit_code == 1 and "other users may read" in result.stderr


@pytest.mark.usefixtures("nothing_told")
def test_the_settings_file_has_its_options_next_to_those_of_a_supervisor() -> None:
    file = Path("cmdbus.toml")
    file.write_text("procs = 2\nweb-http = '0.0.0.0:0'\nweb-role = 'viewer'\n")
    assert "other machines can reach 0.0.0.0" in here("web", "--dsn", "host=/nowhere").stderr
    assert settings_of().procs == 2
    file.write_text("web-role = 'root'\n")
    result = here("web", "--dsn", "host=/nowhere")
    assert result.exit_code == 2 and "(from cmdbus.toml)" in result.stderr
    file.write_text("procs = 2\nweb-htp = ':8081'\n")
    assert "did you mean 'web-http'?" in here("web", "--dsn", "host=/nowhere").stderr


def test_its_variables_are_no_mistakes_to_a_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [p.envvar for p in web.params if str(p.envvar).startswith("CMDBUS_WEB_")]
    assert len(names) == 4
    for name in names:
        monkeypatch.setenv(str(name), "x")
    with supervise.make_context("cmdbus-supervise", []) as context:
        assert [*mistyped_variables(context)] == []
