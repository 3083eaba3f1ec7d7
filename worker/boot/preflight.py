"""Checks everything that a supervisor needs before it starts. Imports the application and the
database driver, so it runs in a child, once."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from uuid import uuid4

import psycopg

from cmdbus.counting import count_of
from cmdbus.database import dsn as dsns
from cmdbus.database import schema as schemas
from cmdbus.database import session_names as sessions
from cmdbus.database.connect_errors import classify, is_read_only
from cmdbus.database.statements import statement
from cmdbus.errors import AppError, SchemaError
from cmdbus.readiness import Check, Finding, worst
from cmdbus.registry import Handler, HandlerRegistry
from cmdbus.settings import Settings
from cmdbus.worker.boot import budget, effective
from cmdbus.worker.boot.app import hint, load
from cmdbus.worker.boot.trial import try_claim
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.pools import HEADROOM, complete, session_settings
from cmdbus.worker.claims.sessions import ROLE_FIX, session_of

#: PostgreSQL's major versions that are tested.
_MIN_MAJOR, _MAX_MAJOR = 14, 18
_APPLICATION = "cmdbus:check"
#: Transactions that each of two connections runs, to see whether it keeps its session.
_POOLING_ROUNDS = 5
#: Seconds to wait for a notification, which takes milliseconds unless a pooler swallows it.
_NOTIFY_SECONDS = 2.0
_THIS_MACHINE = ("127.", "localhost", "::1")


def preflight(settings: Settings) -> Iterator[Check]:
    """Each check as soon as it is made, so that a hanging one can be named.

    Ends at the first that makes the following ones impossible. `settings.dsn` must be given.
    """
    yield from _check_http(settings)
    registry, checks = _check_app(settings)
    yield from checks
    try:
        parts = dsns.parse(settings.dsn or "")
    except ValueError as error:
        yield Check("connection", Finding.FATAL, str(error))
        return
    parts = complete(parts, _APPLICATION, settings.timeouts)
    try:
        connection = _connect(parts)
    except psycopg.Error as error:
        yield _failure("cannot connect to", parts, error)
        return
    yield Check("connection", Finding.OK, dsns.describe(parts))
    with connection:
        try:
            yield from _check_database(connection, parts, settings, list(registry or ()))
        except psycopg.OperationalError as error:
            yield _failure("cannot check", parts, error)


def _check_http(settings: Settings) -> Iterator[Check]:
    if settings.http and not settings.http[0].startswith(_THIS_MACHINE):
        yield Check(
            "http",
            Finding.WARNING,
            f"--http {settings.http[0]}:{settings.http[1]} is open to the network, "
            "without a password",
            "restrict access with a firewall or a network policy",
        )


def _check_app(settings: Settings) -> tuple[HandlerRegistry | None, list[Check]]:
    try:
        registry = load(settings.app)
    except AppError as error:
        return None, [Check("app", Finding.FATAL, str(error))]
    handled = registry.domains
    missing = [
        Check(
            "app",
            Finding.FATAL,
            f"{settings.app} has no handler for domain {domain!r}{hint(domain, handled)}",
        )
        for domain in settings.domains
        if domain not in handled
    ]
    domains = ", ".join(settings.domains or handled)
    return registry, missing or [
        Check(
            "app",
            Finding.OK,
            f"{settings.app}: {count_of(len(registry), 'handler')}, domains {domains}",
            types=len(registry),
        )
    ]


def _max_thread(handlers: Sequence[Handler], settings: Settings) -> float:
    own = (handler.timeout or 0.0 for handler in handlers)
    return max((settings.timeouts.thread, *own))


def _connect(parts: dsns.Parts) -> Connection:
    """As workers do. A primary on which a setting forbids writes is no standby, which could be
    promoted: the checks of the settings say more about it than its refusal."""
    try:
        return dsns.open_session(parts)
    except psycopg.OperationalError as error:
        if is_read_only(str(error)):
            with suppress(psycopg.OperationalError):
                return dsns.open_session({**parts, "target_session_attrs": "primary"})
        raise


def _failure(what: str, parts: dsns.Parts, error: psycopg.Error) -> Check:
    found = classify(str(error), error.sqlstate)
    # libpq's own advice is indented; the fix says more.
    lines = [line for line in str(error).splitlines() if line[:1] != "\t"]
    reason = dsns.redact(" ".join(" ".join(lines).split()), parts)
    sentence = f"{what} {dsns.describe(parts)}: {found.sentence} ({reason})"
    return Check("connection", found.finding, sentence, found.fix)


def _check_database(
    connection: Connection, parts: dsns.Parts, settings: Settings, handlers: Sequence[Handler]
) -> Iterator[Check]:
    yield _check_version(connection)
    row = connection.execute(statement("read_server", settings.schema)).fetchone()
    assert row is not None
    server_encoding, client_encoding, standby, role, database, current, ends_sessions = row
    yield _check_encoding(server_encoding, client_encoding)
    if not ends_sessions:
        yield _no_ends(role, current)
        return
    with _connect(parts) as other:
        pooling = _check_pooling(connection, other)
    yield pooling
    if pooling.finding is Finding.FATAL:
        return
    session = effective.Session(
        settings=_settings(connection, settings.schema),
        role=role,
        database=database,
        requested=session_settings(settings.timeouts),
    )
    if standby:
        yield Check(
            "primary",
            Finding.FATAL,
            "the server is a standby: nothing can be written there",
            "name the primary, or several hosts with target_session_attrs=read-write",
        )
        return
    schema = list(_check_schema(connection, settings.schema, role))
    yield from schema
    if worst(schema) is Finding.OK:
        yield try_claim(connection, settings.dsn or "", settings.schema)
    yield from effective.check_timeouts(session, settings.timeouts, _max_thread(handlers, settings))
    yield from effective.check_handlers(handlers, settings.timeouts)
    yield _check_budget(connection, settings)
    if settings.listen:
        yield _check_listening(connection, parts, settings.schema)


def _check_version(connection: Connection) -> Check:
    major = connection.info.server_version // 10000
    if major < _MIN_MAJOR:
        return Check(
            "server",
            Finding.FATAL,
            f"PostgreSQL {major} is too old",
            f"use one from {_MIN_MAJOR} to {_MAX_MAJOR}",
        )
    if major > _MAX_MAJOR:
        return Check(
            "server",
            Finding.WARNING,
            f"PostgreSQL {major} is newer than what this version was tested with",
            f"if something is odd, use one from {_MIN_MAJOR} to {_MAX_MAJOR}",
        )
    return Check("server", Finding.OK, f"PostgreSQL {major}")


def _check_encoding(server: str, client: str) -> Check:
    if client != "UTF8":
        return Check(
            "encoding",
            Finding.FATAL,
            f"the session's client_encoding is {client}",
            "take client_encoding out of the DSN, or let the pooler pass it on",
        )
    if server == schemas.UNCHECKED:
        return Check(
            "encoding",
            Finding.FATAL,
            "the database's encoding is SQL_ASCII, which takes bytes that are no text, so a "
            "worker could not read what was sent",
            "create a database with ENCODING 'UTF8' TEMPLATE template0",
        )
    if server != "UTF8":
        return Check(
            "encoding",
            Finding.WARNING,
            f"the database's encoding is {server}: a command with a character that it lacks is "
            f"refused or changed",
            "make a database with ENCODING 'UTF8'",
        )
    return Check("encoding", Finding.OK, server)


def _no_ends(user: str, role: str) -> Check:
    return Check(
        "role",
        Finding.FATAL,
        f"sessions of {user!r} run as role {role!r}, which may not see and end them, as the rescue "
        f"of commands needs after a crash",
        ROLE_FIX,
    )


def _check_pooling(connection: Connection, other: Connection) -> Check:
    """Whether each connection keeps its session from one transaction to the next. A pooler that
    gives sessions out by the transaction lends both the same one, or one of them several."""
    first, second = session_of(connection), session_of(other)
    for _ in range(_POOLING_ROUNDS):
        if (session_of(connection), session_of(other)) != (first, second) or first == second:
            return Check(
                "pooling",
                Finding.FATAL,
                "transaction pooling: a pooler between here and the server gives connections "
                "another session for each transaction",
                "use session mode (pool_mode = session), or connect to the server itself",
            )
    return Check("pooling", Finding.OK, "each connection keeps its session")


def _settings(connection: Connection, schema: str) -> dict[str, effective.Setting]:
    names = {"names": list(effective.NAMES)}
    rows = connection.execute(statement("read_effective", schema), names).fetchall()
    return {name: effective.Setting(value, source) for name, value, source in rows}


def _check_schema(connection: Connection, schema: str, role: str) -> Iterator[Check]:
    rows = connection.execute(statement("read_missing_rights", schema)).fetchall()
    missing = [row[0] for row in rows]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        yield Check(
            "rights",
            Finding.FATAL,
            f"role {role!r} lacks {', '.join(missing[:3])}{more} in schema {schema!r}",
            f"run cmdbus init --worker {role} as the schema's owner",
        )
        return
    try:
        schemas.check(connection, schema)
    except SchemaError as error:
        yield Check("schema", Finding.FATAL, str(error))
        return
    yield Check("schema", Finding.OK, f"{schema}, of this version, and {role!r} has its rights")


def _check_budget(connection: Connection, settings: Settings) -> Check:
    values = {"node": sessions.PATTERN}
    row = connection.execute(statement("read_budget", settings.schema), values).fetchone()
    assert row is not None
    max_connections, reserved, of_database, of_role, others, in_database, by_role, nodes = row
    available = max_connections - reserved
    limits = [
        budget.Limit(
            name=f"max_connections {max_connections} - {reserved} reserved = {available}",
            size=available,
            others=others,
            fix="raise max_connections",
        ),
        budget.Limit(
            name=f"the database's CONNECTION LIMIT is {of_database}",
            size=of_database,
            others=in_database,
            fix="raise it (ALTER DATABASE ... CONNECTION LIMIT)",
        ),
        budget.Limit(
            name=f"the role's CONNECTION LIMIT is {of_role}",
            size=of_role,
            others=by_role,
            fix="raise it (ALTER ROLE ... CONNECTION LIMIT)",
        ),
    ]
    need = budget.Need(procs=settings.procs, threads=settings.threads, housekeeping=HEADROOM)
    return budget.check_budget(need, [limit for limit in limits if limit.size >= 0], nodes)


def _check_listening(connection: Connection, parts: dsns.Parts, schema: str) -> Check:
    token = uuid4().hex
    try:
        connection.execute(statement("listen_check", schema))
    except psycopg.Error as error:
        reason = " ".join(str(error).split())
        return _deaf(f"LISTEN is refused ({reason})")
    try:
        with _connect(parts) as other:
            other.execute(statement("notify_check", schema), {"token": token})
    except psycopg.OperationalError as error:
        return _failure("listen", parts, error)
    for notification in connection.notifies(timeout=_NOTIFY_SECONDS):
        if notification.payload == token:
            return Check("listen", Finding.OK, "notifications arrive")
    return _deaf(f"no notification arrived within {_NOTIFY_SECONDS:g} s")


def _deaf(what: str) -> Check:
    return Check(
        "listen",
        Finding.FATAL,
        f"{what}: between here and the server there is a pooler that swallows notifications",
        "connect to the server itself; or run with --wake poll",
    )
