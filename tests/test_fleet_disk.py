"""A fleet whose database has no room left on its disk."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from databases import Databases, GivenServer
from eventually import eventually
from fleet import supervised
from psycopg.sql import SQL, Identifier, Literal

from cmdbus.database.schema import install
from cmdbus.embedded.account import server_account

pytestmark = pytest.mark.fleet


@pytest.fixture
def small(memory: Path | None, server: object, databases: Databases) -> Iterator[tuple[str, Path]]:
    """A database with the schema on a disk of its own, that anything may fill; and that disk."""
    if memory is None or isinstance(server, GivenServer) or os.geteuid() != 0:
        pytest.skip("a small disk needs root, memory, and a server of our own")
    account = server_account()
    disk = Path(tempfile.mkdtemp(prefix="cmdbus-", dir=memory))
    options = f"size=48m,mode=0700,uid={account.uid},gid={account.gid}"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    try:
        if mounted.returncode != 0:
            pytest.skip(f"no small disk can be mounted: {mounted.stderr}")
        with tablespace(databases, disk) as name, replace(databases, tablespace=name).fresh() as db:
            dsn = databases.dsn_of(db)
            install(dsn)
            yield dsn, disk
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", str(disk)], check=True)
        disk.rmdir()


@contextmanager
def tablespace(databases: Databases, path: Path) -> Iterator[str]:
    name = f"cmdbus_test_{databases.run}_small"
    create = SQL("CREATE TABLESPACE {} LOCATION {}")
    databases.admin.execute(create.format(Identifier(name), Literal(str(path))))
    try:
        yield name
    finally:
        databases.admin.execute(SQL("DROP TABLESPACE {}").format(Identifier(name)))


def test_a_full_disk_refuses_what_it_does_not_keep(small: tuple[str, Path], tmp_path: Path) -> None:
    """Nothing is lost that was accepted, and work goes on when there is room."""
    dsn, disk = small
    # Some run until the disk is full, however long that takes.
    ladder = {"visibility_timeout": 60, "thread_timeout": 70, "watchdog_timeout": 90}
    with supervised(dsn, tmp_path, procs=1, **ladder) as fleet:
        before = fleet.pids()
        # Four that run, and more than fit into the pages that history has by now.
        ids = fleet.send("Wait", 400, data="open")
        eventually(lambda: len(fleet.executing("Wait")) == 4)
        ballast = disk / "ballast"
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        with pytest.raises(psycopg.errors.DiskFull):
            while True:
                ids += fleet.send("Noop", 10, data=os.urandom(20_000).hex())
        sent = fleet.query("SELECT count(DISTINCT command_id) FROM cmdbus.command")
        assert sent == [(len(ids),)]
        fleet.open_gate()
        fleet.await_saying("No space left on device")
        ballast.unlink()
        ids += fleet.send("Noop", 10)
        fleet.await_completed(ids)
        assert fleet.pids() == before
        errors = fleet.messages(level="error")
        assert len(errors) < 10, "it is not logged each time"
