"""The README is short, its links lead somewhere, and its first application runs."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from embedded_servers import copy_cluster
from pgmq_queues import create_queues

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 200
_LINK = re.compile(r"\]\(([^)#:]+)(#[^)]*)?\)")

pytestmark = pytest.mark.skipif(
    not (ROOT / "README.md").exists(), reason="reads the checkout, and there is none here"
)


def pages() -> list[Path]:
    rooms = (
        *("common/otel", "common/pgmq", "common/processes", "common/sentry", "common/web"),
        *("worker/django", "worker/prometheus"),
    )
    found = [*ROOT.glob("[a-z]*/README.md"), *(ROOT / room / "README.md" for room in rooms)]
    return [ROOT / "README.md", *sorted(found)]


def code_block(after: str, page: str = "README.md") -> str:
    """The first block of code after a sentence of a page."""
    _, _, rest = (ROOT / page).read_text().partition(after)
    found = re.search(r"```\w*\n(.*?)```", rest, re.DOTALL)
    assert found, f"no code after {after!r}"
    return found[1]


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_LINES


def test_links_between_pages_lead_somewhere() -> None:
    links = [(page, link[1]) for page in pages() for link in _LINK.finditer(page.read_text())]
    assert len(links) > 10
    for page, link in links:
        assert (page.parent / link).exists(), f"{page}: {link}"


def test_every_page_is_linked_from_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    for page in pages()[1:]:
        assert f"({page.relative_to(ROOT)})" in text


def test_files_that_pages_name_exist() -> None:
    """In prose, a path begins in a directory of the checkout, or in that of the page."""
    for page in pages():
        for name in re.findall(
            r"`((?:common|worker|supervisor|scripts|tests)/[\w/.@-]+)`", page.read_text()
        ):
            assert (ROOT / name).exists(), f"{page} names {name}"


def test_the_example_of_processes_is_the_one_that_is_tested() -> None:
    example = (ROOT / "scripts" / "loads" / "transfer.py").read_text()
    assert code_block("Transfers of money", "common/processes/README.md") == example


@pytest.mark.usefixtures("pgmq_dsn")
def test_the_statements_of_a_producer_that_knows_only_pgmq_run(
    connection: psycopg.Connection,
) -> None:
    create_queues(connection, "orders", "answers")
    statements = code_block("with nothing but SQL", "common/pgmq/README.md")
    connection.execute(statements.encode())
    assert connection.execute("SELECT headers FROM pgmq.q_orders").fetchall() == [
        ({"tenant": "acme"},)
    ]


@pytest.mark.process
def test_the_first_application_runs_as_the_readme_says(dsn: str, tmp_path: Path) -> None:
    """With a server that is there, in place of the one that it would create."""
    program = code_block("Save this as `shop.py`").replace(
        "with EmbeddedPostgres() as server, CommandBus(server.dsn) as bus:",
        "import os\n    server = type('Server', (), {'dsn': os.environ['CMDBUS_DSN']})\n"
        "    with CommandBus(server.dsn) as bus:",
    )
    (tmp_path / "shop.py").write_text(program)
    programs = Path(sys.executable).parent

    def run(command: str) -> str:
        name, *arguments = command.split()
        done = subprocess.run(
            [str(programs / name), *arguments],
            cwd=tmp_path,
            env={**os.environ, "CMDBUS_DSN": dsn, "XDG_RUNTIME_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=25,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    init, send, supervise = code_block("run a fleet until Ctrl-C").splitlines()[1:]
    run(init)
    for _ in range(2):
        assert "PENDING" in run(send)
    run(f"{supervise} --drain --procs 1 --threads 2")
    look = code_block("**Look**").splitlines()
    assert "COMPLETED" in run(look[0])
    run(code_block("**Troubleshoot.**").splitlines()[1])


@pytest.mark.process
def test_the_test_of_a_handler_passes_as_its_page_says(
    home: Path, cluster: Path, tmp_path: Path
) -> None:
    """On a server of the project's own, in the database of a worker of pytest-xdist."""
    directory = home / "cmdbus"
    directory.mkdir(mode=0o711)
    name = f"testing-{hashlib.sha256(os.fsencode(tmp_path.resolve())).hexdigest()[:8]}"
    copy_cluster(cluster, directory / name)  # To make one takes longer.
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "shop.py").write_text(code_block("Save this as `shop.py`"))
    test = code_block("## Testing handlers", "worker/README.md")
    (tmp_path / "test_shop.py").write_text(test + _PLUGIN_TESTS)
    (tmp_path / "conftest.py").write_text(
        code_block("`shop_db` is the project", "worker/README.md")
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"],
        cwd=tmp_path,
        env={**os.environ, "XDG_STATE_HOME": str(home), "PYTEST_XDIST_WORKER": "gw1"},
        capture_output=True,
        text=True,
        timeout=40,
    )
    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout


_PLUGIN_TESTS = """

def test_each_worker_has_a_database(cmdbus_dsn):
    assert "dbname=cmdbus_gw1" in cmdbus_dsn


def test_commands_are_run_and_their_time_comes(bus, run_commands, sent, travel):
    bus.send("payments", "DebitAccount", {"account_id": 9}, delay=3600)
    assert run_commands(registry) == []
    travel(hours=1)
    [done] = run_commands(registry, raises=False)
    assert done.error_code == "KeyError"
    sent("payments", "DebitAccount", count=1)


def test_rows_that_a_fixture_has_locked_are_cleared_after_it(shop_db, bus, run_commands):
    bus.send("payments", "DebitAccount", {"account_id": 1, "amount": 5})
    assert len(run_commands(registry, shop_db)) == 1


def test_no_command_is_left_of_another_test(sent):
    sent(count=0)
"""
