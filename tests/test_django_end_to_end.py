"""A project of Django end to end: its web server, `manage.py cmdbus`, and workers that are killed.
The project is in apps/django_project."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
from eventually import eventually
from example_fleets import TIMEOUTS, await_ends, while_workers_are_killed
from fleet import Fleet, kill, unstarted
from loads.connection_budget import need
from web_servers import APPS, web_server

MANAGE = [sys.executable, "-m", "django_project.manage"]
CHARGE = "django_project.shop.tasks.charge"
PAYMENTS = "SELECT count(*) FROM shop_payment GROUP BY order_id"
#: Whether the fleet has no more than a number of them, and how many are neither its nor the test's.
SESSIONS = """
    SELECT count(*) FILTER (WHERE starts_with(application_name, 'cmdbus:')) <= %s,
        count(*) FILTER (WHERE NOT starts_with(application_name, 'cmdbus:'))
    FROM pg_stat_activity
    WHERE datname = current_database() AND application_name <> 'test' AND pid <> %s"""


@pytest.fixture
def project(empty_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """A fleet of `manage.py cmdbus` on a database that was migrated; not started yet."""
    monkeypatch.setenv("CMDBUS_DSN", empty_dsn)
    migrate = [*MANAGE, "migrate", "--verbosity", "0"]
    subprocess.run(migrate, cwd=APPS, check=True, timeout=60)
    with unstarted(empty_dsn, tmp_path, procs=1, threads=8, **TIMEOUTS) as fleet:
        fleet.program = [*MANAGE, "cmdbus"]
        del fleet.options["app"]
        yield fleet


@pytest.fixture
def client(project: Fleet, tmp_path: Path) -> Iterator[httpx.Client]:
    """Of the project's web server; its fleet is ready."""
    project.start(shell=f"cd '{APPS}' && exec " + '"$@"')
    server = ["django_project.manage", "runserver", "--noreload", "127.0.0.1:0"]
    with web_server(tmp_path / "web.log", *server) as client:
        project.wait_until_ready()
        yield client


def order(shop: httpx.Client, number: object, amount: int = 5) -> int:
    return shop.post("/orders", data={"number": f"{number}", "amount": f"{amount}"}).status_code


def assert_paid_once(shop: httpx.Client, fleet: Fleet) -> None:
    """What the ORM has written is what the results say."""
    for (number,) in fleet.query("SELECT number FROM shop_order"):
        paid = {
            "number": number,
            "charge": "SUCCESSFUL",
            "payments": ["5.00"],
            "mails": [f"Order {number} is paid"],
        }
        declined = {"number": number, "charge": "FAILED", "payments": [], "mails": []}
        assert shop.get(f"/orders/{number}").json() == (declined if number == "dear" else paid)


@pytest.mark.fleet
def test_each_order_is_charged_once_though_workers_are_killed(
    client: httpx.Client, project: Fleet
) -> None:
    with psycopg.connect(project.dsn) as locking:
        locking.execute("LOCK TABLE shop_payment IN SHARE MODE")  # INSERTs wait
        assert [order(client, number) for number in range(8)] == [201] * 8
        assert order(client, 1) == 409
        eventually(lambda: len(project.executing(CHARGE)) == 8)
        budget = need(procs=1, threads=8).always
        eventually(lambda: project.query(SESSIONS, budget, locking.info.backend_pid) == [(True, 0)])
        kill(project.pids().values())
    assert order(client, "dear", 1000) == 201
    commands = await_ends(project)
    # Eight charges with their mails; those of an order that was not placed and of one that was
    # declined are not there.
    assert Counter(commands.values()) == {"COMPLETED": 16, "FAILED": 1}
    assert_paid_once(client, project)


@pytest.mark.process
def test_the_tests_of_the_project_pass(empty_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Django's test runner, which makes a database and its schema."""
    monkeypatch.setenv("CMDBUS_DSN", empty_dsn)
    done = subprocess.run(
        [*MANAGE, "test", "--noinput", "django_project"],
        cwd=APPS,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr.endswith("OK\nDestroying test database for alias 'default'...\n"), (
        done.stderr
    )
    assert "Ran 3 tests" in done.stderr


@pytest.mark.long
@pytest.mark.fleet
@pytest.mark.timeout(300)
def test_many_orders_are_charged_once_though_workers_are_killed_five_times(
    client: httpx.Client, project: Fleet
) -> None:
    while_workers_are_killed(project, lambda number: order(client, number), 400)
    commands = await_ends(project)
    assert Counter(commands.values()) == {"COMPLETED": 800}
    assert project.query(PAYMENTS) == [(1,)] * 400
    assert_paid_once(client, project)
