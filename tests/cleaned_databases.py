"""A database that a next test gets once all that a test has written is deleted: to delete rows
takes a tenth of what it takes to drop a database and to copy another one."""

from typing import Any

import psycopg
from leftovers import shared_files
from psycopg.sql import SQL, Identifier, Literal

#: A test that writes more leaves too many pages behind for tests that compare plans or times.
_MOST_WRITES = 300
_TABLES = """
    SELECT oid, relnamespace::regnamespace::text, relname::text,
        query_to_xml(format('SELECT FROM %s LIMIT 1', oid::regclass), false, true, '')::text <> ''
    FROM pg_class WHERE relkind = 'r' AND relnamespace >= 16384 ORDER BY oid"""
_SEQUENCES = """
    SELECT format('SELECT setval(%L, %s, %L)', oid::regclass, value, called)
    FROM pg_class, LATERAL (SELECT (xpath('/row/last_value/text()', row))[1]::text AS value,
        (xpath('/row/is_called/text()', row))[1]::text AS called
        FROM query_to_xml(format('SELECT * FROM %s', oid::regclass), false, true, '') row) found
    WHERE relkind = 'S'"""
#: What no test may have changed: the catalogs, and tables that have rows at first. Then how many
#: rows were written elsewhere.
_LOOK = """
    SELECT sum(writes) FILTER (WHERE fixed), sum(relpages), sum(reltuples),
        (SELECT (datdba, datallowconn, datconnlimit, datacl)::text FROM pg_database
        WHERE datname = {name}),
        (SELECT count(*) FROM pg_db_role_setting s, pg_database d
        WHERE s.setdatabase = d.oid AND datname = {name}),
        sum(writes) FILTER (WHERE NOT fixed)
    FROM (SELECT *, relnamespace < 16384 OR oid = ANY ({kept}) AS fixed,
        pg_stat_get_tuples_inserted(oid) + pg_stat_get_tuples_updated(oid)
            + pg_stat_get_tuples_deleted(oid) AS writes
        FROM pg_class WHERE relkind = 'r' AND NOT relisshared) found"""


class Contents:
    """What a copy of a template has at first."""

    def __init__(self, connection: psycopg.Connection) -> None:
        tables = connection.execute(_TABLES).fetchall()
        self.kept = [oid for oid, _, _, has_rows in tables if has_rows]
        deletions = [
            SQL("DELETE FROM {}").format(Identifier(schema, name))
            for _, schema, name, has_rows in tables
            if not has_rows
        ]
        sequences = [SQL(query) for (query,) in connection.execute(_SEQUENCES)]
        self.clear = SQL("; ").join([*deletions, *sequences])
        self.looks = self.look(connection)[:-1]

    def look(self, connection: psycopg.Connection) -> tuple[Any, ...]:
        query = SQL(_LOOK).format(name=Literal(connection.info.dbname), kept=Literal(self.kept))
        row = connection.execute(query).fetchone()
        assert row is not None
        return row


class Copy:
    """One copy, and the session that cleans it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid = 0
        self._session: psycopg.Connection | None = None
        self._descriptor = ""

    def connect(self, dsn: str) -> psycopg.Connection:
        if self._session is None:
            self._session = psycopg.connect(
                dsn,
                autocommit=True,
                prepare_threshold=None,
                application_name="tests",
                options="-c session_replication_role=replica -c search_path=pg_catalog",
            )
            self.pid = self._session.info.backend_pid
            self._descriptor = str(self._session.fileno())
            shared_files.add(self._descriptor)
        return self._session

    def clean(self, dsn: str, contents: Contents) -> bool:
        """Whether it is as it was at first. Not if a test has changed its schema or settings."""
        try:
            session = self.connect(dsn)
            *looks, writes = contents.look(session)
            if tuple(looks) != contents.looks or writes > _MOST_WRITES:
                return False
            session.execute(contents.clear)
        except psycopg.Error:  # A test has ended all sessions, or changed operators.
            return False
        return True

    def close(self) -> None:
        if self._session is not None:
            shared_files.discard(self._descriptor)
            self._session.close()
            self._session, self.pid = None, 0
