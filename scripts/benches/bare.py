"""What measurements compare with: loops of plain statements, and threads that only sleep.

Each function is the work of a crew: see crews.py. The statements are the bench's own, so that a
change of cmdbus does not change what it is compared with; but those of `singly`, which has the
transaction of each command around one statement of its handler.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import psycopg
from psycopg.sql import SQL, Literal

from benches.comparison import rate_of
from benches.fleet import TYPE
from benches.yard import BARE
from cmdbus.command import Command
from cmdbus.context import Context
from cmdbus.database import dsn as dsns
from cmdbus.database import schema
from cmdbus.producer.bus import CommandBus
from cmdbus.timeouts import Timeouts
from cmdbus.worker.claims.claim import Claim, ClaimRequest, Finished
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.outcomes import completed
from cmdbus.worker.claims.transactions import begin, commit

EFFECT = "CREATE TABLE effect (command_id uuid)"
_INSERT = "INSERT INTO effect (command_id) VALUES (%s)"

#: Settles the latest run and claims the next, with history, by the key.
_SETTLE_AND_CLAIM = f"""
    WITH gone AS (
        DELETE FROM cmdbus.ready
        WHERE domain = '{BARE}' AND priority = 5 AND id = ANY (%s::bigint[]) AND claimer = %s
        RETURNING *
    ), history AS (
        INSERT INTO cmdbus.finished (
            token, claimer, claimed_at, created_at, due_at, command_id, correlation_id, priority,
            attempts, losses, domain, type, data, status)
        SELECT token, claimer, claimed_at, created_at, due_at, command_id, correlation_id,
            priority, 1, losses, domain, type, data, 'COMPLETED' FROM gone
    ), picked AS MATERIALIZED (
        SELECT id FROM cmdbus.ready
        WHERE domain = '{BARE}' AND priority = 5 AND claimer IS NULL
        ORDER BY domain, priority, id LIMIT %s FOR UPDATE SKIP LOCKED
    )
    UPDATE cmdbus.ready r SET token = r.token + 1, claimer = %s, claimed_at = clock_timestamp(),
        lease_until = clock_timestamp() + interval '30 s'
    WHERE r.domain = '{BARE}' AND r.priority = 5 AND r.id = ANY (ARRAY(SELECT id FROM picked))
    RETURNING r.id, r.token, r.command_id, r.type::text, r.data::text"""
#: Plans as cmdbus's functions have them.
_PLANS = {
    **dict.fromkeys(
        [f"enable_{way}" for way in ("seqscan", "hashjoin", "mergejoin", "bitmapscan", "sort")],
        "off",
    ),
    "plan_cache_mode": "force_generic_plan",
}

_CHANNEL = "bench_floor"
#: In the table `plain`; $1 is the command's id.
INSERT_AND_NOTIFY = f"""
    WITH sent AS (
        INSERT INTO plain (domain, priority, command_id, correlation_id, type, data)
        VALUES ('{BARE}', 5, %(id)s, %(id)s, '{TYPE}', %(data)s))
    SELECT pg_notify('{_CHANNEL}', '')"""
_CLAIM_ONE = f"""
    UPDATE plain SET token = token + 1, claimer = 1, claimed_at = clock_timestamp(),
        lease_until = clock_timestamp() + interval '30 s'
    WHERE (domain, priority, id) = (
        SELECT domain, priority, id FROM plain
        WHERE domain = '{BARE}' AND priority = 5 AND claimer IS NULL
        ORDER BY domain, priority, id LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING id, data::text"""

_TIMEOUTS = Timeouts()
_COMPLETED = completed(None)
_ANSWER_S = 60.0


@contextmanager
def loop(dsn: str, at_once: int = 100) -> Iterator[Callable[[None], None]]:
    """Settles and claims this number together until there is nothing to claim."""
    with _connect(dsn, _PLANS) as connection:

        def drain(_: None) -> None:
            me = connection.info.backend_pid
            ids: list[int] = []
            while True:
                values = (ids, me, at_once, me)
                with suppress(psycopg.errors.DeadlockDetected):  # again, at once
                    found = connection.execute(_SETTLE_AND_CLAIM, values, prepare=True).fetchall()
                    if not found:
                        return
                    ids = [row[0] for row in found]

        yield drain


@contextmanager
def singly(dsn: str, threads: int) -> Iterator[Callable[[None], None]]:
    """For each command, in each thread, the statements of one whose handler is `insert`."""
    statements = ClaimStatements(schema.DEFAULT, _TIMEOUTS.lease)
    with ExitStack() as stack:
        connections = [stack.enter_context(_connect(dsn, {})) for _ in range(threads)]
        statements.register(connections[0], "bare")
        pool = stack.enter_context(ThreadPoolExecutor(threads))

        def drain(_: None) -> None:
            list(pool.map(lambda each: _run_singly(each, statements), connections))

        yield drain


def insert(command: Command, context: Context) -> None:
    context.connection.execute(_INSERT, (command.command_id,))


def _run_singly(connection: psycopg.Connection, statements: ClaimStatements) -> None:
    types = [f"{BARE} {TYPE}"]
    request = ClaimRequest(
        free=1, prefetch=0, domains=[BARE], types=types, quick_types=[], floors={}
    )
    while claimed := statements.settle_and_claim(connection, [], request)[1]:
        [claim] = claimed
        marker = f"{claim.id}:{claim.token}"
        begin(
            statements,
            connection,
            statement=_TIMEOUTS.statement,
            idle=_TIMEOUTS.thread,
            marker=marker,
        )
        connection.execute(_INSERT, (claim.command_id,))
        lost, prepared = statements.settle_within(connection, [_finished(claim)], marker)
        assert lost == []
        commit(statements, connection, prepared)


def _finished(claim: Claim) -> Finished:
    return Finished(claim, _COMPLETED, 1, 0.0)


def create_plain(connection: psycopg.Connection) -> None:
    """The table `plain`: like ready in all that costs something, but without triggers.

    INCLUDING ALL leaves out the storage parameters, of which fillfactor is one.
    """
    found = connection.execute(
        "SELECT option_name, option_value FROM pg_class, pg_options_to_table(reloptions)"
        " WHERE oid = 'cmdbus.ready'::regclass"
    )
    options = [SQL("{} = {}").format(SQL(name), Literal(value)) for name, value in found]
    create = SQL("CREATE TABLE plain (LIKE cmdbus.ready INCLUDING ALL) WITH ({})")
    connection.execute(create.format(SQL(", ").join(options)))


@contextmanager
def claimer(dsn: str) -> Iterator[Callable[[None], float]]:
    """Waits for a notification and claims; answers with the time of that."""
    with _connect(dsn, {}) as connection:
        connection.execute(f"LISTEN {_CHANNEL}")

        def claim(_: None) -> float:
            list(connection.notifies(timeout=_ANSWER_S, stop_after=1))
            connection.execute(_CLAIM_ONE, prepare=True).fetchall()
            return time.time()

        yield claim


@contextmanager
def sleepers(threads: int, seconds: float) -> Iterator[Callable[[int], tuple[float, float]]]:
    """Threads that share a number of sleeps; answers when the first began and the last ended."""

    def sleep(_: int) -> tuple[float, float]:
        began = time.time()
        time.sleep(seconds)
        return began, time.time()

    with ThreadPoolExecutor(threads) as pool:

        def run(count: int) -> tuple[float, float]:
            times = list(pool.map(sleep, range(count)))
            return min(began for began, _ in times), max(ended for _, ended in times)

        yield run


@contextmanager
def senders(
    dsn: str, send: Callable[[CommandBus], object], threads: int
) -> Iterator[Callable[[tuple[float, float]], float]]:
    """Threads that send from a time on for a number of seconds; answers with their rate."""
    with CommandBus(dsn) as bus, ThreadPoolExecutor(threads) as pool:

        def run(order: tuple[float, float]) -> float:
            begin, seconds = order
            time.sleep(max(0.0, begin - time.monotonic()))
            return rate_of(lambda: send(bus), seconds)

        yield lambda order: sum(pool.map(run, [order] * threads))


def _connect(dsn: str, settings: dict[str, str]) -> psycopg.Connection:
    parts = dsns.complete(dsns.parse(dsn), application_name="cmdbus:bench", settings=settings)
    return dsns.connect(parts)
