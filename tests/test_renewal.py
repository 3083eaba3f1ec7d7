"""Renewals of leases, on a server that is too slow for one statement for all of them."""

from collections.abc import Iterator, Sequence
from uuid import UUID

import psycopg
import pytest
from handlers import claim, connect

from cmdbus import CommandBus, SendRequest
from cmdbus.worker.claims.claim import Claim
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.renewal import Renewal

CUT_OFF = "PERFORM pg_terminate_backend(pg_backend_pid()), pg_sleep(20)"
#: It does this to a statement for more than two claims, and cuts off one for a doomed claim.
FUNCTION = f"""
CREATE OR REPLACE FUNCTION cmdbus.slow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT count(*) FROM renewed) > 2 THEN
        {{}};
    ELSIF EXISTS (SELECT FROM renewed JOIN cmdbus.doomed USING (command_id)) THEN
        {CUT_OFF};
    END IF;
    RETURN NULL;
END
$$;"""
TRIGGER = """
CREATE TABLE cmdbus.doomed (command_id uuid);
CREATE TRIGGER slow AFTER UPDATE ON cmdbus.ready REFERENCING NEW TABLE AS renewed
FOR EACH STATEMENT EXECUTE FUNCTION cmdbus.slow()"""


class Holder:
    def __init__(self, dsn: str, connection: psycopg.Connection) -> None:
        self.dsn, self.connection = dsn, connection
        self.statements = ClaimStatements("cmdbus", 30)
        self.statements.register(connection, "tester")
        self.held: list[Claim] = claim(self.statements, connection, 4)
        self.renewal = Renewal(self.statements)
        connection.execute(FUNCTION.format("PERFORM pg_sleep(20)") + TRIGGER)

    def renew(self, *, doomed: Sequence[Claim] = ()) -> set[UUID]:
        """One call; which commands it has renewed."""
        self.connection.execute("DELETE FROM cmdbus.doomed")
        for each in doomed:
            self.connection.execute("INSERT INTO cmdbus.doomed VALUES (%s)", (each.command_id,))
        before = self.leases()
        with connect(self.dsn) as session:
            session.execute("SET statement_timeout = '300ms'")
            try:
                assert self.renewal.renew(session, {self.statements.incarnation: self.held}) == []
            except psycopg.errors.AdminShutdown:
                assert doomed
        return {command_id for command_id, until in self.leases().items() - before.items()}

    def leases(self) -> dict[UUID, object]:
        return dict(
            self.connection.execute("SELECT command_id, lease_until FROM cmdbus.ready").fetchall()
        )


@pytest.fixture
def holder(dsn: str) -> Iterator[Holder]:
    with CommandBus(dsn) as bus, connect(dsn) as connection:
        bus.send_many([SendRequest("payments", "Debit")] * 4)
        yield Holder(dsn, connection)


def test_a_call_begins_with_the_size_that_worked_and_what_waited_longest(holder: Holder) -> None:
    """Else a slow server has time for the same ones in each call."""
    one, two, three, four = holder.held
    assert len(holder.renew()) == 4
    assert holder.renew(doomed=[one, two]) == set()
    assert holder.renew(doomed=[one, two]) == {three.command_id, four.command_id}
    assert len(holder.renew()) == 4


def test_a_call_that_is_cut_off_leaves_the_size_that_worked_to_the_next(holder: Holder) -> None:
    one, two, three, four = holder.held
    assert holder.renew(doomed=[three, four]) == {one.command_id, two.command_id}
    holder.connection.execute(FUNCTION.format(CUT_OFF))
    assert len(holder.renew()) == 4
