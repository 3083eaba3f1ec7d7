"""The first run: neither an app nor a database is named. Started as a user starts it."""

import json
import os
import re
import shlex
import signal
import subprocess
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest
from cli import SUPERVISE, environment_without_ours, here
from embedded_servers import copy_cluster
from eventually import eventually

from cmdbus import CommandBus
from cmdbus.embedded import EmbeddedPostgres, state_directory
from cmdbus.embedded.programs import find_programs
from cmdbus.errors import SchemaError

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(120)]

START = Path(__file__).resolve().parent.parent / "scripts" / "start"
LADDER = ["--statement-timeout", "1", "--pool-timeout", "2", "--visibility-timeout", "2"]
LADDER += ["--thread-timeout", "2.5", "--watchdog-timeout", "10"]
#: How many commands of each type the demo sends.
SENT = {"Quick": 500, "Slow": 8, "Transfer": 20, "Flaky": 12}
SENT |= dict.fromkeys(["Overdraw", "Mistake", "Later", "Crash", "Hang"], 1)
_WITHIN_S = 45.0


@pytest.fixture
def home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's own."""
    for name in set(os.environ) - set(environment_without_ours()):
        monkeypatch.delenv(name)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home / "run"))
    (home / "run").mkdir(mode=0o700)
    monkeypatch.chdir(home)
    return home


@pytest.fixture
def cluster_at_home(home: Path, cluster: Path) -> Path:
    """As after an earlier run, whose schema is no longer there."""
    directory = state_directory() / f"pg{find_programs().major}"
    directory.parent.mkdir(parents=True)
    copy_cluster(cluster, directory)
    return directory


class Run:
    """`cmdbus-supervise` in a terminal: its output and its foreground group."""

    def __init__(self, home: Path, *arguments: str, command: list[str]) -> None:
        self._out, self._err = home / "out", home / "err"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [*command, *arguments], stdout=out, stderr=err, start_new_session=True
            )

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    @property
    def log(self) -> str:
        return self._err.read_text()

    def prints(self, pattern: str) -> str:
        """The line, as soon as it is there."""

        def look() -> str | None:
            found = re.search(f"^.*{pattern}.*$", self.stdout, re.MULTILINE)
            return found[0] if found else None

        try:
            line = eventually(look, _WITHIN_S)
        except AssertionError as error:
            raise AssertionError(f"no {pattern!r} in: {self.stdout}\n{self.log}") from error
        assert line is not None
        return line

    def interrupt(self) -> int:
        """Ctrl-C, and the exit code."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(_WITHIN_S)


@contextmanager
def running(home: Path, *arguments: str, command: list[str] = SUPERVISE) -> Iterator[Run]:
    run = Run(home, *arguments, command=command)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.interrupt()


def typed(line: str) -> str:
    """What a command prints that was shown to be typed in another terminal."""
    done = subprocess.run(shlex.split(line), capture_output=True, text=True, timeout=_WITHIN_S)
    assert done.returncode == 0, done
    return done.stdout


@pytest.mark.usefixtures("cluster_at_home")
def test_a_newcomer_sees_every_kind_of_command_and_what_to_type_next(home: Path) -> None:
    """And after Ctrl-C nothing is left behind but the database."""
    with running(home, "--procs", "2", "--threads", "4", *LADDER) as demo:
        demo.prints("With handlers and a database of your own")
        cases = {line.split()[1]: line.split(maxsplit=2) for line in demo.stdout.splitlines()[3:12]}
        assert {name: int(count) for name, (count, _, _) in cases.items()} == SENT
        for name, words in (
            ("Transfer", "wrote 20 rows for 20 commands, though 5 failed"),
            ("Overdraw", "a business rule forbids it (LIMIT_EXCEEDED)"),
            ("Mistake", "waits for an operator"),
            ("Crash", "killed its process; ran again alone"),
            ("Hang", "given up after 2.5 s, and completed by another thread"),
        ):
            assert words in cases[name][2]
        assert "545 in all: 542 completed, 1 failed, 2 waiting for an operator" in demo.stdout
        assert len(demo.stdout.splitlines()) < 25
        # Besides that there is only where the database is; nothing that looks like a defect.
        assert len(demo.log.splitlines()) == 2
        assert "the demo, on an embedded PostgreSQL" in demo.log
        shown = dict(re.findall(r"^  (\w.*?)  +(\S*cmdbus .*)$", demo.stdout, re.MULTILINE))
        assert "cmdbus: running" in typed(shown["what runs where"])
        assert re.search(r"Mistake +0 +0 +0 +0 +1", typed(shown["what waits"]))
        assert "demo/Mistake" in typed(shown["what needs an operator"])
        assert "SIGSEGV" in typed(shown["all about one"])
        sent = typed(shown["to see it in ps"].replace("20", "0.1")).strip()
        eventually(lambda: "COMPLETED" in here("get", "demo", sent).stdout)
        assert "Segmentation fault" in (home / "run" / "cmdbus" / "cmdbus.log").read_text()
        page = found[0] if (found := re.search(r"http://\S+", demo.stdout.splitlines()[1])) else ""
        assert "<title>cmdbus" in httpx.get(page, trust_env=False).text
        assert httpx.get(f"{page}api/session", trust_env=False).json()["schema"] == "cmdbus"
        supervisor, _ = psutil.Process(demo.process.pid).children()
        assert "psycopg" not in Path(f"/proc/{supervisor.pid}/maps").read_text()
        assert demo.interrupt() == 0
    assert re.search(r"It ran \d+ executions: 543 completed, 1 failed by a b", demo.stdout)
    # The one that ran the crash alone has a successor only if it is seen to be needed.
    assert re.search(r"It replaced processes: [12] crashed", demo.stdout)
    assert list((home / "run" / "cmdbus").iterdir()) == []
    assert [path for path in home.rglob("*") if path.is_socket()] == []


@pytest.mark.usefixtures("cluster_at_home")
@pytest.mark.skipif(not START.exists(), reason="there is no checkout here")
def test_the_script_runs_the_demo_and_ends_in_the_middle_of_it(home: Path) -> None:
    with running(home, "--procs", "1", "--threads", "2", command=[str(START)]) as demo:
        assert "1 x 2 threads are ready" in demo.prints("the demo: ")
        demo.prints("500 Quick")
        assert demo.interrupt() == 0
    stopping, stopped = (
        demo.stdout.index(text) for text in ("\nStopping: ", "The demo has stopped.")
    )
    assert stopping < stopped
    assert "Hang" not in demo.stdout


@pytest.mark.usefixtures("cluster_at_home")
def test_signals_reach_the_supervisor_once_and_a_second_interrupt_stops_it_immediately(
    home: Path,
) -> None:
    with running(home, "--procs", "1", "--threads", "2") as demo:
        demo.prints("500 Quick")
        demo.process.send_signal(signal.SIGTTIN)
        eventually(lambda: len(json.loads(here("ps", "--json").stdout)["seats"]) == 2, _WITHIN_S)
        with EmbeddedPostgres() as server, CommandBus(server.dsn) as bus:
            id_ = bus.send("demo", "Slow", {"seconds": 20})
        eventually(lambda: str(id_) in here("ps", "--json").stdout, _WITHIN_S)
        os.killpg(demo.process.pid, signal.SIGINT)
        demo.prints(r"Stopping: waiting for \d commands?, at most 30 s")

        def stops_immediately() -> bool:
            os.killpg(demo.process.pid, signal.SIGINT)
            return "Stopping at once: what runs is cut off" in demo.stdout

        eventually(stops_immediately)
        assert demo.process.wait(_WITHIN_S) == 5
    assert "exited with code 5: its log is in" in demo.log
    assert "ERROR" not in demo.log, "as the user has ordered it"


def test_ctrl_c_while_the_demo_is_still_imported_ends_it_with_a_sentence(home: Path) -> None:
    with running(home) as demo:
        program = Path(f"/proc/{demo.process.pid}/cmdline")
        eventually(lambda: b"cmdbus.worker.demo.program" in program.read_bytes())
        assert demo.interrupt() == 0
    assert demo.log.splitlines()[-1].endswith("stopped by a signal before the fleet was started")
    assert "Traceback" not in demo.log


@pytest.mark.usefixtures("cluster_at_home")
def test_a_demo_ends_with_the_terminal_that_it_was_started_in(home: Path) -> None:
    """And an ordinary HUP reloads its fleet."""
    controller, terminal = (os.fdopen(end, "rb", buffering=0) for end in os.openpty())
    # The leader of a session gets the terminal that it opens.
    shell = ["/bin/sh", "-c", f'exec "$@" <{os.ttyname(terminal.fileno())}', "sh"]
    options = ["--procs", "1", "--threads", "2"]
    with controller, terminal, running(home, *options, command=[*shell, *SUPERVISE]) as demo:
        demo.prints("500 Quick")
        demo.process.send_signal(signal.SIGHUP)
        log = home / "run" / "cmdbus" / "cmdbus.log"
        eventually(
            lambda: "worker 0 starts, pid" in log.read_text().partition("reload")[2], _WITHIN_S
        )
        controller.close()
        terminal.close()
        assert demo.process.wait(_WITHIN_S) == 0
    assert "The demo has stopped." in demo.stdout


@pytest.mark.usefixtures("cluster_at_home")
def test_the_death_of_the_demo_stops_its_supervisor_and_a_closed_stdout_does_not(
    home: Path,
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [*SUPERVISE, "--procs", "1", "--threads", "2"]
    with subprocess.Popen(arguments, stdout=writer, stderr=subprocess.DEVNULL) as demo:
        os.close(writer)
        eventually(lambda: "COMPLETED" in here("list", "demo").stdout, _WITHIN_S)
        started = psutil.Process(demo.pid).children(recursive=True)
        assert any("cmdbus.worker.demo.page" in process.cmdline() for process in started)
        assert "--thread-timeout 4" in " ".join(started[0].cmdline())
        demo.kill()
    assert len(started) > 2
    assert psutil.wait_procs(started, _WITHIN_S)[1] == []


@pytest.mark.usefixtures("cluster_at_home")
def test_a_killed_supervisor_ends_the_demo_which_names_its_log(home: Path) -> None:
    with running(home, "--procs", "1", "--threads", "2") as demo:
        demo.prints("500 Quick")
        supervisor, _ = psutil.Process(demo.process.pid).children()
        supervisor.kill()
        assert demo.process.wait(_WITHIN_S) == 128 + signal.SIGKILL
    with EmbeddedPostgres():
        pass  # The processes of the fleet die last, as users of the server: its next user stops it.
    log = home / "run" / "cmdbus" / "cmdbus.log"
    assert f"supervisor was killed by SIGKILL: its log is in {log}" in demo.log


def test_a_command_without_a_dsn_uses_an_embedded_server_only_if_one_is_running(
    home: Path,
) -> None:
    def refused() -> None:
        done = here("status")
        assert (done.exit_code, done.stdout) == (2, "")
        assert "no database is named, and no embedded PostgreSQL is running here" in done.stderr

    refused()
    assert not (home / "state").exists()
    assert "installed, version" in here("init", "--embedded").stdout
    refused()
    with EmbeddedPostgres():
        assert here("status").stdout == "nothing waits, nothing runs\n"
    Path("cmdbus.toml").write_text("embedded = true\n")
    assert here("status").stdout == "nothing waits, nothing runs\n"
    Path("cmdbus.toml").write_text("embedded = 'yes'\n")
    assert "cmdbus.toml: 'embedded' must be true or false" in here("status").stderr


def test_each_command_with_embedded_installs_the_schema_on_a_fresh_server(home: Path) -> None:
    done = here("send", "payments", "DebitAccount", "--embedded")
    assert (done.exit_code, done.stderr) == (0, "")
    with EmbeddedPostgres() as server:
        with CommandBus(server.dsn) as bus:
            assert len(bus.query("payments")) == 1
        for number, command in enumerate(["list", "status", "check", "tsq list", "domain list"]):
            options = ["--embedded", "--schema", f"fresh_{number}"]
            assert here(*command.split(), *options).exit_code == 0, command


def test_a_missing_schema_is_an_error_that_shows_none_of_the_driver(empty_dsn: str) -> None:
    with CommandBus(empty_dsn) as bus, pytest.raises(SchemaError) as missing:
        bus.send("payments", "DebitAccount")
    assert "psycopg" not in "".join(traceback.format_exception(missing.value))
    assert "cmdbus init --embedded" in str(missing.value) and "DSN" not in str(missing.value)


@pytest.mark.usefixtures("cluster_at_home")
def test_a_stale_database_is_reported_in_one_sentence(home: Path) -> None:
    with EmbeddedPostgres(durable=False) as server, psycopg.connect(server.dsn) as connection:
        connection.execute(
            "CREATE SCHEMA cmdbus; CREATE TABLE cmdbus.migration (version int, name text);"
            "INSERT INTO cmdbus.migration VALUES (1, 'migration_0001_tables')"
        )
    with running(home) as demo:
        assert demo.process.wait(_WITHIN_S) == 3
    assert demo.stdout == ""
    *_, last = demo.log.splitlines()
    assert len(demo.log.splitlines()) == 3
    assert "made by another build of cmdbus" in last
    assert last.endswith(f"rm -r {server.directory}")


def test_a_database_without_an_app_is_no_demo(home: Path, dsn: str) -> None:
    with running(home, "--dsn", dsn) as refused:
        assert refused.process.wait(_WITHIN_S) == 3
    assert refused.stdout == ""
    (line,) = refused.log.splitlines()
    assert "there are no handlers to run: name them with --app MODULE:REGISTRY" in line
