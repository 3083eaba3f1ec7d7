"""The databases of a run of the tests, on the run's server."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol
from uuid import uuid4

import psycopg
from cleaned_databases import Contents, Copy
from leftovers import assert_soon_empty
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier, Literal

Kind = tuple[str, str, bool]

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
    #: By template, encoding, and whether they are cleaned: copies for a next test. To make and to
    #: drop one costs more CPU than many a test.
    _spare: dict[Kind, list[Copy]] = field(default_factory=dict, init=False)
    _contents: dict[Kind, Contents] = field(default_factory=dict, init=False)
    #: By their names: those in use, of which some are templates themselves.
    _used: dict[str, Copy] = field(default_factory=dict, init=False)

    @contextmanager
    def fresh(
        self, template: str = "template0", encoding: str = "", cleaned: bool = False
    ) -> Iterator[str]:
        """A copy of `template`; an error if a session is still connected to it at the end. If
        `cleaned`, another test may have written in it what has been deleted since."""
        kind = template, encoding, cleaned
        spare = self._spare.setdefault(kind, [])
        copy = spare.pop() if spare else self._created(*kind)
        keeps, written = False, self._written()
        self._used[copy.name] = copy
        try:
            yield copy.name
            self._wait_until_left(copy)
            keeps = self._written() == written or self._cleaned(copy, kind)
        finally:
            del self._used[copy.name]
            self._drop_copies_of(copy.name)
            if keeps:
                spare.append(copy)
            else:
                self._drop(copy)

    def drop_spare(self) -> None:
        for copies in self._spare.values():
            while copies:
                self._drop(copies.pop())

    def _drop_copies_of(self, template: str) -> None:
        """It may be another template next."""
        for kind in [kind for kind in self._spare if kind[0] == template]:
            for copy in self._spare.pop(kind):
                self._drop(copy)
            self._contents.pop(kind, None)

    def _cleaned(self, copy: Copy, kind: Kind) -> bool:
        contents = self._contents.get(kind)
        return contents is not None and copy.clean(self.dsn_of(copy.name), contents)

    def _written(self) -> object:
        """Where the server's log of writes ends: also hints about the visibility of rows, such as
        that of the database itself, which this sets."""
        self.admin.execute("SELECT FROM pg_database").fetchall()
        return self.admin.execute("SELECT pg_current_wal_insert_lsn()").fetchone()

    def _created(self, template: str, encoding: str, cleaned: bool) -> Copy:
        name = f"cmdbus_test_{self.run}_{uuid4().hex[:12]}"
        names = [Identifier(each) for each in (name, template, self.tablespace)]
        create = SQL("CREATE DATABASE {} TEMPLATE {} TABLESPACE {}").format(*names)
        if self.copies_files and self.admin.info.server_version >= 150000:  # before, all do
            create += SQL(" STRATEGY FILE_COPY")
        if encoding:
            other = SQL(" ENCODING {} LC_COLLATE 'C' LC_CTYPE 'C'").format(Literal(encoding))
            create += other
        if template in self._used:
            self._used[template].close()  # No session may use it.
        self.admin.execute(create)
        copy = Copy(name)
        kind = template, encoding, cleaned
        # Servers before 15 count only later what was written.
        if cleaned and kind not in self._contents and self.admin.info.server_version >= 150000:
            self._contents[kind] = Contents(copy.connect(self.dsn_of(name)))
        return copy

    def _drop(self, copy: Copy) -> None:
        copy.close()
        self.admin.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(copy.name)))

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

    def _wait_until_left(self, copy: Copy) -> None:
        query = SQL(
            "SELECT pid, application_name, state, left(query, 200) FROM pg_stat_activity"
            " WHERE datname = {} AND backend_type = 'client backend' AND pid <> {}"
        ).format(Literal(copy.name), Literal(copy.pid))
        assert_soon_empty("connections left open", lambda: self.admin.execute(query).fetchall())
