"""The private PostgreSQL: who shares it, and what it survives."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from embedded_servers import mode, one, postmaster_of
from eventually import eventually
from forks import forked, result_of_child

from cmdbus.embedded import EmbeddedError, EmbeddedPostgres
from cmdbus.embedded.account import server_account

pytestmark = pytest.mark.process

USER = """
import sys
from cmdbus.embedded import EmbeddedPostgres
with EmbeddedPostgres(sys.argv[1], durable=False) as server:
    print((server.directory / "data" / "postmaster.pid").read_text().split()[0], flush=True)
    sys.stdin.read()
"""


@contextmanager
def users(directory: Path, number: int = 1) -> Iterator[list[subprocess.Popen[str]]]:
    """Other processes that start at the same moment and use the server until ordered to leave."""
    command = [sys.executable, "-c", USER, str(directory)]
    pipe = subprocess.PIPE
    found = [subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe) for _ in range(number)]
    try:
        yield found
    finally:
        for user in found:
            user.communicate(timeout=20)


def first_line(user: subprocess.Popen[str]) -> str:
    assert user.stdout is not None
    return user.stdout.readline().strip()


def kill_postmaster(directory: Path) -> None:
    pid = postmaster_of(directory)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: postmaster_of(directory) is None)


def test_the_cluster_has_checksums_and_is_durable_unless_told_otherwise(home: Path) -> None:
    query = (
        "SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings WHERE name"
        " IN ('data_checksums', 'fsync', 'full_page_writes', 'server_encoding', 'max_connections')"
    )
    same = (
        "data_checksums=on fsync={0} full_page_writes={0} max_connections={1} server_encoding=UTF8"
    )
    with EmbeddedPostgres(home / "durable") as server:
        assert one(server, query) == same.format("on", 200)
    with EmbeddedPostgres(
        home / "volatile", durable=False, settings={"max_connections": 50}
    ) as server:
        assert one(server, query) == same.format("off", 50)


def test_the_last_user_stops_the_server_which_keeps_what_was_written(directory: Path) -> None:
    first = EmbeddedPostgres(directory, durable=False)
    second = EmbeddedPostgres(directory, durable=False)
    first.start()
    second.start()
    with psycopg.connect(first.dsn) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    first.close()
    assert one(second, "SELECT 1") == 1
    second.close()
    assert postmaster_of(directory) is None
    second.close()
    with EmbeddedPostgres(directory, durable=False) as server:
        assert one(server, "SELECT answer FROM kept") == 42


def test_a_server_whose_users_were_killed_is_adopted_and_stopped(directory: Path) -> None:
    with users(directory) as (user,):
        pid = int(first_line(user))
        user.kill()
        user.wait(timeout=5)
        assert postmaster_of(directory) == pid
        with EmbeddedPostgres(directory, durable=False) as server:
            assert postmaster_of(directory) == pid
            assert one(server, "SELECT 1") == 1
        assert postmaster_of(directory) is None


def test_a_killed_postmaster_is_replaced_while_its_backends_still_work(directory: Path) -> None:
    with EmbeddedPostgres(directory) as server:
        with psycopg.connect(server.dsn) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        busy = psycopg.connect(server.dsn)
        busy.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 1000000000)")
        eventually(
            lambda: one(server, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%000000)'")
        )
        kill_postmaster(directory)
        server.start()
        assert one(server, "SELECT answer FROM kept") == 42
        busy.close()


def test_a_dead_postmasters_number_may_be_another_process_by_now(directory: Path) -> None:
    with EmbeddedPostgres(directory, durable=False) as server:
        kill_postmaster(directory)
        left = directory / "data" / "postmaster.pid"
        lines = left.read_text().splitlines(keepends=True)
        as_server = server_account().uid if os.geteuid() == 0 else None
        with subprocess.Popen("cat", stdin=subprocess.PIPE, user=as_server) as stranger:
            left.write_text("".join([f"{stranger.pid}\n", *lines[1:]]))
            server.start()
            assert one(server, "SELECT 1") == 1
            assert stranger.poll() is None


def test_all_killed_with_the_postmaster_is_no_obstacle(directory: Path) -> None:
    with users(directory, 2) as both:
        for user in both:
            first_line(user)
        for user in both:
            user.kill()
        kill_postmaster(directory)
    with EmbeddedPostgres(directory, durable=False) as server:
        assert one(server, "SELECT 1") == 1


def test_six_first_starts_at_once_make_one_cluster(empty_directory: Path) -> None:
    with users(empty_directory, 6) as six:
        assert len({first_line(user) for user in six}) == 1
        assert list(empty_directory.glob("data.tmp*")) == []
    assert postmaster_of(empty_directory) is None


def test_a_half_made_cluster_is_never_used(directory: Path) -> None:
    (directory / "data").rename(directory / "data.tmp")
    (directory / "data.tmp" / "PG_VERSION").unlink()
    with EmbeddedPostgres(directory, durable=False) as server:
        assert one(server, "SELECT 1") == 1
        assert not (directory / "data.tmp").exists()


def test_close_in_a_forked_child_neither_stops_the_server_nor_frees_the_lock(
    directory: Path,
) -> None:
    def close() -> str:
        server.close()
        return "closed"

    with EmbeddedPostgres(directory, durable=False) as server:
        assert result_of_child(close) == "closed"
        with EmbeddedPostgres(directory, durable=False):
            pass
        assert one(server, "SELECT 1") == 1


def test_the_last_user_stops_the_server_though_a_forked_child_lives(directory: Path) -> None:
    with ExitStack() as child:
        with EmbeddedPostgres(directory, durable=False):
            child.enter_context(forked(signal.pause))
        assert postmaster_of(directory) is None


def test_the_server_can_be_stopped_and_revived_under_its_users(directory: Path) -> None:
    with EmbeddedPostgres(directory, durable=False) as server:
        server.stop("immediate")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.dsn)
        server.start()
        assert one(server, "SELECT 1") == 1


def test_durability_cannot_be_had_from_a_server_that_runs_without(directory: Path) -> None:
    with (
        EmbeddedPostgres(directory, durable=False),
        pytest.raises(EmbeddedError, match="runs without durability"),
    ):
        EmbeddedPostgres(directory).start()
    assert postmaster_of(directory) is None


def test_its_start_is_announced_in_one_line(
    directory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("INVOCATION_ID", raising=False)
    with caplog.at_level("INFO"), EmbeddedPostgres(directory, durable=False) as server:
        assert caplog.messages == [
            f"embedded PostgreSQL {server.version}, data in {directory}/data, "
            "not durable (fsync off)"
        ]
        with EmbeddedPostgres(directory, durable=False):
            assert len(caplog.messages) == 1, "a user that finds it running logs nothing"
        monkeypatch.setenv("INVOCATION_ID", "of a unit")
        server.stop()
        server.start()
    assert "systemd kills it together with the unit" in caplog.messages[-1]


def test_a_long_log_is_cut_when_a_user_comes(directory: Path) -> None:
    with (directory / "log").open("ab") as log:
        log.write(b"a long story\n" * 500_000)
    with EmbeddedPostgres(directory, durable=False):
        assert (directory / "log").stat().st_size < 100_000
        assert (directory / "log.1").stat().st_size == 4 * 1024 * 1024
        assert mode(directory / "log.1") == 0o600
