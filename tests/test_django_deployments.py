"""Fleets of projects of Django: how they stop, go on, get new tasks, and use several databases.
Each project is that of apps/django_project with an app of the test's own."""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psycopg
import pytest
from databases import Databases
from django_support import APPS
from eventually import eventually, stays
from fleet import Fleet, unstarted

pytestmark = [pytest.mark.long, pytest.mark.fleet]

Deploy = Callable[..., AbstractContextManager[Fleet]]
MANAGE = [sys.executable, "-m", "django_project.manage"]
IN_PROJECT = f"export PYTHONPATH='{APPS}' DJANGO_SETTINGS_MODULE=settings && exec " + '"$@"'
SETTINGS = """
from django_project.settings import *
INSTALLED_APPS.append("extra")
"""
TASKS = """
import time
from pathlib import Path

from django_project.blog.models import Article
from django_project.decorator import task

@task
def write(title, until=""):
    Article.objects.create(title=title)
    while until and not Path(until).exists():
        time.sleep(0.02)
"""
TITLES = "SELECT title FROM blog_article ORDER BY title"


@contextmanager
def deployed(
    dsn: str, place: Path, tasks: str, settings: str = "", *options: str
) -> Iterator[Fleet]:
    """A fleet of 1 x 4 of the project with these tasks, on a database that was migrated."""
    app = place / "extra"
    app.mkdir()
    (app / "__init__.py").touch()
    (app / "tasks.py").write_text(TASKS + tasks)
    (place / "settings.py").write_text(SETTINGS + settings)
    with unstarted(dsn, place, procs=1, threads=4) as fleet:
        fleet.program = [*MANAGE, "cmdbus", *options]
        del fleet.options["app"]
        manage(fleet, "migrate")
        start(fleet)
        yield fleet


def manage(fleet: Fleet, *arguments: str) -> None:
    shell = ["/bin/sh", "-c", IN_PROJECT, "sh", *MANAGE, *arguments, "--verbosity", "0"]
    subprocess.run(shell, cwd=fleet.place, check=True, timeout=60)


def start(fleet: Fleet, dsn: str = "") -> None:
    """`dsn`: of the default database, if that is not the fleet's."""
    fleet.start(shell=f"export CMDBUS_DSN='{dsn or fleet.dsn}' && {IN_PROJECT}")
    fleet.wait_until_ready()


@pytest.fixture
def deploy(empty_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deploy:
    """Takes tasks, settings, and options of `manage.py cmdbus`."""
    monkeypatch.setenv("CMDBUS_DSN", empty_dsn)
    return lambda *texts: deployed(empty_dsn, tmp_path, *texts)


def send(fleet: Fleet, task: str, *arguments: object) -> str:
    """As SQL does; its id."""
    data = json.dumps({"args": arguments, "kwargs": {}})
    [(id,)] = fleet.query(
        "SELECT cmdbus.send('default', %s, %s)::text", f"extra.tasks.{task}", data
    )
    return str(id)


def status(fleet: Fleet, id: str) -> str:
    [(status,)] = fleet.query("SELECT status FROM cmdbus.command WHERE command_id = %s::uuid", id)
    return str(status)


def await_status(fleet: Fleet, expected: str, *ids: str) -> None:
    eventually(lambda: {status(fleet, id) for id in ids} == {expected}, 30)


def titles(fleet: Fleet) -> list[str]:
    return [title for (title,) in fleet.query(TITLES)]


def test_tasks_that_a_stop_leaves_are_run_once_after_the_restart(deploy: Deploy) -> None:
    with deploy("") as fleet:
        until = str(fleet.place / "open")
        ids = [send(fleet, "write", f"{number:02}", until) for number in range(12)]
        eventually(lambda: len(fleet.executing("extra.tasks.write")) == 4)
        fleet.send_signal(signal.SIGTERM)
        fleet.await_saying("stops: running commands may end")
        fleet.open_gate()
        assert fleet.wait() == 0
        assert Counter(status(fleet, id) for id in ids) == {"COMPLETED": 4, "PENDING": 8}
        start(fleet)
        await_status(fleet, "COMPLETED", *ids)
        assert titles(fleet) == [f"{number:02}" for number in range(12)]


HUNG = """
@task
def hang():
    Article.objects.create(title="never")
    time.sleep(3600)
"""


def test_a_task_that_hangs_ends_by_its_timeout_and_writes_nothing(deploy: Deploy) -> None:
    timeout = "TASKS['default']['OPTIONS']['tasks']['extra.tasks.hang'] = {'timeout': 1}"
    with deploy(HUNG, timeout) as fleet:
        hung = send(fleet, "hang")
        await_status(fleet, "IN_TROUBLESHOOTING_QUEUE", hung)
        code = "SELECT error_code, attempts FROM cmdbus.command"
        assert fleet.query(code) == [("TIMEOUT", 1)]
        await_status(fleet, "COMPLETED", send(fleet, "write", "next"))
        assert titles(fleet) == ["next"]


NEW = """
@task
def write_new(title):
    Article.objects.create(title=f"new {title}")
"""


def test_a_task_that_only_a_newer_deployment_knows_waits_for_its_workers(deploy: Deploy) -> None:
    with deploy("") as fleet:
        new, known = send(fleet, "write_new", "task"), send(fleet, "write", "known task")
        await_status(fleet, "COMPLETED", known)
        stays(lambda: status(fleet, new) == "PENDING", 0.5)
        (fleet.place / "extra" / "tasks.py").write_text(TASKS + NEW)
        pids = fleet.pids().values()
        fleet.send_signal(signal.SIGHUP)
        await_status(fleet, "COMPLETED", new)
        fleet.await_successors(pids)
        assert titles(fleet) == ["known task", "new task"]


DATABASES = """
DATABASES["same"] = {**DATABASES["default"], "OPTIONS": {"application_name": "same"}}
DATABASES["other"] = {
    **DATABASES["default"], "NAME": %r, "OPTIONS": {"application_name": "other"},
}
DATABASES["default"]["OPTIONS"] = {"pool": {"min_size": 2, "max_size": 4}}
"""
WRITE_EVERYWHERE = """
@task
def write_everywhere(title, fails):
    for alias in ("default", "same", "other"):
        Article.objects.using(alias).create(title=f"{title} by {alias}")
    assert not fails

@task
async def write_async(title, fails):
    await Article.objects.acreate(title=title)
    assert not fails
"""
SESSIONS = """
    SELECT application_name FROM pg_stat_activity
    WHERE datname IN (current_database(), %s) AND application_name NOT LIKE 'cmdbus:%%'"""


def test_only_the_database_of_the_backend_takes_part_in_the_command(
    deploy: Deploy, databases: Databases
) -> None:
    """Whether the others are another database or only another alias of it. Its pool stays empty."""
    with databases.fresh() as name, deploy(WRITE_EVERYWHERE, DATABASES % name) as fleet:
        manage(fleet, "migrate", "--database", "other")
        ids = [send(fleet, "write_everywhere", "lasting", False) for _ in range(8)]
        ids += [send(fleet, "write_async", "async", False) for _ in range(8)]
        failing = [
            send(fleet, task, "failing", True) for task in ("write_everywhere", "write_async")
        ]
        await_status(fleet, "COMPLETED", *ids)
        await_status(fleet, "IN_TROUBLESHOOTING_QUEUE", *failing)
        assert Counter(titles(fleet)) == {
            "async": 8,
            "lasting by default": 8,
            "lasting by same": 8,
            "failing by same": 1,
        }
        with psycopg.connect(databases.dsn_of(name)) as other:
            assert Counter(title for (title,) in other.execute(TITLES)) == {
                "lasting by other": 8,
                "failing by other": 1,
            }
            assert not other.execute("SELECT to_regnamespace('cmdbus')").fetchall()[0][0]
        # Those of other aliases are closed by Django's rules, as after requests.
        eventually(lambda: fleet.query(SESSIONS, name) == [("test",)])


OTHER_BACKEND = """
DATABASES["other"] = {**DATABASES["default"], "NAME": %r}
TASKS["other"] = {**TASKS["default"], "QUEUES": ["default"], "OPTIONS": {"using": "other"}}
"""
WRITE_OTHER = """
@task(backend="other")
def write_other(title, fails):
    Article.objects.using("other").create(title=title)
    assert not fails
"""


def test_a_backend_in_another_database_has_a_fleet_of_its_own(
    deploy: Deploy, databases: Databases, tmp_path: Path
) -> None:
    own = tmp_path / "fleet"
    own.mkdir()
    with (
        databases.fresh() as name,
        deploy(WRITE_OTHER, OTHER_BACKEND % name, "--database", "default") as fleet,
        unstarted(databases.dsn_of(name), own, procs=1, name="other") as other,
    ):
        manage(fleet, "migrate", "--database", "other")
        other.program = [*MANAGE, "cmdbus", "--database", "other"]
        del other.options["app"]
        other.place = tmp_path
        start(other, fleet.dsn)
        ids = [send(other, "write_other", "lasting", False) for _ in range(4)]
        failing = send(other, "write_other", "failing", True)
        await_status(fleet, "COMPLETED", send(fleet, "write", "here"))
        await_status(other, "COMPLETED", *ids)
        await_status(other, "IN_TROUBLESHOOTING_QUEUE", failing)
        assert (titles(fleet), titles(other)) == (["here"], ["lasting"] * 4)
