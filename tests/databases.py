"""The databases of a run of the tests, on the run's server."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol
from uuid import uuid4

import psycopg
from leftovers import assert_soon_empty
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier, Literal

# The class of advisory locks by which a run says that its databases are in use.
_RUNS = 0x63_6D_64_74


class Server(Protocol):
    """What a test may know about its server; an EmbeddedPostgres is one."""

    @property
    def dsn(self) -> str: ...

    @property
    def version(self) -> str: ...


def freeze_catalogs(dsn: str) -> None:
    """Else each copy finds out again, and logs, which rows of the catalogs are visible. Without the
    rows that the installation has changed again, a copy is a sixth smaller."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        tables = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace"
            " AND relkind = 'r' AND NOT relisshared"
        ).fetchall()
        names = SQL(", ").join(Identifier("pg_catalog", name) for (name,) in tables)
        connection.execute(SQL("VACUUM (FULL, FREEZE) {}").format(names))


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenServer:
    """The server of CMDBUS_TEST_DSN, which is neither started nor stopped here."""

    dsn: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Databases:
    """Makes and drops this run's databases, whose names no other run uses."""

    admin: psycopg.Connection
    dsn: str
    run: int
    tablespace: str = "pg_default"
    #: The checkpoint that this takes is cheap on a server without fsync.
    copies_files: bool = False
    #: By template and encoding: copies in which a test has written nothing, for a next one. To make
    #: and to drop one costs more CPU than many a test.
    _untouched: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    @contextmanager
    def fresh(self, template: str = "template0", encoding: str = "") -> Iterator[str]:
        """A copy of `template`; an error if a session is still connected to it at the end."""
        untouched = self._untouched.setdefault((template, encoding), [])
        name = untouched.pop() if untouched else self._created(template, encoding)
        keeps, written = False, self._written()
        try:
            yield name
            self._wait_until_left(name)
            keeps = self._written() == written
        finally:
            if keeps:
                untouched.append(name)
            else:
                self._drop(name)

    def drop_untouched(self) -> None:
        for names in self._untouched.values():
            while names:
                self._drop(names.pop())

    def _written(self) -> object:
        """Where the server's log of writes ends: also hints about the visibility of rows, such as
        that of the database itself, which this sets."""
        self.admin.execute("SELECT FROM pg_database").fetchall()
        return self.admin.execute("SELECT pg_current_wal_insert_lsn()").fetchone()

    def _created(self, template: str, encoding: str) -> str:
        name = f"cmdbus_test_{self.run}_{uuid4().hex[:12]}"
        names = [Identifier(each) for each in (name, template, self.tablespace)]
        create = SQL("CREATE DATABASE {} TEMPLATE {} TABLESPACE {}").format(*names)
        if self.copies_files and self.admin.info.server_version >= 150000:  # before, all do
            create += SQL(" STRATEGY FILE_COPY")
        if encoding:
            other = SQL(" ENCODING {} LC_COLLATE 'C' LC_CTYPE 'C'").format(Literal(encoding))
            create += other
        self.admin.execute(create)
        return name

    def _drop(self, name: str) -> None:
        self.admin.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))

    def dsn_of(self, name: str) -> str:
        return make_conninfo(self.dsn, dbname=name)

    def drop_those_of_killed_runs(self) -> None:
        """A run holds an advisory lock on its number; a run whose lock is free is dead."""
        names = self.admin.execute(
            r"SELECT 'DATABASE', datname FROM pg_database WHERE datname LIKE 'cmdbus\_test\_%'"
            r" UNION ALL"
            r" SELECT 'TABLESPACE', spcname FROM pg_tablespace WHERE spcname LIKE 'cmdbus\_test\_%'"
            r" ORDER BY 1"
        ).fetchall()
        for kind, name in names:
            run = int(name.split("_")[2])
            if run != self.run and self._hold(run):
                drop = SQL("DROP {} IF EXISTS {}").format(SQL(kind), Identifier(name))
                self.admin.execute(drop)
                self.admin.execute("SELECT pg_advisory_unlock(%s, %s)", (_RUNS, run))

    def claim_run(self) -> None:
        assert self._hold(self.run), "two runs with the same number"

    def _hold(self, run: int) -> bool:
        row = self.admin.execute("SELECT pg_try_advisory_lock(%s, %s)", (_RUNS, run)).fetchone()
        return row is not None and bool(row[0])

    def _wait_until_left(self, name: str) -> None:
        query = SQL(
            "SELECT pid, application_name, state, left(query, 200) FROM pg_stat_activity"
            " WHERE datname = {} AND backend_type = 'client backend'"
        ).format(Literal(name))
        assert_soon_empty("connections left open", lambda: self.admin.execute(query).fetchall())
