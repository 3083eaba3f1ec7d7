"""`--reload`: the fleet reloads when a Python file of the application changes."""

import os
from contextlib import closing
from pathlib import Path

import pytest
from cli import supervise
from eventually import eventually
from fleet import Fleet, write_app

from cmdbus.supervisor.app_files import AppFiles, is_watched
from cmdbus.supervisor.source_watch import at_import, difference

HANDLERS = """
from fleet_app import registry as registry
from cmdbus import HandlerRegistry

def answer():
    return {answer}
"""
HANGING = """
import os, pathlib, time
pathlib.Path(f"hangs.{os.getpid()}").touch()
time.sleep(1000)
"""
APP = """
from parts.handlers import answer, registry as registry

@registry.handler("shop", "Ask")
def ask(command, context):
    return answer()
"""


def write(path: Path, text: str) -> None:
    """At once, as editors do: a file that is made empty first has changed twice."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def answers(fleet: Fleet) -> list[object]:
    """What the next command returns."""
    [sent] = fleet.send("Ask")
    fleet.await_completed([sent])
    return [
        row[0]
        for row in fleet.query("SELECT result FROM cmdbus.command WHERE command_id = %s", sent)
    ]


@pytest.mark.fleet(started=False, procs=1, reload=True)
def test_a_changed_file_reloads_the_fleet_and_a_broken_one_does_not(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Also a module of a package, also after it could not be imported, or its import hung."""
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / "__init__.py").touch()
    handlers = parts / "handlers.py"
    handlers.write_text(HANDLERS.format(answer=1))
    write_app(tmp_path, APP)
    fleet.start()
    pids = fleet.wait_until_ready()
    assert answers(fleet) == [1]
    write(handlers, "this is no Python")
    fleet.await_saying("not reloaded, the fleet goes on as it is: app: importing shop failed")
    assert fleet.pids() == pids
    assert answers(fleet) == [1]
    write(handlers, HANGING)
    # In the process that watches, and in the one that checks the application.
    eventually(lambda: len([*tmp_path.glob("hangs.*")]) == 2, 30)
    write(handlers, HANDLERS.format(answer=22))
    fleet.await_successors(pids.values())
    assert answers(fleet) == [22]
    assert fleet.logged("has changed") == [f"{handlers} has changed"] * 3


@pytest.mark.process
def test_files_are_found_while_an_import_hangs_and_if_their_names_are_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / os.fsdecode(b"\xff")
    place.mkdir()
    for name, text in (("hanging", "import time; time.sleep(1000)"), ("shop", "import hanging")):
        (place / f"{name}.py").write_text(text)
    monkeypatch.chdir(place)
    found: set[Path] = set()
    reader, writer = os.pipe()
    os.close(reader)
    with closing(AppFiles("shop:registry", writer)) as files:
        eventually(lambda: found.update(files.read()) or len(found) > 1, 30)  # type: ignore[func-returns-value]
    os.close(writer)
    assert {place / "shop.py", place / "hanging.py"} <= found


def test_only_files_that_a_developer_changes_are_watched(tmp_path: Path) -> None:
    import click

    import cmdbus

    watched = [tmp_path / "shop.py", Path(__file__)]
    others = [click.__file__, cmdbus.__file__, os.__file__, "shop.py", str(tmp_path / "x.so")]
    assert [is_watched(file) for file in watched] == [True, True]
    assert [is_watched(Path(str(file))) for file in others] == [False] * len(others)


def test_a_file_is_changed_if_it_is_written_made_or_removed() -> None:
    a, b, c, d = (Path(name) for name in "abcd")
    before = {a: 1, b: 2, c: None}
    assert difference(before, {a: 1, b: 2, c: None}) == set()
    assert difference(before, {a: 1, b: 3, d: None}) == {b, c, d}


def test_a_file_that_is_written_while_it_is_imported_has_changed() -> None:
    a, b = Path("a"), Path("b")
    now = {a: 5, b: 8}
    assert difference(at_import(now, [a, b], since=5), now) == {b}


def test_reload_is_refused_where_nothing_runs_or_no_app_is_named() -> None:
    for arguments, sentence in (
        (["--app", "shop:registry", "--check"], "--reload is for a fleet that runs"),
        ([], "--reload watches the files of an app: name it with --app"),
    ):
        done = supervise("--reload", *arguments)
        assert done.returncode == 2 and sentence in done.stderr
