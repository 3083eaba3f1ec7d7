"""The check of the application and its database by a child of the supervisor, and by commands."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from contextlib import closing
from errno import ENOSYS, EPERM
from pathlib import Path

import pytest
from cli import cmdbus, supervise
from forbidden_calls import PIDFD_OPEN, forbid
from forks import result_of_child
from guarded import SECRET

from cmdbus.readiness import Check, Finding, worst
from cmdbus.settings import Settings
from cmdbus.supervisor.preflight_process import PreflightProcess, run_preflight

pytestmark = pytest.mark.process

OK, _, AWAY, FATAL = Finding


APP = """
import os, signal, threading
from cmdbus import HandlerRegistry
registry = HandlerRegistry()
registry.register("payments", "Debit", lambda command, context: None, timeout=90.0)
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "shop_checked.py").write_text(APP)
    return tmp_path / "shop_checked.py"


def in_child(dsn: str, timeout: float = 20.0, **changes: object) -> dict[str, Check]:
    settings = Settings(**{"app": "shop_checked:registry", **changes, "dsn": dsn})  # type: ignore[arg-type]
    return {check.name: check for check in run_preflight(settings, timeout)}


def test_the_app_is_loaded_and_its_mistakes_are_found_in_the_child(app: Path, dsn: str) -> None:
    found = in_child(dsn)
    assert worst(found.values()) is OK
    assert found["app"].sentence == "shop_checked:registry: 1 handler, domains payments"
    wrong = in_child(dsn, domains=("paymets",))["app"]
    assert (wrong.finding, "did you mean 'payments'?" in wrong.sentence) == (FATAL, True)
    app.write_text(APP + "1 / 0\n")
    broken = in_child(dsn)
    assert (broken["app"].finding, "ZeroDivisionError" in str(broken["app"])) == (FATAL, True)
    assert broken["listen"].finding is OK
    assert "shop_checked" not in sys.modules


def test_an_app_that_hangs_or_dies_while_it_is_imported_is_named(
    app: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for line, finding, text in (
        ("threading.Event().wait()", FATAL, "no answer within 1 s"),
        (
            "os.closerange(3, 99); signal.alarm(0); threading.Event().wait()",
            FATAL,
            "no answer within 1 s",
        ),
        # Perhaps for lack of memory: then a start must not be given up for good.
        ("os.kill(os.getpid(), signal.SIGKILL)", AWAY, "its check was killed by SIGKILL"),
        # Its own alarm: both processes were suspended beyond the deadline.
        (
            "signal.signal(signal.SIGALRM, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGALRM)",
            AWAY,
            "its check was killed by SIGALRM",
        ),
        # Without pytest's handler of crashes, which writes to the terminal.
        (
            "import faulthandler; faulthandler.disable(); os.abort()",
            FATAL,
            "its check was killed by SIGABRT",
        ),
        ("os._exit(7)", FATAL, "its check exited with code 7"),
    ):
        app.write_text(APP + line + "\n")
        # On a busy machine to import the rest takes longer than a second.
        timeout = 1.0 if "no answer" in text else 20.0
        for _ in range(3):  # If both were suspended for a second, it is repeated.
            found = in_child("host=127.0.0.1 port=1", timeout=timeout)["app"]
            if found.finding is finding:
                break
        assert found.fix and found.finding is finding
        assert f"{text} while shop_checked:registry was imported" in found.sentence
    capfd.readouterr()


def test_a_check_that_was_suspended_together_with_its_supervisor_is_repeated(app: Path) -> None:
    app.write_text(APP + "threading.Event().wait()\n")
    settings = Settings(app="shop_checked:registry", dsn="host=127.0.0.1 port=1")
    with closing(PreflightProcess(settings)) as preflight:
        preflight.deadline = time.monotonic() - 2
        [found] = preflight.checks() or []
    assert (found.name, found.finding) == ("app", AWAY)


def test_a_low_limit_on_open_files_is_warned_of(app: Path, dsn: str) -> None:
    """That of the application, if it sets one."""
    app.write_text(
        f"{APP}import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n"
    )
    assert "files" not in in_child(dsn, threads=100)
    found = in_child(dsn, procs=300)["files"]
    assert found.finding is Finding.WARNING
    assert "256 files at a time, and one of this fleet needs 324" in found.sentence


def test_a_lack_of_descriptors_is_waited_for(
    app: Path, dsn: str, capfd: pytest.CaptureFixture[str]
) -> None:
    narrow = (
        "n = os.dup(0); os.close(n); resource.setrlimit(resource.RLIMIT_NOFILE, (n + 1, n + 1))"
    )
    app.write_text(f"{APP}import resource\n{narrow}\n")
    found = in_child(dsn)["preflight"]
    assert found.finding is AWAY
    assert found.sentence == "the checks cannot go on (Too many open files)"
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("error", [ENOSYS, EPERM])
def test_a_system_on_which_no_process_can_be_watched_is_refused(app: Path, error: int) -> None:
    def check() -> str:
        forbid(PIDFD_OPEN, error)
        [check] = run_preflight(Settings(app="shop_checked:registry"))
        return f"{check.finding}: {check.sentence}; {check.fix}"

    assert result_of_child(check) == (
        f"fatal: cannot start a process ({os.strerror(error)}); "
        f"use Linux 5.4 or later, and a seccomp profile that permits pidfd_open"
    )


def test_a_database_that_hangs_is_waited_for(app: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dsn = f"host=127.0.0.1 port={silent.getsockname()[1]} sslmode=disable"
        settings = Settings(app="shop_checked:registry", dsn=dsn)
        with closing(PreflightProcess(settings, 20.0)) as preflight:
            silent.settimeout(20)
            with silent.accept()[0]:
                assert preflight.checks() is None
                preflight.deadline = time.monotonic()
                [_, found] = preflight.checks() or []
    assert found.finding is AWAY
    assert found.sentence == "no answer within 20 s after the check of app"


def test_check_prints_each_setting_and_each_check_and_exits_0_or_3(app: Path, dsn: str) -> None:
    """An exit code that says that it cannot start."""
    where = f"{dsn} password={SECRET}"
    small = ("--check", "--procs", "1", "--threads", "2", "--dsn", where, "--runtime-dir", "run")
    done = supervise(*small, "--app", "shop_checked:registry")
    assert done.returncode == 0, done
    settings, found = done.stdout.split("\n\n")
    assert re.search(r"^procs +1  \(--procs\)$", settings, re.MULTILINE)
    assert re.search(r"^dsn +\(not shown\)  \(--dsn\)$", settings, re.MULTILINE)
    assert [line.split()[:2] for line in found.splitlines()] == [
        ["ok", f"{name}:"]
        for name in (
            *("name", "app", "connection", "server", "encoding", "pooling", "schema"),
            *("claim", "timeouts", "handlers", "connections", "listen"),
        )
    ]
    failed = supervise(*small, "--app", "shop_checked:regisrty", "--http", "0.0.0.0:80")
    assert failed.returncode == 3
    assert "fatal    app: module 'shop_checked' has no 'regisrty': did you mean" in failed.stdout
    assert "warning  http: any client that reaches http://0.0.0.0:80 can read" in failed.stdout
    away = supervise("--check", "--dsn", f"host=127.0.0.1 port=1 password={SECRET}")
    assert away.returncode == 3
    assert "fatal  app: there are no handlers to run: name them with --app" in away.stdout
    assert "away   connection: cannot connect to" in away.stdout
    assert SECRET not in done.stdout + done.stderr + failed.stdout + away.stdout + away.stderr


def test_the_operators_command_checks_the_same(dsn: str, app: Path) -> None:
    small = ("--app", "shop_checked:registry", "--procs", "1", "--threads", "2")
    done, away = (
        cmdbus("check", "--json", "--dsn", where, *small)
        for where in (dsn, f"host=127.0.0.1 port=1 password={SECRET}")
    )
    assert (done.returncode, away.returncode) == (0, 3)
    found = json.loads(done.stdout)
    assert {"name": "procs", "value": 1, "source": "--procs"} in found["settings"]
    values = {each["name"]: each["value"] for each in found["settings"]}
    assert (values["thread-timeout"], values["embedded"], values["max-rss"]) == (35, False, None)
    assert values["dsn"] == "(not shown)"
    assert {check["finding"] for check in found["checks"]} <= {"ok", "warning"}
    assert all(all(check.values()) for check in found["checks"]), "nothing empty"
    assert [check["types"] for check in found["checks"] if "types" in check] != []
    assert [c["finding"] for c in json.loads(away.stdout)["checks"]][-1] == "away"
    assert SECRET not in away.stdout + away.stderr


def test_the_parent_of_the_checks_loads_no_database_driver(app: Path) -> None:
    script = (
        "import sys; from cmdbus.settings import Settings;"
        "from cmdbus.supervisor.preflight_process import run_preflight;"
        "run_preflight(Settings(app='shop_checked:registry', dsn='host=127.0.0.1 port=1'));"
        "print([m for m in sys.modules if m.startswith(('psycopg', 'shop_checked'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=20
    )
    assert done.stdout.strip() == "[]"
