"""A PgBouncer of a test's own, between it and its server."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from eventually import eventually
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cmdbus.embedded.account import server_account

_PORT = 6432
_SETTINGS = """
[databases]
* = host={host} port={port} user={user} password={password}
[pgbouncer]
listen_addr =
listen_port = {own_port}
unix_socket_dir = {directory}
auth_type = any
pool_mode = {mode}
default_pool_size = 40
max_client_conn = 200
server_login_retry = 1
ignore_startup_parameters = {ignored}
server_round_robin = {round_robin}
query_timeout = {query_timeout}
logfile = {directory}/log
pidfile = {directory}/pid
"""


def is_installed() -> bool:
    return shutil.which("pgbouncer") is not None


@contextmanager
def pgbouncer(
    dsn: str,
    mode: str,
    *,
    ignored: str = "options",
    server_round_robin: bool = False,
    query_timeout: int = 0,
) -> Iterator[str]:
    """The DSN of `dsn`'s database through a PgBouncer in this mode."""
    server = conninfo_to_dict(dsn)
    with tempfile.TemporaryDirectory(prefix="b") as directory:
        os.chown(directory, server_account().uid, server_account().gid)
        configuration = Path(directory) / "ini"
        configuration.write_text(
            _SETTINGS.format(
                host=server["host"],
                port=server.get("port", 5432),
                user=server["user"],
                password=server.get("password", "none"),
                own_port=_PORT,
                directory=directory,
                mode=mode,
                ignored=ignored,
                round_robin=int(server_round_robin),
                query_timeout=query_timeout,
            )
        )
        process = _started(configuration)
        through = make_conninfo(dsn, host=directory, port=_PORT)
        try:
            try:
                eventually(lambda: _answers(process, through), 10)
            except AssertionError:
                print((Path(directory) / "log").read_text())
                raise
            yield through
        finally:
            process.terminate()
            process.wait(10)


def _started(configuration: Path) -> subprocess.Popen[bytes]:
    """As the server's user, for root may not run one."""
    account, root = server_account(), os.geteuid() == 0
    return subprocess.Popen(
        ["pgbouncer", "--quiet", str(configuration)],
        user=account.uid if root else None,
        group=account.gid if root else None,
        extra_groups=[] if root else None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _answers(process: subprocess.Popen[bytes], dsn: str) -> bool:
    assert process.poll() is None, f"pgbouncer has ended with {process.returncode}"
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True
