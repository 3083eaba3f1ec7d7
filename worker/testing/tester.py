"""`CommandTester`: runs due commands, moves times, and shows what was sent."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Literal

from cmdbus.checks import MAX_SECONDS, check_schema, shown
from cmdbus.database import schema as schemas
from cmdbus.database.executor import Executor
from cmdbus.integrations.callers_connection import CallersConnection
from cmdbus.producer.records import CommandRecord, filled
from cmdbus.registry import HandlerRegistry
from cmdbus.testing.django_project import django_project
from cmdbus.testing.executed import Executed
from cmdbus.testing.own_database import TESTER, check_database, clear_database
from cmdbus.testing.runner import Runner, RunnerStatements
from cmdbus.testing.sent import check_sent
from cmdbus.testing.sessions import expire, own_session, session_inside
from cmdbus.timeouts import Timeouts
from cmdbus.worker.claims.claim import Connection

#: Commands that `sent` reads at once.
_PORTION = 10_000
_FARTHEST = timedelta(seconds=MAX_SECONDS)


class CommandTester:
    """Tests of what a program sends, and of its handlers, in the calling thread.

    Each method takes a `connection` in whose open transaction everything happens, so that a
    rollback leaves nothing: psycopg 3's, or an SQLAlchemy Session or Connection that uses it.
    Without one, a session for `dsn` is opened, and everything commits as in production. A database
    on which workers have run before the tests began is refused.

    In a project of Django with the app cmdbus.django neither is needed: the transaction is the one
    that is open on Django's connection, as in a TestCase, or else the session is for that one's
    database; and the schema is the one in TASKS.
    """

    def __init__(self, dsn: str | None = None, *, schema: str | None = None) -> None:
        self._dsn = dsn
        self._project = django_project() if dsn is None else None
        if schema is None:
            schema = schemas.DEFAULT if self._project is None else self._project.schema()
        self._executor = Executor(check_schema(schema))
        self._checked: set[str] = set()

    def check(self) -> None:
        """An InvalidOperationError if the database of the DSN is not for tests alone."""
        with self._session(None):
            pass

    def run_commands(
        self,
        registry: HandlerRegistry,
        connection: CallersConnection | None = None,
        until: Literal["idle"] | None = None,
        *,
        raises: bool = True,
    ) -> list[Executed]:
        """Runs each command that is due now and has a handler once, in the order of priorities and
        of sending, and settles it as a worker does; with `until="idle"` also what these send, until
        nothing is due. Returns the executions in order.

        If handlers failed, raises what the first one raised, after all have run and are settled;
        with `raises=False` the executions say so. Runs the functions of `on_start` and `on_stop`
        around the commands. No timeout of a handler ends it.
        """
        if not isinstance(registry, HandlerRegistry):
            raise ValueError(f"registry must be a HandlerRegistry, not {shown(registry)}")
        if not len(registry):
            raise ValueError("the registry has no handlers: there is nothing to run")
        if until not in (None, "idle"):
            raise ValueError(f"until must be 'idle' or None, not {shown(until)}")
        connection = self._transaction(connection)
        timeouts = Timeouts()
        statements = RunnerStatements(self._executor.schema, timeouts.lease)
        statements.worker = TESTER
        with (
            self._session(connection, statements.application_name) as session,
            registry.hooks.around(),
        ):
            inside = connection is not None
            runner = Runner(session, registry, statements, timeouts, inside=inside)
            done = []
            for each in runner.run(until_idle=until == "idle"):
                done.append(each)
                expire(connection)
        if raises:
            _raise_first(done)
        return done

    def travel(
        self,
        delta: timedelta | None = None,
        *,
        connection: CallersConnection | None = None,
        **duration: float,
    ) -> None:
        """Lets everything that waits for a time be so much nearer to it, as `travel(hours=1)`:
        moves due times, leases, expiries, rates, ticks and the times of breakers into the past. No
        clock changes. `duration`: arguments of timedelta."""
        by = _duration(delta, duration)
        with self._session(connection) as session:
            self._executor.execute(session, "move_times", {"by": by})

    def sent(
        self,
        domain: str | None = None,
        type: str | None = None,
        data: object = None,
        *,
        count: int | None = None,
        connection: CallersConnection | None = None,
    ) -> list[CommandRecord]:
        """The commands of this domain and type, whatever has become of them, in the order of
        sending; with `data`, those whose data contains the fields of this dict, or is this other
        value. An AssertionError that lists what was sent instead if there are none or, with
        `count`, not as many."""
        with self._session(connection) as session:
            found = [filled(CommandRecord, row) for row in self._all(session)]
        return check_sent(found[::-1], domain, type, data, count)

    def _all(self, session: Connection) -> Iterator[Sequence[object]]:
        """The rows of all commands, the latest first."""
        anything = dict.fromkeys(("domain", "type", "since", "until", "key", "status"))
        for offset in itertools.count(0, _PORTION):
            rows = self._executor.rows(
                session, "query_commands", **anything, limit=_PORTION, offset=offset
            )
            yield from rows
            if len(rows) < _PORTION:
                return

    def clear(self, *, connection: CallersConnection | None = None) -> None:
        """Deletes all commands, batches, processes, schedules, limits and settings, for tests whose
        transactions commit. The role must own the schema."""
        with self._session(connection) as session:
            clear_database(self._executor, session)

    @contextmanager
    def _session(
        self, connection: CallersConnection | None, name: str = "cmdbus-testing"
    ) -> Iterator[Connection]:
        if (given := self._transaction(connection)) is not None:
            with session_inside(given) as session:
                self._check(session)
                yield session
            return
        dsn = self._dsn if self._project is None else self._project.dsn()
        if dsn is None:
            raise ValueError("give a connection, or make the CommandTester with a DSN")
        with own_session(dsn, name) as session:
            self._check(session)
            yield session

    def _transaction(self, given: CallersConnection | None) -> CallersConnection | None:
        """The one in which everything happens; None if everything commits."""
        if given is not None or self._project is None:
            return given
        found: CallersConnection | None = self._project.open_session()
        return found

    def _check(self, session: Connection) -> None:
        """Each database once."""
        if session.info.dsn not in self._checked:
            schemas.check(session, self._executor.schema)
            check_database(self._executor, session)
            self._checked.add(session.info.dsn)


def _duration(delta: object, duration: Mapping[str, float]) -> timedelta:
    example = "travel(days=2, hours=1)"
    try:
        by = timedelta(**duration) if delta is None else delta
    except (TypeError, ValueError, OverflowError) as error:
        given = ", ".join(f"{name}={shown(value)}" for name, value in duration.items())
        raise ValueError(
            f"say how far in arguments of timedelta, as in {example}, not in {given}"
        ) from error
    if not isinstance(by, timedelta) or (delta is not None and duration):
        raise ValueError(f"say how far in one timedelta or in its arguments, as in {example}")
    if not by or abs(by) > _FARTHEST:
        raise ValueError(f"say how far, at most 100 years, as in {example}")
    return by


def _raise_first(done: list[Executed]) -> None:
    for each in done:
        if each.failed:
            error = each.error or AssertionError(f"{each.error_code}: {each.error_message}")
            error.add_note(
                f"in attempt {each.attempt} of command {each.command_id} "
                f"({each.domain}/{each.type}), which was settled as {each.outcome}; "
                f"run_commands(raises=False) returns it instead"
            )
            raise error
