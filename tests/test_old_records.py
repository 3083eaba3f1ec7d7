"""Old incarnations and changes of domains are removed."""

from datetime import timedelta
from threading import Event

import psycopg
from eventually import eventually
from handlers import beside, claim, connect

from cmdbus import CommandBus, SendRequest
from cmdbus.worker.claims.claim import Finished
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.outcomes import interrupted, troubled
from cmdbus.worker.steward.retention import Retention


def test_an_incarnation_is_removed_when_it_is_long_dead_and_nothing_refers_to_it(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """Not one with a session, or seen while history is kept, or named by an unfinished command;
    and although a stranger's session has a name that no incarnation can have."""
    bus.send_many([SendRequest("payments", "Debit") for _ in range(3)])
    made = [ClaimStatements("cmdbus", 30.0) for _ in range(6)]
    dead, young, alive, holds, schedules, troubles = made
    for statements in made:
        statements.register(connection, "worker")
    outcomes = {schedules: interrupted("X", "x", 3600.0, lost=False), troubles: troubled("X", "x")}
    for statements in (holds, schedules, troubles):
        [claimed] = claim(statements, connection)
        if statements in outcomes:
            statements.settle(connection, [Finished(claimed, outcomes[statements], 3, 0.0)])
    bus.configure("long", keep=timedelta(days=20))
    old = "UPDATE cmdbus.incarnation SET seen_at = seen_at - make_interval(days => %s)"
    connection.execute(old, (21,))
    connection.execute(f"{old} + interval '2 days' WHERE id = %s".encode(), (0, young.incarnation))
    retention = Retention(dead, Event())
    stranger = psycopg.connect(dsn, application_name=f"cmdbus:{'z' * 13}")
    with stranger, psycopg.connect(dsn, application_name=alive.application_name):
        assert retention.remove_records(connection) == 1
    left = {id for (id,) in connection.execute("SELECT id FROM cmdbus.incarnation")}
    assert left == {statements.incarnation for statements in made} - {dead.incarnation}
    assert retention.remove_records(connection) == 0, "it was seen alive"


#: Of a table that retention reads or changes: it waits there until the sequence is drawn from.
_HOLD = """
    CREATE SEQUENCE public.go_on;
    CREATE FUNCTION public.hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        WHILE NOT (SELECT is_called FROM public.go_on) LOOP PERFORM pg_sleep(0.01); END LOOP;
        RETURN NULL;
    END $$;
    CREATE TRIGGER hold BEFORE DELETE ON cmdbus.incarnation
        FOR EACH STATEMENT EXECUTE FUNCTION public.hold()"""


def test_a_claim_and_a_new_session_do_not_wait_until_old_incarnations_are_found(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """For that the largest tables are read, which may take long."""
    bus.send("payments", "Debit")
    dead, idle = ClaimStatements("cmdbus", 30.0), ClaimStatements("cmdbus", 30.0)
    for statements in (dead, idle):
        statements.register(connection, "worker")
        lease = statements.incarnation, statements.lease
        connection.execute("SELECT cmdbus.note_lease(%s, %s)", lease)
    connection.execute("UPDATE cmdbus.lease SET ends_at = ends_at - interval '1 hour'")
    connection.execute(
        "UPDATE cmdbus.incarnation SET seen_at = seen_at - interval '9 days' WHERE id = %s",
        (dead.incarnation,),
    )
    connection.execute(_HOLD)
    with psycopg.connect(dsn, autocommit=True, application_name=idle.application_name) as worker:
        worker.execute("SET lock_timeout = '1s'")
        with connect(dsn) as steward, beside(Retention(dead, Event()).remove_records, steward):
            held = "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
            eventually(lambda: connection.execute(held).rowcount)
            try:
                idle.register(worker)
                assert len(claim(idle, worker)) == 1
            finally:
                connection.execute("SELECT nextval('public.go_on')")
    left = connection.execute("SELECT claimer FROM cmdbus.lease").fetchall()
    assert left == [(idle.incarnation,)]
    assert [(idle.incarnation,)] == connection.execute(
        "SELECT id FROM cmdbus.incarnation"
    ).fetchall()


def test_the_latest_thousand_changes_of_each_domain_are_kept(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.pause("few")
    bus.configure("many", max_depth=1)
    connection.execute(
        "INSERT INTO cmdbus.domain_event (domain, kind, message)"
        " SELECT 'many', 'CONFIGURED', n::text FROM generate_series(1, 1003) n"
    )
    assert Retention(ClaimStatements("cmdbus", 30.0), Event()).remove_records(connection) == 4
    kept = [event.message for event in bus.domain_audit("many")]
    assert (len(kept), kept[0], len(bus.domain_audit("few"))) == (1000, "4", 1)
