"""Checks everything that a supervisor needs before it starts. Imports the application and the
database driver, so it runs in a child, once."""

import resource
from collections.abc import Iterator, Sequence
from contextlib import suppress
from uuid import uuid4

import psycopg

from cmdbus.counting import count_of
from cmdbus.database import dsn as dsns
from cmdbus.database import schema as schemas
from cmdbus.database import session_names as sessions
from cmdbus.database.connect_errors import classify, is_read_only
from cmdbus.database.executor import Executor
from cmdbus.database.statements import statement
from cmdbus.errors import AppError
from cmdbus.readiness import BREAKERS, DECLARED, LIMITS, SCHEDULES, Check, Finding, worst
from cmdbus.registry import HandlerRegistry
from cmdbus.settings import Settings
from cmdbus.worker.boot import budget, effective
from cmdbus.worker.boot.app import hint, load
from cmdbus.worker.boot.schema_checks import check_schema
from cmdbus.worker.boot.selection_checks import check_others, report_lacking_tags
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.pools import HEADROOM, complete, session_settings
from cmdbus.worker.claims.rejections import reason
from cmdbus.worker.claims.sessions import ROLE_FIX, session_of
from cmdbus.worker.declaring import declare

#: PostgreSQL's major versions that are tested.
_MIN_MAJOR, _MAX_MAJOR = 14, 18
_APPLICATION = "cmdbus:check"
#: Transactions that each of two connections runs, to see whether it keeps its session.
_POOLING_ROUNDS = 5
#: Seconds to wait for a notification, which takes milliseconds unless a pooler swallows it.
_NOTIFY_SECONDS = 2.0
#: Descriptors of a process, without those of a worker's sessions and of a supervisor's children.
_FILES = 24


def preflight(settings: Settings, *, declares: bool = False) -> Iterator[Check]:
    """Each check as soon as it is made, so that a hanging one can be named. Ends at the first that
    makes the following ones impossible. `settings.dsn` must be given. With `declares` the limits
    and schedules of the app are declared if no check says that it cannot start."""
    checks: list[Check] = []
    for check in _checks(settings, checks, declares):
        checks.append(check)
        yield check


def _checks(settings: Settings, before: Sequence[Check], declares: bool) -> Iterator[Check]:
    """`before`: those that were yielded."""
    registry = HandlerRegistry()
    try:
        registry = load(settings.app)
    except AppError as error:
        yield Check("app", Finding.FATAL, str(error))
    else:
        yield from _check_domains(settings, registry)
        yield from report_lacking_tags(settings, registry)
        yield from _show_declarations(registry)
    yield from _check_files(settings)  # The application may have raised the limit.
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
            yield from _check_database(connection, parts, settings, registry)
            if declares and worst(before) in (Finding.OK, Finding.WARNING):
                yield from _declare(connection, settings, registry)
        except psycopg.OperationalError as error:
            yield _failure("cannot check", parts, error)


def _check_domains(settings: Settings, registry: HandlerRegistry) -> Iterator[Check]:
    handled = registry.domains
    missing = [domain for domain in settings.domains if domain not in handled]
    for domain in missing:
        sentence = f"{settings.app} has no handler for domain {domain!r}{hint(domain, handled)}"
        yield Check("app", Finding.FATAL, sentence)
    if not missing:
        count, domains = count_of(len(registry), "handler"), ", ".join(settings.domains or handled)
        sentence = f"{settings.app}: {count}, domains {domains}"
        yield Check("app", Finding.OK, sentence, types=len(registry))


def _show_declarations(registry: HandlerRegistry) -> Iterator[Check]:
    declarations = registry.declarations()
    kinds: dict[str, Sequence[object]] = {
        LIMITS: declarations.limits,
        BREAKERS: declarations.breakers,
        SCHEDULES: declarations.schedules,
    }
    for name, declared in kinds.items():
        if declared:
            yield Check(name, Finding.OK, "; ".join(map(str, declared)))


def _declare(
    connection: Connection, settings: Settings, registry: HandlerRegistry
) -> Iterator[Check]:
    declarations, executor = registry.declarations(), Executor(settings.schema)
    for name, sentence in declare(connection, executor, str(settings.app), declarations):
        yield Check(name, Finding.WARNING, sentence)
    yield Check(DECLARED, Finding.OK, f"declared: {declarations}")


def _check_files(settings: Settings) -> Iterator[Check]:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = _FILES + max(settings.thread_range.most + HEADROOM, settings.procs)
    if limit != resource.RLIM_INFINITY and limit < need:
        sentence = (
            f"a process may open {limit} files at a time, and one of this fleet needs {need}, "
            f"without those of the application"
        )
        yield Check("files", Finding.WARNING, sentence, "raise the limit (ulimit -n, LimitNOFILE=)")


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
    text = dsns.redact(" ".join(" ".join(lines).split()), parts)
    sentence = f"{what} {dsns.describe(parts)}: {found.sentence} ({text})"
    return Check("connection", found.finding, sentence, found.fix)


def _check_database(
    connection: Connection, parts: dsns.Parts, settings: Settings, registry: HandlerRegistry
) -> Iterator[Check]:
    yield _check_version(connection)
    row = connection.execute(statement("read_server", settings.schema)).fetchone()
    assert row is not None
    server_encoding, client_encoding, standby, role, database, current, ends_sessions = row
    yield _check_encoding(server_encoding, client_encoding)
    if not ends_sessions:
        sentence = (
            f"sessions of {role!r} run as role {current!r}, which may not see and end them, as the "
            "rescue of commands needs after a crash"
        )
        yield Check("role", Finding.FATAL, sentence, ROLE_FIX)
        return
    with _connect(parts) as other:
        pooling = _check_pooling(connection, other)
    yield pooling
    if pooling.finding is Finding.FATAL:
        return
    session = _session(connection, settings, role, database)
    if refusal := _refusal_of_writes(session, standby):
        yield refusal
        return
    schema = []
    for check in check_schema(connection, settings, role):
        schema.append(check)
        yield check
    if worst(schema) in (Finding.OK, Finding.WARNING):
        yield from check_others(connection, settings, registry)
    handlers = list(registry)
    max_thread = max([settings.timeouts.thread, *(handler.timeout or 0.0 for handler in handlers)])
    yield from effective.check_timeouts(session, settings.timeouts, max_thread)
    yield from effective.check_handlers(handlers, settings.timeouts)
    yield _check_budget(connection, settings)
    if settings.listen:
        yield _check_listening(connection, parts, settings.schema)


def _check_version(connection: Connection) -> Check:
    major = connection.info.server_version // 10000
    server, tested = f"PostgreSQL {major}", f"use one from {_MIN_MAJOR} to {_MAX_MAJOR}"
    if major < _MIN_MAJOR:
        return Check("server", Finding.FATAL, f"{server} is too old", tested)
    if major > _MAX_MAJOR:
        sentence = f"{server} is newer than those that this version was tested with"
        return Check("server", Finding.WARNING, sentence, f"if something is odd, {tested}")
    return Check("server", Finding.OK, server)


def _check_encoding(server: str, client: str) -> Check:
    finding, sentence, fix = Finding.OK, server, ""
    if client != "UTF8":
        finding, sentence = Finding.FATAL, f"the session's client_encoding is {client}"
        fix = "take client_encoding out of the DSN, or let the pooler pass it on"
    elif server == schemas.UNCHECKED:
        finding, fix = Finding.FATAL, "create a database with ENCODING 'UTF8' TEMPLATE template0"
        sentence = (
            "the database's encoding is SQL_ASCII, which takes bytes that are no text, so a "
            "worker could not read what was sent"
        )
    elif server != "UTF8":
        finding, fix = Finding.WARNING, "make a database with ENCODING 'UTF8'"
        sentence = (
            f"the database's encoding is {server}: a command with a character that it lacks is "
            f"refused or changed"
        )
    return Check("encoding", finding, sentence, fix)


def _check_pooling(connection: Connection, other: Connection) -> Check:
    """Whether each connection keeps its session from one transaction to the next. A pooler that
    gives sessions out by the transaction lends both the same one, or one of them several."""
    first, second = session_of(connection), session_of(other)
    pairs = ((session_of(connection), session_of(other)) for _ in range(_POOLING_ROUNDS))
    if first != second and all(pair == (first, second) for pair in pairs):
        return Check("pooling", Finding.OK, "each connection keeps its session")
    sentence = (
        "transaction pooling: a pooler between here and the server gives connections another "
        "session for each transaction"
    )
    fix = "use session mode (pool_mode = session), or connect to the server itself"
    return Check("pooling", Finding.FATAL, sentence, fix)


def _refusal_of_writes(session: effective.Session, standby: bool) -> Check | None:
    if standby:
        sentence = "the server is a standby: nothing can be written there"
        fix = "name the primary, or several hosts with target_session_attrs=read-write"
        return Check("primary", Finding.FATAL, sentence, fix)
    if not session.is_server_read_only:
        return None
    sentence = (
        "the server accepts no writes: default_transaction_read_only is on in its configuration, "
        "where a provider sets it while the disk is full"
    )
    fix = "make room on the server's disk; then ALTER SYSTEM RESET default_transaction_read_only"
    return Check("primary", Finding.AWAY, sentence, fix)


def _session(
    connection: Connection, settings: Settings, role: str, database: str
) -> effective.Session:
    names = {"names": list(effective.NAMES)}
    rows = connection.execute(statement("read_effective", settings.schema), names).fetchall()
    found = {name: effective.Setting(value, source) for name, value, source in rows}
    return effective.Session(
        settings=found, role=role, database=database, requested=session_settings(settings.timeouts)
    )


def _check_budget(connection: Connection, settings: Settings) -> Check:
    values = {"node": sessions.PATTERN, "check": _APPLICATION}
    row = connection.execute(statement("read_budget", settings.schema), values).fetchone()
    assert row is not None
    max_connections, reserved, of_database, of_role, others, in_database, by_role, nodes = row
    available = max_connections - reserved
    name = f"max_connections {max_connections} - {reserved} reserved = {available}"
    limits = [budget.Limit(name, available, others, "raise max_connections")]
    for object_type, size, used in (
        ("database", of_database, in_database),
        ("role", of_role, by_role),
    ):
        name = f"the {object_type}'s CONNECTION LIMIT is {size}"
        fix = f"raise it (ALTER {object_type.upper()} ... CONNECTION LIMIT)"
        limits.append(budget.Limit(name, size, used, fix))
    need = budget.Need(
        procs=settings.procs, threads=settings.thread_range.most, housekeeping=HEADROOM
    )
    return budget.check_budget(need, [limit for limit in limits if limit.size >= 0], nodes)


def _check_listening(connection: Connection, parts: dsns.Parts, schema: str) -> Check:
    token, what = uuid4().hex, f"no notification arrived within {_NOTIFY_SECONDS:g} s"
    try:
        connection.execute(statement("listen_check", schema))
        with _connect(parts) as other:
            other.execute(statement("notify_check", schema), {"token": token})
        if _hears(connection, token, schema):
            return Check("listen", Finding.OK, "notifications arrive")
    except psycopg.OperationalError as error:
        return _failure("listen", parts, error)
    except psycopg.Error as error:
        what = f"LISTEN is refused ({reason(error)})"
    sentence = f"{what}: between here and the server there is a pooler that swallows notifications"
    fix = "connect to the server itself; or run with --wake poll"
    return Check("listen", Finding.FATAL, sentence, fix)


def _hears(connection: Connection, token: str, schema: str) -> bool:
    """A server that was too busy to send the notification in time sends it before it answers a
    ping."""
    for seconds in (_NOTIFY_SECONDS, 0.0):
        for notification in connection.notifies(timeout=seconds):
            if notification.payload == token:
                return True
        connection.execute(statement("ping", schema))
    return False
