"""Operators and functions that another role made in a schema of the search path.

Where their argument types match better than those of PostgreSQL's own, they are called in
place of these, with the rights of the caller. Every role may CREATE in `public` on
PostgreSQL 14, and `public` is in the default search path.
"""

import re
from datetime import timedelta
from threading import Event
from uuid import uuid4

import psycopg
import pytest
from claiming import Claimer, ended, want
from handlers import connect, promote
from pgmq_queues import install_pgmq
from psycopg.sql import SQL, Identifier, Literal

from cmdbus import CommandBus, SendRequest
from cmdbus.database.schema import install
from cmdbus.database.statements import load, render
from cmdbus.pgmq import operations
from cmdbus.worker.claims.outcomes import Outcome, OutcomeKind, completed
from cmdbus.worker.claims.sessions import end_sessions
from cmdbus.worker.steward.batch_round import BatchRound
from cmdbus.worker.steward.retention import MIN_SWEEP_SECONDS, Retention
from cmdbus.worker.waiting.timers import Timers

pytestmark = pytest.mark.new_database

OUTCOMES = [
    completed({"ok": True}),
    Outcome(kind=OutcomeKind.RETRY, delay=60, code="BUSY", message="later", details="{}"),
    Outcome(kind=OutcomeKind.FAILED, code="NO", message="rule", details="{}"),
    Outcome(kind=OutcomeKind.TROUBLE, code="GONE", message="never", details="{}"),
]
#: How a statement begins that has expressions; the others are settings and the like.
WITH_EXPRESSIONS = ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE")
TYPES = [
    *("text", "name", "bool", "int2", "int4", "int8", "oid", "regclass", "regnamespace", "float8"),
    *("numeric", "uuid", "json", "jsonb", "timestamptz", "date", "interval", "text[]", "int8[]"),
]
OPERATORS = [
    "=",
    "<>",
    "<",
    "<=",
    ">",
    ">=",
    "+",
    "-",
    "*",
    "/",
    "%",
    "||",
    "->",
    "->>",
    "~",
    "&",
    "<<",
]

#: An operator, and a function of one or two arguments, for each combination of types that
#: pg_catalog has not. Each of them fails as soon as it is called.
ATTACK = """
DO $do$
DECLARE
    f text;
    l text;
    r text;
    o text;
    head constant text := 'CREATE FUNCTION public.%I(%s) RETURNS boolean LANGUAGE plpgsql'
        ' AS $$BEGIN RAISE ''hijacked''; END$$';
BEGIN
    FOREACH l IN ARRAY {types}::text[] LOOP
        FOREACH f IN ARRAY {functions}::text[] LOOP
            IF to_regprocedure(format('pg_catalog.%I(%s)', f, l)) IS NULL THEN
                EXECUTE format(head, f, l);
            END IF;
        END LOOP;
        FOREACH r IN ARRAY {types}::text[] LOOP
            EXECUTE format(head, 'hijack', l || ', ' || r);
            FOREACH o IN ARRAY {operators}::text[] LOOP
                IF to_regoperator(format('pg_catalog.%s(%s,%s)', o, l, r)) IS NULL THEN
                    EXECUTE format('CREATE OPERATOR public.%s (FUNCTION = public.hijack,'
                        ' LEFTARG = %s, RIGHTARG = %s)', o, l, r);
                END IF;
            END LOOP;
        END LOOP;
    END LOOP;
END
$do$;
CREATE FUNCTION public.make_interval(secs float8) RETURNS interval
    LANGUAGE plpgsql AS $$BEGIN RAISE 'hijacked'; END$$;
"""
#: Called with one argument in the SQL files, by any type.
FUNCTIONS = ["isfinite", "hashtext", "setval", "right", "to_jsonb"]
FUNCTIONS += ["pg_advisory_xact_lock", "pg_terminate_backend"]


def attack(dsn: str) -> None:
    values = {"types": TYPES, "operators": OPERATORS, "functions": FUNCTIONS}
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            SQL(ATTACK).format(**{name: Literal(value) for name, value in values.items()})
        )


def test_installing_calls_nothing_of_another_role(empty_dsn: str) -> None:
    """The installing role may be a superuser."""
    attack(empty_dsn)
    install(empty_dsn)
    assert install(empty_dsn).before > 0
    with psycopg.connect(empty_dsn) as connection:
        connection.execute("SET search_path = pg_catalog")
        assert connection.execute(BOUND_TO_PUBLIC).fetchall() == []


#: Conditions, defaults, views and function bodies that call what was made above.
BOUND_TO_PUBLIC = """
SELECT pg_describe_object(classid, objid, objsubid) FROM pg_depend
WHERE classid <> 'pg_operator'::regclass AND (
    refclassid = 'pg_operator'::regclass
        AND refobjid IN (SELECT oid FROM pg_operator WHERE oprnamespace = 'public'::regnamespace)
    OR refclassid = 'pg_proc'::regclass
        AND refobjid IN (SELECT oid FROM pg_proc WHERE pronamespace = 'public'::regnamespace))
"""


@pytest.fixture
def attacked(dsn: str) -> str:
    """Its new sessions let PL/pgSQL check as much as it can."""
    attack(dsn)
    with connect(dsn) as connection:
        name = Identifier(connection.info.dbname)
        strict = SQL("ALTER DATABASE {} SET plpgsql.extra_errors = 'all'")
        connection.execute(strict.format(name))
    return dsn


def test_a_commands_life_calls_nothing_of_another_role(attacked: str, claimer: Claimer) -> None:
    """With every trigger and function on its way."""
    worker, connection = claimer.statements, claimer.connection
    with CommandBus(attacked, purge_allowed=True) as bus:
        values = {"node": worker.incarnation, "reads_in": 0.5, "lasts": 60.0}
        worker.value(connection, "arm", domains=["payments"], **values)
        bus.configure("payments", max_depth=100, keep=timedelta(days=1))
        ids = bus.send_many([SendRequest("payments", "Debit", reply_to="orders")] * 9)
        later = [bus.send("payments", "Debit", delay=60, command_id=uuid4()) for _ in range(2)]
        connection.execute("SELECT cmdbus.send('payments', 'Debit')")
        settle_in_all_ways(claimer)
        assert bus.troubleshooting.count() == 1
        [trouble] = bus.troubleshooting.list()
        bus.troubleshooting.retry("payments", trouble.command_id, operator="ann")
        bus.cancel("payments", later[0])
        promote(worker, connection, 10)
        retention = Retention(worker, Event())
        retention.remove_days(connection)
        retention.sweep(connection)
        assert 0 < retention.sweep_in(connection) <= MIN_SWEEP_SECONDS
        end_sessions(worker, connection, [(1, 1)])
        assert all(bus.get("payments", id_) for id_ in ids)
        live_as_a_batch(bus, claimer)
        assert bus.query(domain="payments") and bus.audit("payments", later[0])
        assert bus.snapshot("payments")["depth"] > 0 and bus.domains()
        bus.pause("payments")
        bus.resume("payments")
        assert bus.purge("payments") > 0
        worker.value(connection, "leave", node=worker.incarnation)


def live_as_a_batch(bus: CommandBus, claimer: Claimer) -> None:
    worker, connection = claimer.statements, claimer.connection
    after = SendRequest("payments", "Debit", command_id=uuid4())
    orders = [SendRequest("orders", "Ship"), SendRequest("orders", "Ship", delay=60)]
    later = SendRequest("payments", "Debit", delay=60)
    for requests in ((after, later), (later, after)):
        on_complete, on_cancel = requests
        batch_id = bus.create_batch(
            "payments", orders, on_complete=on_complete, on_cancel=on_cancel
        )
        worker.value(connection, "start_batches", batch_ids=[batch_id])
        assert worker.value(connection, "add_to_batch", batch_id=batch_id, count=1) is None
        assert bus.batch_commands(batch_id) and bus.batch_audit(batch_id) and bus.list_batches()
        bus.cancel_batch(batch_id)
        assert worker.value(connection, "add_to_batch", batch_id=batch_id, count=-1) == "CANCELING"
        connection.execute("UPDATE cmdbus.tally SET total = 0")
        BatchRound(worker).run(connection)
        assert bus.get_batch(batch_id).status.terminal  # type: ignore[union-attr]
    worker.value(connection, "retain_batches", size=10)


def settle_in_all_ways(claimer: Claimer) -> None:
    worker, connection = claimer.statements, claimer.connection
    claims = claimer.settle_and_claim([], want(6, prefetch=2, quick_types=["payments Debit"]))
    settled, rest = claims[: len(OUTCOMES)], claims[len(OUTCOMES) :]
    assert claimer.renew(*claims) == []
    assert claimer.settle(*map(ended, settled, OUTCOMES)) == []
    assert len(worker.release(connection, rest, [1] * 4, "why")) == 4
    Timers(worker, ["payments"], ["payments Debit"]).promote_and_read(connection, leases=True)
    worker.ends(connection, claims)


#: What the names in braces of some statements stand for.
#: They name a function.
CALLS = {"call", "call_and_note", "call_and_date"}
#: Those of the client of PGMQ, which are put together.
OF_PGMQ = [each for each in vars(operations).values() if isinstance(each, operations.Operation)]
FILLED = {"insert": {"table": "ready", "more": "", "arrays": ""}}


def test_statements_use_postgresqls_own_operators_and_functions(attacked: str) -> None:
    foreign: dict[str, list[str]] = {}
    for name in sorted(set(load()) - CALLS):
        if name.startswith("pgmq_"):
            continue
        text = re.sub(r"--.*", "", render(name, "cmdbus", **FILLED.get(name, {}))).strip()
        if text.startswith(WITH_EXPRESSIONS) and (found := foreign_dependencies(attacked, text)):
            foreign[name] = found
    assert foreign == {}


def test_statements_for_pgmq_use_postgresqls_own_operators_and_functions(attacked: str) -> None:
    with connect(attacked) as connection:
        install_pgmq(connection)
    assert len(OF_PGMQ) == sum(name.startswith("pgmq_") for name in load()) - 2
    texts = {each.name: operations.text_of(each).decode().strip() for each in OF_PGMQ}
    foreign = {name: foreign_dependencies(attacked, text) for name, text in texts.items()}
    assert {name: found for name, found in foreign.items() if found} == {}


def foreign_dependencies(dsn: str, text: str) -> list[str]:
    """What a statement calls outside of pg_catalog and the schema. The server says it: a
    function with this body depends on that."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", text)))
    for number, name in enumerate(names, 1):
        text = text.replace(f"%({name})s", f"${number}")
    text = text.replace("%%", "%").rstrip(";")
    with psycopg.connect(dsn) as connection, connection.transaction(force_rollback=True):
        connection.execute("CREATE TABLE demo_transfer (command_id uuid, amount int)")
        try:
            connection.execute(f"PREPARE probe AS {text}")
            row = connection.execute("SELECT parameter_types FROM pg_prepared_statements")
            types = ", ".join(row.fetchall()[0][0])
            connection.execute(
                f"CREATE FUNCTION public.probe({types}) RETURNS void BEGIN ATOMIC {text}; END"
            )
        except psycopg.Error as error:  # the types of what it calls do not fit
            return [str(error)]
        connection.execute("SET search_path = pg_catalog")
        return [name for (name,) in connection.execute(DEPENDENCIES).fetchall()]


DEPENDENCIES = """
SELECT pg_describe_object(refclassid, refobjid, 0) FROM pg_depend
WHERE classid = 'pg_proc'::regclass AND objid = 'public.probe'::regproc
    AND refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass)
    AND pg_describe_object(refclassid, refobjid, 0) !~ ' (cmdbus|pgmq)[.]'
"""
