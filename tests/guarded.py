"""A server of its own that asks ordinary roles for a password, which must then be nowhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
from eventually import eventually
from own_servers import Settings, own_server
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import SQL, Composed, Identifier

from cmdbus.database.schema import install
from cmdbus.embedded import EmbeddedPostgres

SECRET = "s3cr3t-Passw0rd"
#: A database with the schema, to be copied.
_INSTALLED = "installed"


class Guarded:
    """A server that lets ordinary roles in, with a password."""

    def __init__(self, embedded: EmbeddedPostgres) -> None:
        self.embedded = embedded

    def start(self) -> None:
        """Also once more, after a stop."""
        self.embedded.start()
        rules = self.embedded.directory / "pg_hba.conf"
        rules.write_text("local all cmdbus peer map=cmdbus\nlocal all all scram-sha-256\n")
        self.execute(SQL("SELECT pg_reload_conf()"))

    def install(self) -> None:
        """What each role's database is a copy of: installing it again takes 100 ms."""
        self.execute(SQL("CREATE DATABASE {}").format(Identifier(_INSTALLED)))
        install(make_conninfo(self.embedded.dsn, dbname=_INSTALLED))

    def execute(self, query: SQL | Composed) -> None:
        """Also while the server is a standby, which the embedded server's DSN passes by."""
        anywhere = make_conninfo(self.embedded.dsn, target_session_attrs="any")
        with psycopg.connect(anywhere, autocommit=True) as admin:
            admin.execute(query)

    @contextmanager
    def role(self, *grants: str, options: str = "") -> Iterator[str]:
        """A new role's DSN, with a new database's schema and these kinds of rights in it."""
        name = f"test_{uuid4().hex[:8]}"
        database, role = Identifier(name), Identifier(name)
        copy = SQL("CREATE DATABASE {} TEMPLATE {}").format(database, Identifier(_INSTALLED))
        self.execute(copy)
        create = "CREATE ROLE {} LOGIN PASSWORD '" + SECRET + "' " + options
        self.execute(SQL(create).format(role))
        try:
            owner_dsn = make_conninfo(self.embedded.dsn, dbname=name)
            install(owner_dsn, grants={kind: [name] for kind in grants})
            yield make_conninfo(owner_dsn, user=name, password=SECRET)
        finally:
            self.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(database))
            self.execute(SQL("DROP ROLE {}").format(role))

    def await_no_session(self, dsn: str) -> None:
        """Of this role: one counts until the server has noticed that its client is gone."""
        query = "SELECT FROM pg_stat_activity WHERE usename = %s"
        with psycopg.connect(self.embedded.dsn, autocommit=True) as admin:
            name = conninfo_to_dict(dsn)["user"]
            eventually(lambda: admin.execute(query, (name,)).fetchone() is None)

    def alter(self, kind: str, dsn: str, what: str) -> None:
        name = Identifier(str(conninfo_to_dict(dsn)["user"]))
        self.execute(SQL("ALTER " + kind + " {} " + what).format(name))


@contextmanager
def guarded_server(memory: Path | None) -> Iterator[Guarded]:
    settings: Settings = {"max_connections": 20, "password_encryption": "scram-sha-256"}
    with own_server(memory, settings=settings) as server:
        made = Guarded(server)
        made.start()
        made.install()
        yield made
