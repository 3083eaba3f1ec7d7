"""The number of a worker's connections, their limits, and its behaviour when there are none."""

import psycopg
import pytest
from eventually import eventually
from handlers import SOON, Gate, await_drained, beside, connect, handling, running, seat_of
from psycopg_pool import ConnectionPool
from queries import SESSIONS, rows, scalar

from cmdbus import Command, CommandBus, Context, HandlerRegistry, SchemaError, SendRequest, Timeouts
from cmdbus.board.records import Phase
from cmdbus.board.views import SlotView
from cmdbus.worker import Worker

#: What a worker asks of the sessions of a pool that it is given.
OPTIONS = (
    "-c statement_timeout=25s -c idle_in_transaction_session_timeout=35s"
    " -c lock_timeout=1s -c default_transaction_isolation=read\\ committed"
)
FITTING = {"autocommit": True, "options": OPTIONS}


def test_the_limits_that_were_asked_for_are_those_in_force(dsn: str, bus: CommandBus) -> None:
    """In the pool, which has a connection for each thread, and in a handler's transaction."""

    def debit(command: Command, context: Context) -> list[str]:
        names = (
            "statement_timeout",
            "lock_timeout",
            "idle_in_transaction_session_timeout",
            "transaction_isolation",
        )
        values = [context.connection.execute(f"SHOW {name}").fetchone() for name in names]
        return [value[0] for value in values if value]

    with running(dsn, handling(debit), concurrency=7) as worker:
        shown = bus.wait("payments", bus.send("payments", "Debit")).result
        pool = worker._concurrency.pool
        assert pool is not None
        sizes = (pool.min_size, pool.max_size, pool.timeout)
        ages = (pool.max_lifetime, pool.max_idle)
        with pool.connection() as connection:
            query = "SELECT current_setting('statement_timeout'), current_setting('lock_timeout')"
            between = connection.execute(query).fetchone()
    # 60 s: a handler's 35, and the time until housekeeping has read its session.
    assert shown == ["25s", "0", "1min", "read committed"]
    assert between == ("25s", "1s")
    assert (sizes, ages) == ((7, 9, 30.0), (3600.0, 60.0))


@pytest.mark.parametrize("threads", [1, 4, 16])
def test_no_more_connections_are_held_than_for_threads_and_housekeeping(
    dsn: str, bus: CommandBus, threads: int
) -> None:
    """At full load, each handler with a session of its own; and no handler is refused one."""
    sessions: set[int] = set()
    gate = Gate(lambda command, context: sessions.add(context.connection.info.backend_pid))
    with running(dsn, handling(gate), concurrency=threads) as worker, connect(dsn) as watcher:
        bus.send_many([SendRequest("payments", "Debit")] * threads * 2)
        gate.wait_for(threads)
        assert len(sessions) == threads
        used = scalar(watcher, f"SELECT count(*) {SESSIONS}")
        assert used <= threads + 3, "two for housekeeping, and the listener"
        bus.send_many([SendRequest("payments", "Debit")] * threads * 10)
        gate.open.set()
        await_drained(bus)
        assert worker.health.pool_exhaustions == 0
        kinds = watcher.execute(
            "SELECT count(*) FILTER (WHERE code = 'POOL_EXHAUSTED'),"
            " (SELECT count(*) FROM cmdbus.finished WHERE attempts = 1) FROM cmdbus.event"
        )
        assert kinds.fetchone() == (0, threads * 12)


def test_a_pool_that_has_no_connection_to_give_is_an_illness_and_costs_no_attempt(
    dsn: str, bus: CommandBus
) -> None:
    """Tried three times; the database is there."""
    gate = Gate(lambda command, context: context.connection.execute("SELECT 1"))
    with ConnectionPool(
        dsn, kwargs=FITTING, min_size=1, max_size=4, timeout=0.5, open=True
    ) as pool:
        leaked = [pool.getconn(timeout=5) for _ in range(3)]
        ids = bus.send_many([SendRequest("payments", "Debit")] * 2)
        with running(pool, handling(gate), concurrency=2) as worker:
            gate.wait_for(1)
            eventually(lambda: worker.health.health == "CRITICAL")
            assert "pool exhaustions" in worker.health.reasons[0]
            for connection in leaked:
                pool.putconn(connection)
            gate.open.set()
            records = [bus.wait("payments", id_) for id_ in ids]
            assert [(r.status, r.attempts) for r in records] == [("COMPLETED", 1)] * 2
        audits = [str(bus.audit("payments", id_)) for id_ in ids]
        assert sorted("POOL_EXHAUSTED" in each for each in audits) == [False, True]
    assert rows(dsn, "SELECT max(losses) FROM cmdbus.finished") == [(0,)]


def test_a_thread_that_gets_no_session_leaves_the_leadership_to_one_that_has_one(
    dsn: str, bus: CommandBus
) -> None:
    """As under a limit of the role, too: the other threads would wait for the leader for ever."""
    with ConnectionPool(
        dsn, kwargs=FITTING, min_size=4, max_size=4, timeout=0.5, open=True
    ) as pool:
        taken = list[psycopg.Connection]()

        def take_next() -> None:
            taken.append(pool.getconn(timeout=20))

        with running(pool, handling(), concurrency=2) as worker:
            # A thread that executes a command need not have a session of its own.
            eventually(lambda: len([s for s in seat_of(worker).slots if s.backend_pid]) == 2)
            for _ in range(2):
                take_next()
            with beside(take_next):
                eventually(lambda: pool.get_stats()["requests_waiting"] == 1)
                slots = eventually(lambda: leading_slots(worker))
                rows(dsn, "SELECT pg_terminate_backend(%s, 10000)", slots[0].backend_pid)
                sent = bus.send("payments", "Debit")
            assert bus.wait("payments", sent).status == "COMPLETED"
            assert worker.health.health == "HEALTHY"
            for connection in taken:
                pool.putconn(connection)


def leading_slots(worker: Worker) -> list[SlotView]:
    """Of threads with a session: the steward has none in its slot."""
    slots = [slot for slot in seat_of(worker).slots if slot.number >= 0 and slot.backend_pid]
    return [slot for slot in slots if slot.phase is Phase.RESTING]


@pytest.mark.parametrize(
    "profile",
    [(10, 0.5), (20, 0.1), (2, 2.0), (1, 60.0)],
    ids=["default", "high throughput", "low resource", "one thread"],
)
def test_the_usual_profiles_work(dsn: str, bus: CommandBus, profile: tuple[int, float]) -> None:
    threads, poll_interval = profile
    with running(dsn, handling(), concurrency=threads, poll_interval=poll_interval):
        bus.send_many([SendRequest("payments", "Debit")] * 50)
        eventually(lambda: len(bus.query(status="COMPLETED", limit=100)) == 50)


def test_a_worker_has_4_threads_and_polls_once_a_minute_by_default() -> None:
    worker = Worker("host=nowhere", handling())
    assert (worker._concurrency.number, worker._poll_interval) == (4, 60.0)


def test_a_statement_that_takes_too_long_is_ended_by_the_server(dsn: str, bus: CommandBus) -> None:
    """Its session is idle then, and the command is tried again."""
    asleep = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND state = 'active' AND query LIKE '%pg_sleep(30)%' AND pid <> pg_backend_pid()"
    )
    at_second_attempt: list[object] = []

    def slow(command: Command, context: Context) -> None:
        if context.attempt == 1:
            context.connection.execute("SELECT pg_sleep(30)")
        at_second_attempt.extend(rows(dsn, asleep))

    with running(dsn, handling(slow, "Slow", retry=SOON), timeouts=Timeouts(0.1, 1, 1, 2, 3)):
        sent = bus.send("payments", "Slow")
        record = bus.wait("payments", sent)
    assert (record.status, record.attempts) == ("COMPLETED", 2)
    assert at_second_attempt == [(0,)]
    [failed] = [event for event in bus.audit("payments", sent) if event.kind == "FAILED"]
    assert failed.code == "QueryCanceled"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"concurrency": 0}, "concurrency must be a whole number from 1"),
        ({"concurrency": 129}, "concurrency must be a whole number from 1 to 128"),
        ({"poll_interval": 0.099}, r"poll_interval must be at least 0\.1 s"),
        ({"domains": ["orders"]}, "no handler for domain 'orders'"),
        ({"domains": []}, "domains must name at least one"),
    ],
)
def test_impossible_workers_are_refused(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Worker("host=nowhere", handling(), **options)  # type: ignore[arg-type]


def test_a_worker_without_handlers_is_refused() -> None:
    with pytest.raises(ValueError, match="the registry has no handlers"):
        Worker("host=nowhere", HandlerRegistry())


def test_a_pool_of_the_callers_must_fit(dsn: str) -> None:
    for kwargs, size, sentence in (
        (FITTING, 3, "needs? 4: make it with max_size=4|2 threads need 4"),
        ({"options": OPTIONS}, 4, "must be in autocommit mode"),
        ({"autocommit": True}, 4, "statement_timeout = 0, and the worker needs 25s"),
        (
            {"autocommit": True, "options": f"{OPTIONS} -c DateStyle=SQL"},
            4,
            "DateStyle = SQL, MDY, in which timestamps cannot be read",
        ),
    ):
        pool = ConnectionPool(dsn, kwargs=kwargs, min_size=1, max_size=size, open=True)
        with pool, pytest.raises(ValueError, match=sentence):
            Worker(pool, handling(), concurrency=2).run()


def test_a_missing_schema_is_said_when_the_worker_starts(empty_dsn: str) -> None:
    worker = Worker(empty_dsn, handling())
    with pytest.raises(SchemaError, match="run cmdbus init"):
        worker.run()
    with beside(worker.stop):
        pass  # It waits for no end that has been.


def test_a_worker_waits_for_no_password_it_cannot_have(dsn: str) -> None:
    """It fails fast, with one sentence."""
    worker = Worker("postgresql://ann:s3cr3t@127.0.0.1:1/shop", handling())
    with pytest.raises(Exception, match="cannot connect to database 'shop'") as refused:
        worker.run()
    assert "s3cr3t" not in str(refused.value)
