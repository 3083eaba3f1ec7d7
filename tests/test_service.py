"""The unit for systemd and the manifest for Kubernetes that are given to users."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cmdbus.exits import Exit
from cmdbus.settings import Settings
from cmdbus.supervisor.cli.configuration import configured
from cmdbus.supervisor.cli.supervise import main

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
UNIT = SCRIPTS / "systemd" / "cmdbus@.service"
MANIFEST = SCRIPTS / "kubernetes" / "cmdbus.yaml"
#: What is worse than this (of 100) is not as closed as it was made.
_EXPOSURE = "20"

pytestmark = pytest.mark.skipif(not UNIT.exists(), reason="there is no checkout here")
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine"
)


def value(name: str) -> str:
    """The last of that name in the unit."""
    return str(re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)[-1])


def variables() -> set[str]:
    names = set()
    for parameter in main.params:
        given = parameter.envvar or ()
        names |= {given} if isinstance(given, str) else set(given)
    return names


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """A copy whose program is there."""
    program = Path(sys.executable).parent / "cmdbus-supervise"
    assert program.exists()
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/usr/local/bin/cmdbus-supervise", str(program)))
    return copy


def analyze(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, timeout=25
    )


@needs_systemd
def test_systemd_verifies_the_unit_without_a_warning(unit: Path) -> None:
    """A key that it does not know is only a line on stderr, with exit code 0."""
    done = analyze("verify", "--man=no", str(unit))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    unit.write_text(unit.read_text().replace("WatchdogSec=", "WatchdogSecc="))
    assert "WatchdogSecc" in analyze("verify", "--man=no", str(unit)).stderr


@needs_systemd
def test_the_unit_is_closed_to_what_workers_do_not_need(unit: Path) -> None:
    level = ("security", "--offline=true", f"--threshold={_EXPOSURE}")
    assert analyze(*level, str(unit)).returncode == 0
    open_unit = unit.read_text().replace("ProtectSystem=strict\n", "").replace("User=cmdbus\n", "")
    unit.write_text(open_unit)
    assert analyze(*level, str(unit)).returncode != 0


def test_the_unit_agrees_with_the_program() -> None:
    """What a restart would find again is not restarted."""
    assert int(value("TimeoutStopSec")) > Settings().drain_timeout
    assert value("RestartPreventExitStatus").split() == ["2", str(int(Exit.CANNOT_START))]
    assert value("Type") == "notify"
    assert (value("Restart"), value("KillMode"), value("NotifyAccess")) == (
        "always",
        "mixed",
        "main",
    )
    assert value("ExecReload") == "/bin/kill -HUP $MAINPID"
    assert int(value("WatchdogSec")) > 0
    named = set(re.findall(r"\bCMDBUS_[A-Z_]+(?==)", UNIT.read_text()))
    assert {"CMDBUS_NAME", "CMDBUS_RUNTIME_DIR", "CMDBUS_DSN"} <= named <= variables()


def test_the_manifest_is_started_as_it_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CMDBUS_DSN", "postgresql://fleet@db/shop")  # As from its secret.
    text = MANIFEST.read_text()
    (runtime_dir,) = re.findall(r"name: CMDBUS_RUNTIME_DIR\n +value: (\S+)\n", text)
    monkeypatch.setenv("CMDBUS_RUNTIME_DIR", runtime_dir)
    arguments = re.findall(r"^ +- (--\S+)$", text, re.MULTILINE)
    with main.make_context("cmdbus-supervise", arguments) as context:
        settings = configured(context)
    assert (settings.procs, settings.threads) == (4, 8)
    (port,) = re.findall(r"containerPort: (\d+)", text)
    assert settings.http == ("0.0.0.0", int(port))
    (grace,) = re.findall(r"terminationGracePeriodSeconds: (\d+)", text)
    assert int(grace) > settings.drain_timeout
    assert set(re.findall(r"name: (CMDBUS_\w+)", text)) <= variables()
    paths = re.findall(r"(\w+)Probe:\n +httpGet:\n +path: (\S+)\n +port: http$", text, re.MULTILINE)
    assert paths == [("startup", "/livez"), ("liveness", "/livez"), ("readiness", "/readyz")]
    mount = str(settings.runtime_dir and settings.runtime_dir.parent)
    assert f"mountPath: {mount}\n" in text
